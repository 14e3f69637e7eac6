"""Transaction of the job store in SQL, for any of the databases."""

# ruff: noqa: D102 - documented in JobWriter

from __future__ import annotations

import functools
import json
import secrets
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from datetime import datetime
from typing import Any, TypeVar

from sqlalchemy import Connection, Select, Table, func, select, tuple_
from sqlalchemy.dialects import postgresql, sqlite

from flyball_profiles.stage_profile import StageProfile
from flyball_server.jobs.errors import UnknownJobError
from flyball_server.jobs.loop_state import JobLoopState
from flyball_server.jobs.moments import StageMoments, StepMoments
from flyball_server.jobs.records import (
    JobRecord,
    PlanRecord,
    RankPlace,
    RankRecord,
    StageTotals,
    StepDetail,
    StepRecord,
    StepTotals,
    TokenRecord,
)
from flyball_server.jobs.store.sql.sql_rows import (
    RecordT,
    detail_of,
    detail_values,
    job_values,
    loop_state_of,
    loop_state_values,
    moments_of,
    moments_values,
    plan_of,
    plan_values,
    profile_document,
    profile_from_text,
    record_of,
    step_moments_of,
    values_of,
)
from flyball_server.jobs.store.sql.sql_steps import (
    forget_pruned,
    newest_pruned,
    newest_step,
    oldest_steps,
    prune,
    stage_totals,
    step_totals,
)
from flyball_server.jobs.store.sql.sql_tables import (
    JOBS,
    LOOP_STATES,
    MOMENTS,
    PLANS,
    PROFILES,
    PRUNED_STEPS,
    RANKS,
    STEP_DETAILS,
    STEPS,
    TOKENS,
    step_moments,
)
from flyball_wire.messages import JobStep, PlanVersion

# Makes an INSERT with `on_conflict_do_update`, for which SQL has no common syntax.
AnyInsert = sqlite.Insert | postgresql.Insert
Insert = Callable[[Table], AnyInsert]

# Length of a job's key in bytes, made at random so that planners that share a database need not
# coordinate.
_KEY_BYTES = 8
# Databases limit the number of values in a statement.
_MOST_IN_A_QUERY = 10_000


