"""The job store on SQL: one SQLite file, which outlives the planner."""

from __future__ import annotations

import json
from collections.abc import Collection, Generator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, Table, func, select
from sqlalchemy.dialects.sqlite import insert

from flyball_profiles.stage_profile import StageProfile
from flyball_server.jobs.control import JobControl
from flyball_server.jobs.errors import StoreClosedError
from flyball_server.jobs.records import (
    ActivationRecord,
    JobRecord,
    PlanRecord,
    RankRecord,
    StepDetail,
    StepRecord,
    StepTotals,
)
from flyball_server.jobs.store import JobReader, JobWriter
from flyball_server.jobs.stores.local_coordination import LocalCoordination
from flyball_server.jobs.stores.profile_document import profile_document, profile_from_document
from flyball_server.jobs.stores.sql_migrations import migrate
from flyball_server.jobs.stores.sql_rows import (
    control_of,
    control_values,
    detail_of,
    detail_values,
    job_of,
    job_values,
    plan_of,
    plan_values,
    rank_of,
    rank_values,
    step_of,
    token_of,
    token_values,
    totals_of,
)
from flyball_server.jobs.stores.sql_tables import (
    CONTROLS,
    JOBS,
    PLANS,
    PROFILES,
    RANKS,
    STEP_DETAILS,
    STEP_TOTALS,
    STEPS,
    TABLES_OF_JOBS,
    TOKENS,
)
from flyball_server.jobs.stores.sqlite_engine import (
    check_is_sqlite,
    make_sqlite_engine,
    sqlite_transaction,
    store_error,
    use_write_ahead_log,
)
from flyball_server.jobs.token_record import TokenRecord


class SqlJobStore(LocalCoordination):
    """The JobStore contract over a SQLite file.

    Args:
        file: made by `open`, with its folder, if it is not there.
    """

    def __init__(self, file: Path) -> None:
        super().__init__()
        self._file = file
        self._engine: Engine | None = None

    def open(self) -> None:
        """Make the file or bring it to the newest schema.

        Raises:
            StoreError: it cannot be used; which one says why.
        """
        if self._engine is not None:
            return
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise store_error(error, self._file) from error
        check_is_sqlite(self._file)
        engine = make_sqlite_engine(self._file)
        try:
            with sqlite_transaction(engine, file=self._file, writes=True) as connection:
                migrate(connection, location=str(self._file))
            # Only now is it known to be ours to change.
            use_write_ahead_log(engine, file=self._file)
        except BaseException:
            engine.dispose()
            raise
        self._engine = engine

    def close(self) -> None:
        """Close the file."""
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.dispose()

    @contextmanager
    def reading(self) -> Generator[JobReader]:
        """A transaction that only reads."""
        with self._transaction(writes=False) as transaction:
            yield transaction

    @contextmanager
    def writing(self, subject: str) -> Generator[JobWriter]:
        """A transaction that may change things; whatever the subject, one after another."""
        del subject
        with self._transaction(writes=True) as transaction:
            yield transaction

    @contextmanager
    def _transaction(self, *, writes: bool) -> Generator[_SqlTransaction]:
        if self._engine is None:
            raise StoreClosedError
        with sqlite_transaction(self._engine, file=self._file, writes=writes) as connection:
            yield _SqlTransaction(connection)


