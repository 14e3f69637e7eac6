"""Writer inside one transaction of a job store, on any of the databases."""

from __future__ import annotations

import functools
import hashlib
import json
import secrets
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import datetime
from typing import Any

from sqlalchemy import Column, Connection, Table, func, select
from sqlalchemy.dialects import postgresql, sqlite

from flyball_profiles.gpu_conditions import GpuConditions
from flyball_profiles.stage_profile import StageProfile
from flyball_server.jobs.loop_state import JobLoopState
from flyball_server.jobs.measurements.step_fold import StepFold
from flyball_server.jobs.records import JobRecord, PlanRecord, RankRecord, TokenRecord
from flyball_server.jobs.step_records import (
    FoldPlace,
    StageMoments,
    StepDetail,
    StepRecord,
    merged_moments,
)
from flyball_server.jobs.store.sql.job_reader import JobReader
from flyball_server.jobs.store.sql.sql_rows import (
    detail_values,
    fold_rows,
    loop_state_values,
    moments_of,
    moments_values,
    plan_values,
    profile_digest,
    profile_document,
    profiled_conditions_text,
    values_of,
    versions_value,
)
from flyball_server.jobs.store.sql.sql_tables import (
    FOLD_PARTS,
    FOLDS,
    JOBS,
    KEPT_PROFILES,
    LOOP_STATES,
    MOMENTS,
    PLANS,
    PROFILES,
    PRUNED_STAGES,
    PRUNED_STEPS,
    RANKS,
    STEP_DETAILS,
    STEPS,
    TOKENS,
    stage_totals,
    step_totals,
)
from flyball_server.jobs.store.sql.step_reader import some_at_a_time

# Makes an INSERT with `on_conflict_do_update`, for which SQL has no common syntax.
AnyInsert = sqlite.Insert | postgresql.Insert
Insert = Callable[[Table], AnyInsert]

# Limit of a job's profiles that were measured under different conditions; the newest are kept.
MAX_KEPT_PROFILES = 16
# Length of a job's key in bytes, made at random so that planners that share a database need not
# coordinate.
_KEY_BYTES = 8