class SqlTransaction:
    """JobWriter over one connection inside a transaction.

    Args:
        connection: inside a transaction.
        insert: function that makes the database's INSERT with replacement.
    """

    def __init__(self, connection: Connection, insert: Insert) -> None:
        self._connection = connection
        self._insert = insert
        # Keys of jobs by name.
        self._keys: dict[str, str] = {}
        self._has_forgotten = False

    @property
    def has_forgotten(self) -> bool:
        """Return whether there are rows of deleted jobs, for `sql_forgetting`."""
        return self._has_forgotten

    def find_job(self, job_id: str) -> JobRecord | None:
        row = self._connection.execute(select(JOBS).where(JOBS.c.name == job_id)).one_or_none()
        if row is None:
            return None
        self._keys[job_id] = row.job_id
        return record_of(JobRecord, row, job_id=row.name)

    def count_jobs(self) -> int:
        named = select(func.count()).select_from(JOBS).where(JOBS.c.name.is_not(None))
        return self._connection.execute(named).scalar_one()

    def list_jobs(self) -> tuple[JobRecord, ...]:
        # Not ordered by the database, whose order of texts may depend on its language.
        named = select(JOBS).where(JOBS.c.name.is_not(None))
        jobs = [
            record_of(JobRecord, row, job_id=row.name) for row in self._connection.execute(named)
        ]
        return tuple(sorted(jobs, key=lambda job: (job.created_at, job.job_id)))

    def find_ranks(self, job_id: str, ranks: Collection[int]) -> tuple[RankRecord, ...]:
        of_job = select(RANKS).where(RANKS.c.job_id == self._key(job_id)).order_by(RANKS.c.rank)
        rows = (
            row
            for some in _some_at_a_time(ranks)
            for row in self._connection.execute(of_job.where(RANKS.c.rank.in_(some)))
        )
        return tuple(record_of(RankRecord, row, job_id=job_id) for row in rows)

    def find_ranks_at(self, job_id: str, places: Collection[RankPlace]) -> tuple[RankRecord, ...]:
        of_job = select(RANKS).where(RANKS.c.job_id == self._key(job_id))
        place = tuple_(RANKS.c.stage, RANKS.c.dp_rank, RANKS.c.tp_rank, RANKS.c.cp_rank)
        found = [
            record_of(RankRecord, row, job_id=job_id)
            for some in _some_at_a_time(places, num_values=4)
            for row in self._connection.execute(of_job.where(place.in_(some)))
        ]
        return tuple(sorted(found, key=lambda rank: rank.rank))

    def list_ranks(self, job_id: str) -> tuple[RankRecord, ...]:
        query = select(RANKS).where(RANKS.c.job_id == self._key(job_id)).order_by(RANKS.c.rank)
        return self._records(RankRecord, query, job_id=job_id)

    def count_ranks_holding(self, job_id: str, version: int) -> int:
        query = select(func.count()).where(
            RANKS.c.job_id == self._key(job_id), RANKS.c.acknowledged_version == version
        )
        return self._connection.execute(query).scalar_one()

    def find_profile(self, job_id: str) -> StageProfile | None:
        query = select(PROFILES.c.document).where(PROFILES.c.job_id == self._key(job_id))
        document = self._connection.execute(query).scalar_one_or_none()
        return None if document is None else profile_from_text(document)

    def has_profile(self, job_id: str) -> bool:
        query = select(PROFILES.c.job_id).where(PROFILES.c.job_id == self._key(job_id))
        return self._connection.execute(query).scalar_one_or_none() is not None

    def find_plan(self, job_id: str, version: int) -> PlanRecord | None:
        query = select(PLANS).where(PLANS.c.job_id == self._key(job_id), PLANS.c.version == version)
        row = self._connection.execute(query).one_or_none()
        return None if row is None else plan_of(row, job_id)

    def list_plans(self, job_id: str) -> tuple[PlanRecord, ...]:
        query = select(PLANS).where(PLANS.c.job_id == self._key(job_id)).order_by(PLANS.c.version)
        return tuple(plan_of(row, job_id) for row in self._connection.execute(query))

    def list_versions(self, job_id: str) -> tuple[PlanVersion, ...]:
        query = (
            select(PLANS.c.version, PLANS.c.first_step)
            .where(PLANS.c.job_id == self._key(job_id))
            .order_by(PLANS.c.version)
        )
        rows = self._connection.execute(query)
        return tuple(PlanVersion(version=row.version, first_step=row.first_step) for row in rows)

    def list_plan_times(self, job_id: str) -> dict[int, datetime]:
        query = select(PLANS.c.version, PLANS.c.created_at).where(
            PLANS.c.job_id == self._key(job_id)
        )
        rows = self._connection.execute(query)
        return {row.version: datetime.fromisoformat(row.created_at) for row in rows}

    def list_newest_steps(self, job_id: str, num_steps: int) -> tuple[StepRecord, ...]:
        of_job = STEPS.c.job_id == self._key(job_id)
        newest = (
            select(STEPS.c.step).where(of_job).distinct().order_by(STEPS.c.step.desc())
        ).limit(num_steps)
        query = (
            select(STEPS)
            .where(
                of_job, STEPS.c.step >= select(func.min(newest.subquery().c.step)).scalar_subquery()
            )
            .order_by(STEPS.c.step, STEPS.c.rank)
        )
        return self._records(StepRecord, query, job_id=job_id)

    def newest_step(
        self,
        job_id: str,
        *,
        version: int | None = None,
        after_step: int = -1,
        before_step: int | None = None,
    ) -> int | None:
        return newest_step(
            self._connection,
            self._key(job_id),
            version=version,
            after_step=after_step,
            before_step=before_step,
        )

    def list_steps(self, job_id: str, first_step: int, end_step: int) -> tuple[StepRecord, ...]:
        query = (
            select(STEPS)
            .where(
                STEPS.c.job_id == self._key(job_id),
                STEPS.c.step >= first_step,
                STEPS.c.step < end_step,
            )
            .order_by(STEPS.c.step, STEPS.c.rank)
        )
        return self._records(StepRecord, query, job_id=job_id)

    def list_step_totals(
        self, job_id: str, *, after_step: int, limit: int
    ) -> tuple[StepTotals, ...]:
        return step_totals(self._connection, self._key(job_id), after_step=after_step, limit=limit)

    def list_stage_totals(
        self, job_id: str, *, after_step: int, num_steps: int, before_step: int | None = None
    ) -> tuple[StageTotals, ...]:
        return stage_totals(
            self._connection,
            self._key(job_id),
            after_step=after_step,
            before_step=before_step,
            num_steps=num_steps,
        )

    def list_newest_pruned(self, job_id: str, num_steps: int) -> tuple[JobStep, ...]:
        return newest_pruned(self._connection, self._key(job_id), num_steps)

    def find_pruned(self, job_id: str, steps: Collection[int]) -> dict[int, int]:
        of_job = select(PRUNED_STEPS.c.step, PRUNED_STEPS.c.newest_version).where(
            PRUNED_STEPS.c.job_id == self._key(job_id)
        )
        return {
            row.step: row.newest_version or 0
            for some in _some_at_a_time(steps)
            for row in self._connection.execute(of_job.where(PRUNED_STEPS.c.step.in_(some)))
        }

    def list_oldest_steps(self, job_id: str, limit: int) -> tuple[tuple[int, int, int], ...]:
        return oldest_steps(self._connection, self._key(job_id), limit=limit)

    def find_step_versions(
        self, job_id: str, ranks: Collection[int], first_step: int, end_step: int
    ) -> dict[tuple[int, int], int | None]:
        of_job = select(STEPS.c.rank, STEPS.c.step, STEPS.c.plan_version).where(
            STEPS.c.job_id == self._key(job_id),
            STEPS.c.step >= first_step,
            STEPS.c.step < end_step,
        )
        return {
            (row.rank, row.step): row.plan_version
            for some in _some_at_a_time(ranks)
            for row in self._connection.execute(of_job.where(STEPS.c.rank.in_(some)))
        }

    def list_step_moments(
        self, job_id: str, first_step: int, end_step: int | None = None
    ) -> tuple[StepMoments, ...]:
        conditions = [STEPS.c.job_id == self._key(job_id), STEPS.c.step >= first_step]
        if end_step is not None:
            conditions.append(STEPS.c.step < end_step)
        rows = self._connection.execute(step_moments(*conditions))
        moments = [step_moments_of(row) for row in rows]
        return tuple(sorted(moments, key=lambda one: (one.step, one.stage, one.plan_version or 0)))

    def list_moments(self, job_id: str) -> tuple[StageMoments, ...]:
        rows = self._connection.execute(
            select(MOMENTS).where(MOMENTS.c.job_id == self._key(job_id))
        )
        return tuple(sorted(map(moments_of, rows), key=lambda each: each.place))

    def list_step_details(
        self, job_id: str, first_step: int, *, limit: int | None = None
    ) -> tuple[StepDetail, ...]:
        query = (
            select(STEP_DETAILS)
            .where(STEP_DETAILS.c.job_id == self._key(job_id), STEP_DETAILS.c.step >= first_step)
            .order_by(STEP_DETAILS.c.step, STEP_DETAILS.c.rank)
            .limit(limit)
        )
        return tuple(detail_of(row, job_id) for row in self._connection.execute(query))

    def find_loop_state(self, job_id: str) -> JobLoopState:
        query = select(LOOP_STATES.c.document).where(LOOP_STATES.c.job_id == self._key(job_id))
        document = self._connection.execute(query).scalar_one_or_none()
        return JobLoopState(job_id=job_id) if document is None else loop_state_of(document, job_id)

    def find_token(self, token_id: str) -> TokenRecord | None:
        query = select(TOKENS).where(TOKENS.c.token_id == token_id)
        row = self._connection.execute(query).one_or_none()
        return None if row is None else record_of(TokenRecord, row)

    def list_tokens(self) -> tuple[TokenRecord, ...]:
        tokens = [record_of(TokenRecord, row) for row in self._connection.execute(select(TOKENS))]
        return tuple(sorted(tokens, key=lambda token: (token.created_at, token.token_id)))

    def save_job(self, job: JobRecord) -> None:
        key = self._key(job.job_id)
        values = job_values(job)
        if key:
            self._update_job(key, job.job_id, values)
        else:
            key = secrets.token_hex(_KEY_BYTES)
            values |= {"job_id": key, "name": job.job_id, "is_deleted": False}
            self._connection.execute(JOBS.insert().values(values))
            self._keys[job.job_id] = key

    def save_ranks(self, ranks: Iterable[RankRecord]) -> None:
        self._upsert(RANKS, [self._of_job(values_of(rank)) for rank in ranks])

    def save_profile(self, job_id: str, profile: StageProfile) -> None:
        document = json.dumps(profile_document(profile))
        self._upsert(PROFILES, [self._of_job({"job_id": job_id, "document": document})])

    def delete_profile(self, job_id: str) -> None:
        self._connection.execute(PROFILES.delete().where(PROFILES.c.job_id == self._key(job_id)))

    def add_plan(self, plan: PlanRecord) -> None:
        query = select(func.max(PLANS.c.version)).where(PLANS.c.job_id == self._key(plan.job_id))
        expected = (self._connection.execute(query).scalar() or 0) + 1
        if plan.version != expected:
            raise ValueError(f"the next plan version is {expected}, not {plan.version}")
        self._connection.execute(PLANS.insert().values(self._of_job(plan_values(plan))))

    def name_first_step(self, job_id: str, version: int, first_step: int) -> None:
        unnamed = (
            PLANS.c.job_id == self._key(job_id),
            PLANS.c.version == version,
            PLANS.c.first_step.is_(None),
        )
        changed = self._connection.execute(
            PLANS.update().where(*unnamed).values(first_step=first_step)
        )
        if changed.rowcount != 1:
            raise ValueError(f"plan version {version} of {job_id} is unknown or already named")

    def save_steps(
        self, steps: tuple[StepRecord, ...], *, stored_at: datetime | None = None
    ) -> None:
        unix_s = int(time.time() if stored_at is None else stored_at.timestamp())
        rows = [self._of_job({**vars(step), "stored_at": unix_s}) for step in steps]
        self._upsert(STEPS, rows)

    def prune_steps(self, job_id: str, end_step: int, *, num_stage_steps: int) -> None:
        key = self._key(job_id)
        prune(self._connection, key, end_step=end_step, num_stage_steps=num_stage_steps)

    def forget_pruned(self, job_id: str, steps: Collection[int]) -> None:
        for some in _some_at_a_time(steps):
            forget_pruned(self._connection, self._key(job_id), some)

    def merge_moments(self, job_id: str, moments: Iterable[StageMoments]) -> None:
        merged: dict[tuple[int, int], StageMoments] = {}
        for each in moments:
            known = merged.get(each.place)
            merged[each.place] = each if known is None else known.merged(each)
        stored = select(MOMENTS).where(MOMENTS.c.job_id == self._key(job_id))
        for version in {version for version, _ in merged}:
            stages = [stage for of_version, stage in merged if of_version == version]
            query = stored.where(MOMENTS.c.plan_version == version, MOMENTS.c.stage.in_(stages))
            for row in self._connection.execute(query):
                known = moments_of(row)
                merged[known.place] = known.merged(merged[known.place])
        rows = [self._of_job(moments_values(job_id, each)) for each in merged.values()]
        self._upsert(MOMENTS, rows)

    def save_step_details(self, details: tuple[StepDetail, ...]) -> None:
        self._upsert(STEP_DETAILS, [self._of_job(detail_values(each)) for each in details])

    def drop_step_details(self, job_id: str, before_step: int) -> None:
        self._connection.execute(
            STEP_DETAILS.delete().where(
                STEP_DETAILS.c.job_id == self._key(job_id), STEP_DETAILS.c.step < before_step
            )
        )

    def save_loop_state(self, loop_state: JobLoopState) -> None:
        self._upsert(LOOP_STATES, [self._of_job(loop_state_values(loop_state))])

    def touch_ranks(self, job_id: str, ranks: Collection[int], seen_at: datetime) -> None:
        seen = RANKS.update().values(last_seen_at=seen_at.isoformat())
        for some in _some_at_a_time(ranks):
            self._connection.execute(
                seen.where(RANKS.c.job_id == self._key(job_id), RANKS.c.rank.in_(some))
            )

    def rename_job(self, job_id: str, new_job_id: str) -> None:
        key = self._key(job_id)
        if not key or self.find_job(new_job_id) is not None:
            raise ValueError(f"job {job_id} is unknown, or job {new_job_id} exists")
        self._update_job(key, job_id, {"name": new_job_id})
        del self._keys[job_id]

    def delete_job(self, job_id: str) -> None:
        # The job's data may be millions of rows: they are removed in the background.
        known = JOBS.update().where(JOBS.c.name == job_id)
        self._connection.execute(known.values(name=None, is_deleted=True))
        self._keys.pop(job_id, None)
        self._has_forgotten = True

    def save_token(self, token: TokenRecord) -> None:
        self._upsert(TOKENS, [values_of(token)])

    def delete_token(self, token_id: str) -> None:
        self._connection.execute(TOKENS.delete().where(TOKENS.c.token_id == token_id))

    def _key(self, job_id: str) -> str:
        """Return the key of the rows of the job of this name; empty if the job does not exist."""
        if job_id not in self._keys:
            query = select(JOBS.c.job_id).where(JOBS.c.name == job_id)
            key: str | None = self._connection.execute(query).scalar_one_or_none()
            if key is None:
                return ""
            self._keys[job_id] = key
        return self._keys[job_id]

    def _update_job(self, key: str, job_id: str, values: dict[str, Any]) -> None:
        """Change a job that was read by this name in this transaction.

        Raises:
            UnknownJobError: a transaction of another subject has deleted the job since.
        """
        known = JOBS.update().where(JOBS.c.job_id == key, JOBS.c.name == job_id)
        if self._connection.execute(known.values(values)).rowcount != 1:
            raise UnknownJobError(job_id=job_id)

    def _of_job(self, values: dict[str, Any]) -> dict[str, Any]:
        """Return the values of a row, which refers to its job by key.

        Raises:
            ValueError: the job does not exist.
        """
        key = self._key(values["job_id"])
        if not key:
            raise ValueError(f"no job {values['job_id']}")
        return {**values, "job_id": key}

    def _records(
        self, kind: type[RecordT], query: Select[Any], **given: object
    ) -> tuple[RecordT, ...]:
        """Return the records of the rows that a query selects."""
        return tuple(record_of(kind, row, **given) for row in self._connection.execute(query))

    def _upsert(self, table: Table, rows: list[dict[str, Any]]) -> None:
        if rows:
            self._connection.execute(_inserting(table, self._insert), rows)


_Key = TypeVar("_Key", int, RankPlace)


def _some_at_a_time(keys: Collection[_Key], *, num_values: int = 1) -> Iterator[list[_Key]]:
    """Yield sorted keys in groups that a statement accepts."""
    rising, most = sorted(set(keys)), _MOST_IN_A_QUERY // num_values
    for start in range(0, len(rising), most):
        yield rising[start : start + most]


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
