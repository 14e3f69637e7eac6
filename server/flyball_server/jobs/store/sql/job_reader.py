"""Reader inside one transaction of a job store, on any of the databases."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import fields
from datetime import datetime
from functools import cache

from sqlalchemy import Column, Select, bindparam, func, select, tuple_

from flyball_profiles.stage_profile import EnergyScope, StageProfile
from flyball_server.jobs.conditions.changes import ProfiledConditions
from flyball_server.jobs.errors import UnknownJobError, UnknownPlanError
from flyball_server.jobs.loop_state import JobLoopState
from flyball_server.jobs.records import (
    JobRecord,
    NewestVersion,
    PlanRecord,
    RankPlace,
    RankRecord,
    TokenRecord,
)
from flyball_server.jobs.store.sql.sql_rows import (
    loop_state_of,
    plan_of,
    profile_from_text,
    profiled_conditions_of,
    record_of,
)
from flyball_server.jobs.store.sql.sql_tables import (
    JOBS,
    KEPT_PROFILES,
    LOOP_STATES,
    PLANS,
    PROFILES,
    RANKS,
    TOKENS,
)
from flyball_server.jobs.store.sql.step_reader import StepReader, some_at_a_time
from flyball_wire.messages import PlanVersion

# Read in nearly every transaction. Building such a statement takes twice as long as running it.
_JOB_OF_NAME = select(JOBS).where(JOBS.c.name == bindparam("name"))
_RANKS_OF_KEY = select(RANKS).where(RANKS.c.job_id == bindparam("key")).order_by(RANKS.c.rank)
_NEWEST_VERSION_OF_KEY = (
    select(*(PLANS.c[field.name] for field in fields(NewestVersion)))
    .where(PLANS.c.job_id == bindparam("key"))
    .order_by(PLANS.c.version.desc())
    .limit(1)
)


@cache
def _value_of_key(column: Column[str]) -> Select[str]:
    """Return the query of a column of the job's only row in the column's table."""
    return select(column).where(column.table.c.job_id == bindparam("key"))


class JobReader(StepReader):
    """Reader inside one transaction, which reads a snapshot.

    Args:
        connection: inside a transaction.
    """

    def find_job(self, job_id: str) -> JobRecord | None:
        """Return the job, or None."""
        row = self._connection.execute(_JOB_OF_NAME, {"name": job_id}).one_or_none()
        if row is None:
            return None
        self._keys[job_id] = row.job_id
        return record_of(JobRecord, row, job_id=row.name)

    def require_job(self, job_id: str) -> JobRecord:
        """Return the job.

        Raises:
            UnknownJobError: the job does not exist.
        """
        job = self.find_job(job_id)
        if job is None:
            raise UnknownJobError(job_id=job_id)
        return job

    def count_jobs(self) -> int:
        """Return the number of jobs."""
        named = select(func.count()).select_from(JOBS).where(JOBS.c.name.is_not(None))
        return self._connection.execute(named).scalar_one()

    def list_jobs(self) -> tuple[JobRecord, ...]:
        """Return all jobs in the order of their creation, then of their names."""
        # Not ordered by the database, whose order of texts may depend on its language.
        named = select(JOBS).where(JOBS.c.name.is_not(None))
        rows = self._connection.execute(named)
        jobs = [record_of(JobRecord, row, job_id=row.name) for row in rows]
        return tuple(sorted(jobs, key=lambda job: (job.created_at, job.job_id)))

    def find_ranks(self, job_id: str, ranks: Collection[int]) -> tuple[RankRecord, ...]:
        """Return the job's ranks with these numbers, by number; unknown ones are left out."""
        of_job = select(RANKS).where(self._of(RANKS, job_id)).order_by(RANKS.c.rank)
        return tuple(
            rank
            for some in some_at_a_time(ranks)
            for rank in self._records(RankRecord, of_job.where(RANKS.c.rank.in_(some)), job_id)
        )

    def find_ranks_at(self, job_id: str, places: Collection[RankPlace]) -> tuple[RankRecord, ...]:
        """Return the job's ranks that have one of these places, by number."""
        of_job = select(RANKS).where(self._of(RANKS, job_id))
        place = tuple_(RANKS.c.stage, RANKS.c.dp_rank, RANKS.c.tp_rank, RANKS.c.cp_rank)
        found = [
            rank
            for some in some_at_a_time(places, num_values=4)
            for rank in self._records(RankRecord, of_job.where(place.in_(some)), job_id)
        ]
        return tuple(sorted(found, key=lambda rank: rank.rank))

    def list_ranks(self, job_id: str) -> tuple[RankRecord, ...]:
        """Return the job's ranks by number."""
        rows = self._connection.execute(_RANKS_OF_KEY, {"key": self._key(job_id)})
        return tuple(record_of(RankRecord, row, job_id=job_id) for row in rows)

    def count_ranks_holding(self, job_id: str, version: int) -> int:
        """Return the number of the job's ranks that acknowledged exactly this plan version last."""
        query = select(func.count()).where(
            self._of(RANKS, job_id), RANKS.c.acknowledged_version == version
        )
        return self._connection.execute(query).scalar_one()

    def find_profile(self, job_id: str) -> StageProfile | None:
        """Return the job's newest profile, or None."""
        document = self._value(PROFILES.c.document, job_id)
        return None if document is None else profile_from_text(document)

    def profile_scope(self, job_id: str) -> EnergyScope | None:
        """Return what the energies of the job's profile count; None: unknown, or no profile."""
        scope = self._value(PROFILES.c.energy_scope, job_id)
        return None if scope is None else EnergyScope(scope)

    def profiled_conditions(self, job_id: str) -> ProfiledConditions | None:
        """Return the conditions that the job's profile was measured under; None: not recorded.

        While a job is profiled online they are those of the measurement.
        """
        query = select(PROFILES.c.conditions).where(self._of(PROFILES, job_id))
        row = self._connection.execute(query).one_or_none()
        if row is None:
            return ProfiledConditions.of_probing(self.find_loop_state(job_id).probed_under)
        return None if row.conditions is None else profiled_conditions_of(row.conditions)

    def kept_profiles(self, job_id: str) -> tuple[StageProfile, ...]:
        """Return the newest profile of the job measured under each conditions, newest first."""
        query = select(KEPT_PROFILES.c.document).where(self._of(KEPT_PROFILES, job_id))
        rows = self._connection.execute(query.order_by(KEPT_PROFILES.c.number.desc()))
        return tuple(profile_from_text(row.document) for row in rows)

    def has_profile(self, job_id: str) -> bool:
        """Return whether the job has a profile; quickly found out, however large it is."""
        return self._value(PROFILES.c.job_id, job_id) is not None

    def profile_digest(self, job_id: str) -> str | None:
        """Return the digest of the job's profile; None: no profile."""
        return self._value(PROFILES.c.digest, job_id)

    def find_plan(self, job_id: str, version: int) -> PlanRecord | None:
        """Return one version of the job's plan, or None."""
        query = select(PLANS).where(self._of(PLANS, job_id), PLANS.c.version == version)
        row = self._connection.execute(query).one_or_none()
        return None if row is None else plan_of(row, job_id)

    def require_plan(self, job_id: str, version: int) -> PlanRecord:
        """Return the version of the job's plan.

        Raises:
            UnknownPlanError: the version does not exist.
        """
        plan = self.find_plan(job_id, version)
        if plan is None:
            raise UnknownPlanError(job_id=job_id, version=version)
        return plan

    def newest_plan(self, job_id: str) -> PlanRecord | None:
        """Return the newest version of the job's plan; None: no version."""
        newest = self.newest_version(job_id)
        return None if newest is None else self.require_plan(job_id, newest.version)

    def list_plans(self, job_id: str) -> tuple[PlanRecord, ...]:
        """Return all versions of the job's plan, rising."""
        query = select(PLANS).where(self._of(PLANS, job_id)).order_by(PLANS.c.version)
        return tuple(plan_of(row, job_id) for row in self._connection.execute(query))

    def list_versions(self, job_id: str) -> tuple[PlanVersion, ...]:
        """Return all versions of the job's plan, rising, without the plans."""
        query = select(PLANS.c.version, PLANS.c.first_step).where(self._of(PLANS, job_id))
        rows = self._connection.execute(query.order_by(PLANS.c.version))
        return tuple(PlanVersion(version=row.version, first_step=row.first_step) for row in rows)

    def newest_version(self, job_id: str) -> NewestVersion | None:
        """Return the newest version of the job's plan, without the plan; None: no version."""
        key = {"key": self._key(job_id)}
        row = self._connection.execute(_NEWEST_VERSION_OF_KEY, key).one_or_none()
        return None if row is None else record_of(NewestVersion, row)

    def list_plan_times(self, job_id: str) -> dict[int, datetime]:
        """Return the creation time of each version of the job's plan."""
        query = select(PLANS.c.version, PLANS.c.created_at).where(self._of(PLANS, job_id))
        rows = self._connection.execute(query)
        return {row.version: datetime.fromisoformat(row.created_at) for row in rows}

    def find_loop_state(self, job_id: str) -> JobLoopState:
        """Return the job's loop state; the default if none was ever saved."""
        document = self._value(LOOP_STATES.c.document, job_id)
        return JobLoopState(job_id=job_id) if document is None else loop_state_of(document, job_id)

    def find_token(self, token_id: str) -> TokenRecord | None:
        """Return the token by its public part, or None."""
        tokens = self._records(TokenRecord, select(TOKENS).where(TOKENS.c.token_id == token_id))
        return tokens[0] if tokens else None

    def list_tokens(self) -> tuple[TokenRecord, ...]:
        """Return all tokens in the order of their creation, then of their public parts."""
        tokens = self._records(TokenRecord, select(TOKENS))
        return tuple(sorted(tokens, key=lambda token: (token.created_at, token.token_id)))

    def _value(self, column: Column[str], job_id: str) -> str | None:
        """Return the column of the job's only row in its table; None: no row, or NULL."""
        row = self._connection.execute(_value_of_key(column), {"key": self._key(job_id)})
        return row.scalar_one_or_none()