class _SqlTransaction:
    """JobWriter over one connection inside a transaction."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def find_job(self, job_id: str) -> JobRecord | None:
        row = self._connection.execute(select(JOBS).where(JOBS.c.job_id == job_id)).one_or_none()
        return None if row is None else job_of(row)

    def list_jobs(self) -> tuple[JobRecord, ...]:
        query = select(JOBS).order_by(JOBS.c.created_at, JOBS.c.job_id)
        return tuple(job_of(row) for row in self._connection.execute(query))

    def find_rank(self, job_id: str, rank: int) -> RankRecord | None:
        query = select(RANKS).where(RANKS.c.job_id == job_id, RANKS.c.rank == rank)
        row = self._connection.execute(query).one_or_none()
        return None if row is None else rank_of(row)

    def list_ranks(self, job_id: str) -> tuple[RankRecord, ...]:
        query = select(RANKS).where(RANKS.c.job_id == job_id).order_by(RANKS.c.rank)
        return tuple(rank_of(row) for row in self._connection.execute(query))

    def count_ranks_holding(self, job_id: str, version: int) -> int:
        query = select(func.count()).where(
            RANKS.c.job_id == job_id, RANKS.c.acknowledged_version == version
        )
        return self._connection.execute(query).scalar_one()

    def find_profile(self, job_id: str) -> StageProfile | None:
        query = select(PROFILES.c.document).where(PROFILES.c.job_id == job_id)
        document = self._connection.execute(query).scalar_one_or_none()
        return None if document is None else profile_from_document(json.loads(document))

    def find_plan(self, job_id: str, version: int) -> PlanRecord | None:
        query = select(PLANS).where(PLANS.c.job_id == job_id, PLANS.c.version == version)
        row = self._connection.execute(query).one_or_none()
        return None if row is None else plan_of(row)

    def list_plans(self, job_id: str) -> tuple[PlanRecord, ...]:
        query = select(PLANS).where(PLANS.c.job_id == job_id).order_by(PLANS.c.version)
        return tuple(plan_of(row) for row in self._connection.execute(query))

    def list_activations(self, job_id: str) -> tuple[ActivationRecord, ...]:
        query = (
            select(PLANS.c.version, PLANS.c.first_step)
            .where(PLANS.c.job_id == job_id)
            .order_by(PLANS.c.version)
        )
        rows = self._connection.execute(query)
        return tuple(
            ActivationRecord(version=row.version, first_step=row.first_step) for row in rows
        )

    def list_newest_steps(self, job_id: str, num_steps: int) -> tuple[StepRecord, ...]:
        of_job = STEPS.c.job_id == job_id
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
        return tuple(step_of(row) for row in self._connection.execute(query))

    def newest_step(
        self,
        job_id: str,
        *,
        version: int | None = None,
        after_step: int = -1,
        before_step: int | None = None,
    ) -> int | None:
        # Not max(): where versions count, that would go through all of the job's steps.
        query = select(STEPS.c.step).where(STEPS.c.job_id == job_id, STEPS.c.step > after_step)
        if version is not None:
            query = query.where(STEPS.c.plan_version == version)
        if before_step is not None:
            query = query.where(STEPS.c.step < before_step)
        newest = query.order_by(STEPS.c.step.desc()).limit(1)
        return self._connection.execute(newest).scalar_one_or_none()

    def list_steps(self, job_id: str, first_step: int, end_step: int) -> tuple[StepRecord, ...]:
        query = (
            select(STEPS)
            .where(STEPS.c.job_id == job_id, STEPS.c.step >= first_step, STEPS.c.step < end_step)
            .order_by(STEPS.c.step, STEPS.c.rank)
        )
        return tuple(step_of(row) for row in self._connection.execute(query))

    def list_step_totals(
        self, job_id: str, *, after_step: int, limit: int
    ) -> tuple[StepTotals, ...]:
        query = (
            select(*STEP_TOTALS)
            .where(STEPS.c.job_id == job_id, STEPS.c.step > after_step)
            .group_by(STEPS.c.step)
            .order_by(STEPS.c.step)
            .limit(limit)
        )
        return tuple(totals_of(row) for row in self._connection.execute(query))

    def list_step_details(
        self, job_id: str, first_step: int, *, limit: int | None = None
    ) -> tuple[StepDetail, ...]:
        query = (
            select(STEP_DETAILS)
            .where(STEP_DETAILS.c.job_id == job_id, STEP_DETAILS.c.step >= first_step)
            .order_by(STEP_DETAILS.c.step, STEP_DETAILS.c.rank)
            .limit(limit)
        )
        return tuple(detail_of(row) for row in self._connection.execute(query))

    def find_control(self, job_id: str) -> JobControl:
        query = select(CONTROLS.c.document).where(CONTROLS.c.job_id == job_id)
        document = self._connection.execute(query).scalar_one_or_none()
        return JobControl(job_id=job_id) if document is None else control_of(document)

    def find_token(self, token_id: str) -> TokenRecord | None:
        query = select(TOKENS).where(TOKENS.c.token_id == token_id)
        row = self._connection.execute(query).one_or_none()
        return None if row is None else token_of(row)

    def list_tokens(self) -> tuple[TokenRecord, ...]:
        query = select(TOKENS).order_by(TOKENS.c.created_at, TOKENS.c.token_id)
        return tuple(token_of(row) for row in self._connection.execute(query))

    def save_job(self, job: JobRecord) -> None:
        self._upsert(JOBS, [job_values(job)])

    def save_rank(self, rank: RankRecord) -> None:
        self._upsert(RANKS, [rank_values(rank)])

    def save_profile(self, job_id: str, profile: StageProfile) -> None:
        document = json.dumps(profile_document(profile))
        self._upsert(PROFILES, [{"job_id": job_id, "document": document}])

    def delete_profile(self, job_id: str) -> None:
        self._connection.execute(PROFILES.delete().where(PROFILES.c.job_id == job_id))

    def add_plan(self, plan: PlanRecord) -> None:
        query = select(func.max(PLANS.c.version)).where(PLANS.c.job_id == plan.job_id)
        expected = (self._connection.execute(query).scalar() or 0) + 1
        if plan.version != expected:
            raise ValueError(f"the next plan version is {expected}, not {plan.version}")
        self._connection.execute(PLANS.insert().values(plan_values(plan)))

    def name_first_step(self, job_id: str, version: int, first_step: int) -> None:
        unnamed = (
            PLANS.c.job_id == job_id,
            PLANS.c.version == version,
            PLANS.c.first_step.is_(None),
        )
        changed = self._connection.execute(
            PLANS.update().where(*unnamed).values(first_step=first_step)
        )
        if changed.rowcount != 1:
            raise ValueError(f"plan version {version} of {job_id} is unknown or already named")

    def save_steps(self, steps: tuple[StepRecord, ...]) -> None:
        if steps:
            self._upsert(STEPS, [asdict(step) for step in steps])

    def save_step_details(self, details: tuple[StepDetail, ...]) -> None:
        if details:
            self._upsert(STEP_DETAILS, [detail_values(detail) for detail in details])

    def drop_step_details(self, job_id: str, before_step: int) -> None:
        self._connection.execute(
            STEP_DETAILS.delete().where(
                STEP_DETAILS.c.job_id == job_id, STEP_DETAILS.c.step < before_step
            )
        )

    def save_control(self, control: JobControl) -> None:
        self._upsert(CONTROLS, [control_values(control)])

    def touch_ranks(self, job_id: str, ranks: Collection[int], seen_at: datetime) -> None:
        self._connection.execute(
            RANKS.update()
            .where(RANKS.c.job_id == job_id, RANKS.c.rank.in_(ranks))
            .values(last_seen_at=seen_at.isoformat())
        )

    def rename_job(self, job_id: str, new_job_id: str) -> None:
        job = self.find_job(job_id)
        if job is None or self.find_job(new_job_id) is not None:
            raise ValueError(f"job {job_id} is unknown, or there is a job {new_job_id}")
        self.save_job(job.evolve(job_id=new_job_id))
        # What refers to a row goes after it: ranks before their steps.
        for rank in self.list_ranks(job_id):
            self.save_rank(rank.evolve(job_id=new_job_id))
        for table in (STEP_DETAILS, STEPS, CONTROLS, PLANS, PROFILES):
            self._connection.execute(
                table.update().where(table.c.job_id == job_id).values(job_id=new_job_id)
            )
        self.delete_job(job_id)

    def delete_job(self, job_id: str) -> None:
        for table in TABLES_OF_JOBS:
            self._connection.execute(table.delete().where(table.c.job_id == job_id))

    def save_token(self, token: TokenRecord) -> None:
        self._upsert(TOKENS, [token_values(token)])

    def delete_token(self, token_id: str) -> None:
        self._connection.execute(TOKENS.delete().where(TOKENS.c.token_id == token_id))

    def _upsert(self, table: Table, rows: list[dict[str, Any]]) -> None:
        statement = insert(table)
        keys = [column.name for column in table.primary_key]
        others = {
            column.name: statement.excluded[column.name]
            for column in table.columns
            if column.name not in keys
        }
        self._connection.execute(
            statement.on_conflict_do_update(index_elements=keys, set_=others), rows
        )