class JobWriter(JobReader):
    """Writer inside one transaction, which reads its own changes.

    Args:
        connection: inside a writing transaction.
        insert: function that makes the database's INSERT with replacement.
    """

    def __init__(self, connection: Connection, insert: Insert) -> None:
        super().__init__(connection)
        self._insert = insert

    def save_job(self, job: JobRecord) -> None:
        """Insert or replace the job."""
        key, values = self._key(job.job_id), values_of(job)
        # SQLite checks all rows that refer to a key in SET, even if its value stays.
        del values["job_id"]
        if key:
            self._update_job(key, values)
        else:
            key = secrets.token_hex(_KEY_BYTES)
            values |= {"job_id": key, "name": job.job_id, "is_deleted": False}
            self._connection.execute(JOBS.insert().values(values))
            self._keys[job.job_id] = key

    def save_ranks(self, ranks: Iterable[RankRecord]) -> None:
        """Insert or replace ranks; the last of several entries for a rank counts."""
        self._upsert(RANKS, [self._of_job(values_of(rank)) for rank in ranks])

    def save_profile(self, job_id: str, profile: StageProfile) -> None:
        """Store this profile in place of any older; keep it for its conditions, if recorded."""
        document, under = json.dumps(profile_document(profile)), profiled_conditions_text(profile)
        values = {
            "job_id": job_id,
            "document": document,
            "energy_scope": profile.energy_scope,
            "conditions": under,
            "digest": profile_digest(profile),
        }
        self._upsert(PROFILES, [self._of_job(values)])
        if under is not None:
            self._keep_profile(job_id, str(profile.conditions), document)

    def _keep_profile(self, job_id: str, conditions: str, document: str) -> None:
        """Keep the job's newest profile of these conditions, of MAX_KEPT_PROFILES at most."""
        of_job = self._of(KEPT_PROFILES, job_id)
        newest = select(func.max(KEPT_PROFILES.c.number)).where(of_job)
        number = (self._connection.execute(newest).scalar() or 0) + 1
        digest = hashlib.sha256(conditions.encode()).hexdigest()
        kept = {"job_id": job_id, "digest": digest, "number": number, "document": document}
        self._upsert(KEPT_PROFILES, [self._of_job(kept)])
        numbers = select(KEPT_PROFILES.c.number).where(of_job)
        oldest = numbers.order_by(KEPT_PROFILES.c.number.desc()).limit(MAX_KEPT_PROFILES)
        is_old = KEPT_PROFILES.c.number.not_in(oldest.scalar_subquery())
        self._connection.execute(KEPT_PROFILES.delete().where(of_job, is_old))

    def delete_profile(self, job_id: str) -> None:
        """Delete the job's profile; nothing if it has none."""
        self._connection.execute(PROFILES.delete().where(self._of(PROFILES, job_id)))

    def add_plan(self, plan: PlanRecord) -> None:
        """Insert a version: the newest plus one, or 1; any other raises ValueError."""
        query = select(func.max(PLANS.c.version)).where(self._of(PLANS, plan.job_id))
        expected = (self._connection.execute(query).scalar() or 0) + 1
        if plan.version != expected:
            raise ValueError(f"the next plan version is {expected}, not {plan.version}")
        self._connection.execute(PLANS.insert().values(self._of_job(plan_values(plan))))

    def name_first_step(self, job_id: str, version: int, first_step: int) -> None:
        """Set the first step of a version; ValueError if it is unknown or already has one."""
        unnamed = (PLANS.c.version == version, PLANS.c.first_step.is_(None))
        changed = self._connection.execute(
            PLANS.update().where(self._of(PLANS, job_id), *unnamed).values(first_step=first_step)
        )
        if changed.rowcount != 1:
            raise ValueError(f"plan version {version} of {job_id} is unknown or already named")

    def save_steps(
        self, steps: tuple[StepRecord, ...], *, stored_at: datetime | None = None, run: int = 0
    ) -> None:
        """Insert measured steps, replacing those of the same job, rank and step.

        Args:
            steps: none of them pruned.
            stored_at: time of the post; None: now.
            run: number of times that the job has started over.
        """
        unix_s = int(time.time() if stored_at is None else stored_at.timestamp())
        rows = [self._of_job({**vars(step), "stored_at": unix_s, "run": run}) for step in steps]
        self._upsert(STEPS, rows)

    def prune_steps(self, job_id: str, end_step: int, *, num_stage_steps: int) -> None:
        """Replace the ranks' measurements of steps before `end_step` by totals.

        `list_step_totals` stays the same, and `list_stage_totals` for the newest
        `num_stage_steps` pruned steps. Details of the pruned steps are deleted.
        """
        of_steps = self._in_range(STEPS, job_id, 0, end_step)
        key = self._key(job_id)
        versions = self._versions_of_steps(*of_steps)
        pruned = [
            {**row, "job_id": key, "versions": versions_value(versions[row["step"]])}
            for row in self._connection.execute(step_totals(*of_steps)).mappings()
        ]
        if not pruned:
            return
        parts: dict[tuple[int, int], int] = defaultdict(int)
        stages: list[dict[str, Any]] = []
        for row in self._connection.execute(stage_totals(*of_steps)).mappings():
            place = (row["step"], row["stage"])
            parts[place] += 1
            stages.append({**row, "job_id": key, "part": parts[place]})
        self._connection.execute(PRUNED_STEPS.insert(), pruned)
        self._connection.execute(PRUNED_STAGES.insert(), stages)
        self._connection.execute(STEPS.delete().where(*of_steps))
        self.drop_step_details(job_id, end_step)
        self._drop_old_stages(job_id, num_stage_steps)

    def forget_pruned(self, job_id: str, steps: Collection[int]) -> None:
        """Delete the totals of pruned steps."""
        for some in some_at_a_time(steps):
            for table in (PRUNED_STAGES, PRUNED_STEPS):
                among = table.c.step.in_(some)
                self._connection.execute(table.delete().where(self._of(table, job_id), among))

    def save_fold(self, job_id: str, place: FoldPlace, fold: StepFold | None = None) -> None:
        """Store the place that the totals of the job's steps have reached.

        Args:
            job_id: ID of the job.
            place: the place.
            fold: totals that have changed; None: none have.
        """
        self._upsert(FOLDS, [self._of_job({**vars(place), "job_id": job_id})])
        if fold is not None:
            self._upsert(FOLD_PARTS, [self._of_job(row) for row in fold_rows(job_id, fold)])

    def merge_moments(self, job_id: str, moments: Iterable[StageMoments]) -> None:
        """Add these moments to the job's stored ones."""
        merged = merged_moments(moments)
        stored = select(MOMENTS).where(self._of(MOMENTS, job_id))
        for version in {version for version, _ in merged}:
            stages = [stage for of_version, stage in merged if of_version == version]
            query = stored.where(MOMENTS.c.plan_version == version, MOMENTS.c.stage.in_(stages))
            for row in self._connection.execute(query):
                known = moments_of(row)
                merged[known.place] = known.merged(merged[known.place])
        rows = [self._of_job(moments_values(job_id, each)) for each in merged.values()]
        self._upsert(MOMENTS, rows)

    def save_step_details(self, details: tuple[StepDetail, ...]) -> None:
        """Insert details of steps, replacing those of the same job, rank and step."""
        self._upsert(STEP_DETAILS, [self._of_job(detail_values(detail)) for detail in details])

    def drop_step_details(self, job_id: str, before_step: int) -> None:
        """Delete the details of the job's steps before this step."""
        older = self._in_range(STEP_DETAILS, job_id, 0, before_step)
        self._connection.execute(STEP_DETAILS.delete().where(*older))

    def save_loop_state(self, loop_state: JobLoopState) -> None:
        """Store the loop state, replacing that of its job."""
        self._upsert(LOOP_STATES, [self._of_job(loop_state_values(loop_state))])

    def touch_ranks(self, job_id: str, ranks: Collection[int], seen_at: datetime) -> None:
        """Store the time of the last call of these ranks of a job; unknown ranks are ignored."""
        seen = RANKS.update().values(last_seen_at=seen_at.isoformat())
        for some in some_at_a_time(ranks):
            self._connection.execute(seen.where(self._of(RANKS, job_id), RANKS.c.rank.in_(some)))

    def note_clocks(self, job_id: str, no_clocks: Mapping[int, str | None]) -> None:
        """Store by rank of a job why it sets no clocks, None: it does; ignore unknown ranks."""
        self._note(job_id, RANKS.c.no_clocks, no_clocks)

    def note_conditions(self, job_id: str, conditions: Mapping[int, GpuConditions]) -> bool:
        """Store by rank of a job the conditions of its GPU; return whether any are news."""
        texts = {rank: str(found) for rank, found in conditions.items()}
        return self._note(job_id, RANKS.c.conditions, texts) > 0

    def _note(self, job_id: str, column: Column[Any], values: Mapping[int, str | None]) -> int:
        """Store a column of some ranks by rank; return the number of those that have changed."""
        num_changed = 0
        for value in set(values.values()):
            is_news = (self._of(RANKS, job_id), column.is_distinct_from(value))
            for some in some_at_a_time([rank for rank, of in values.items() if of == value]):
                known = RANKS.update().where(*is_news, RANKS.c.rank.in_(some))
                num_changed += self._connection.execute(known.values({column: value})).rowcount
        return num_changed

    def rename_job(self, job_id: str, new_job_id: str) -> None:
        """Rename a job and everything that belongs to it; ValueError if the name is taken."""
        key = self._key(job_id)
        if not key or self.find_job(new_job_id) is not None:
            raise ValueError(f"job {job_id} is unknown, or job {new_job_id} exists")
        self._update_job(key, {"name": new_job_id})
        del self._keys[job_id]

    def delete_job(self, job_id: str) -> None:
        """Delete a job and everything that belongs to it; nothing if it does not exist.

        The job's data, which may be millions of rows, is removed by `JobStore.forget_some`.
        """
        known = JOBS.update().where(JOBS.c.name == job_id)
        self._connection.execute(known.values(name=None, is_deleted=True))
        self._keys.pop(job_id, None)

    def save_token(self, token: TokenRecord) -> None:
        """Insert or replace the token."""
        self._upsert(TOKENS, [values_of(token)])

    def delete_token(self, token_id: str) -> None:
        """Delete a token; nothing if it does not exist."""
        self._connection.execute(TOKENS.delete().where(TOKENS.c.token_id == token_id))

    def _update_job(self, key: str, values: dict[str, Any]) -> None:
        self._connection.execute(JOBS.update().where(JOBS.c.job_id == key).values(values))

    def _of_job(self, values: dict[str, Any]) -> dict[str, Any]:
        """Return the values of a row, which refers to its job by key.

        Raises:
            ValueError: the job does not exist.
        """
        key = self._key(values["job_id"])
        if not key:
            raise ValueError(f"no job {values['job_id']}")
        return {**values, "job_id": key}

    def _drop_old_stages(self, job_id: str, num_steps: int) -> None:
        """Keep the stages of the newest pruned steps only."""
        steps = select(PRUNED_STEPS.c.step).where(self._of(PRUNED_STEPS, job_id))
        oldest_kept = steps.order_by(PRUNED_STEPS.c.step.desc()).offset(num_steps - 1).limit(1)
        oldest_step = self._connection.execute(oldest_kept).scalar_one_or_none()
        if oldest_step is not None:
            older = self._in_range(PRUNED_STAGES, job_id, 0, oldest_step)
            self._connection.execute(PRUNED_STAGES.delete().where(*older))

    def _upsert(self, table: Table, rows: list[dict[str, Any]]) -> None:
        if rows:
            self._connection.execute(_inserting(table, self._insert), rows)


@functools.cache
def _inserting(table: Table, insert: Insert) -> AnyInsert:
    """Return a cached INSERT of one row: building it costs more than running it."""
    return replacing(table, insert(table))


def replacing(table: Table, statement: AnyInsert) -> AnyInsert:
    """Return the statement as one that replaces existing rows."""
    keys = [column.name for column in table.primary_key]
    excluded = statement.excluded  # created by each access
    others = {
        column.name: excluded[column.name] for column in table.columns if column.name not in keys
    }
    return statement.on_conflict_do_update(index_elements=keys, set_=others)
