"""A job store in this process's memory: for tests and for trying things out."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Collection, Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import Any

from flyball_profiles.stage_profile import StageProfile
from flyball_server.jobs.errors import StoreClosedError
from flyball_server.jobs.loop_state import JobLoopState
from flyball_server.jobs.records import (
    JobRecord,
    PlanRecord,
    RankRecord,
    Record,
    StageTotals,
    StepDetail,
    StepRecord,
    StepTotals,
    TokenRecord,
)
from flyball_server.jobs.store.contract import JobReader, JobWriter
from flyball_server.jobs.store.memory.local_coordination import LocalCoordination
from flyball_wire.messages import PlanVersion


@dataclass(frozen=True, kw_only=True)
class _Tables:
    """Frozen records in plain dicts; a transaction writes into copies of the dicts."""

    jobs: dict[str, JobRecord] = field(default_factory=dict[str, JobRecord])
    ranks: dict[tuple[str, int], RankRecord] = field(
        default_factory=dict[tuple[str, int], RankRecord]
    )
    profiles: dict[str, StageProfile] = field(default_factory=dict[str, StageProfile])
    plans: dict[tuple[str, int], PlanRecord] = field(
        default_factory=dict[tuple[str, int], PlanRecord]
    )
    steps: dict[tuple[str, int, int], StepRecord] = field(
        default_factory=dict[tuple[str, int, int], StepRecord]
    )
    details: dict[tuple[str, int, int], StepDetail] = field(
        default_factory=dict[tuple[str, int, int], StepDetail]
    )
    loop_states: dict[str, JobLoopState] = field(default_factory=dict[str, JobLoopState])
    tokens: dict[str, TokenRecord] = field(default_factory=dict[str, TokenRecord])

    def copied(self) -> _Tables:
        return _Tables(**{each.name: dict(getattr(self, each.name)) for each in fields(self)})


class MemoryJobStore(LocalCoordination):
    """The JobStore contract over dicts; what it holds ends with the object."""

    def __init__(self) -> None:
        super().__init__()
        self._write_lock = threading.Lock()
        self._tables = _Tables()
        self._is_open = False

    def open(self) -> None:
        """Make the store ready for use."""
        self._is_open = True

    def close(self) -> None:
        """Refuse further use until opened again."""
        self._is_open = False

    @contextmanager
    def reading(self) -> Generator[JobReader]:
        """A transaction that only reads."""
        self._check_open()
        yield _MemoryTransaction(self._tables)

    @contextmanager
    def writing(self, subject: str) -> Generator[JobWriter]:
        """A transaction that may change things; whatever the subject, one after another."""
        del subject
        self._check_open()
        with self._write_lock:
            changed = self._tables.copied()
            yield _MemoryTransaction(changed)
            self._tables = changed

    def _check_open(self) -> None:
        if not self._is_open:
            raise StoreClosedError


class _MemoryTransaction:
    """JobWriter over one set of tables."""

    def __init__(self, tables: _Tables) -> None:
        self._tables = tables

    def find_job(self, job_id: str) -> JobRecord | None:
        return self._tables.jobs.get(job_id)

    def count_jobs(self) -> int:
        return len(self._tables.jobs)

    def list_jobs(self) -> tuple[JobRecord, ...]:
        jobs = self._tables.jobs.values()
        return tuple(sorted(jobs, key=lambda job: (job.created_at, job.job_id)))

    def find_ranks(self, job_id: str, ranks: Collection[int]) -> tuple[RankRecord, ...]:
        found = (self._tables.ranks.get((job_id, rank)) for rank in sorted(set(ranks)))
        return tuple(rank for rank in found if rank is not None)

    def list_ranks(self, job_id: str) -> tuple[RankRecord, ...]:
        ranks = (rank for rank in self._tables.ranks.values() if rank.job_id == job_id)
        return tuple(sorted(ranks, key=lambda rank: rank.rank))

    def count_ranks_holding(self, job_id: str, version: int) -> int:
        return sum(rank.acknowledged_version == version for rank in self.list_ranks(job_id))

    def find_profile(self, job_id: str) -> StageProfile | None:
        return self._tables.profiles.get(job_id)

    def has_profile(self, job_id: str) -> bool:
        return job_id in self._tables.profiles

    def find_plan(self, job_id: str, version: int) -> PlanRecord | None:
        return self._tables.plans.get((job_id, version))

    def list_plans(self, job_id: str) -> tuple[PlanRecord, ...]:
        plans = (plan for plan in self._tables.plans.values() if plan.job_id == job_id)
        return tuple(sorted(plans, key=lambda plan: plan.version))

    def list_versions(self, job_id: str) -> tuple[PlanVersion, ...]:
        return tuple(
            PlanVersion(version=plan.version, first_step=plan.first_step)
            for plan in self.list_plans(job_id)
        )

    def list_newest_steps(self, job_id: str, num_steps: int) -> tuple[StepRecord, ...]:
        measured = [step for step in self._tables.steps.values() if step.job_id == job_id]
        newest = set(sorted({step.step for step in measured})[-num_steps:])
        chosen = (step for step in measured if step.step in newest)
        return tuple(sorted(chosen, key=lambda step: (step.step, step.rank)))

    def newest_step(
        self,
        job_id: str,
        *,
        version: int | None = None,
        after_step: int = -1,
        before_step: int | None = None,
    ) -> int | None:
        measured = (
            step.step
            for step in self._tables.steps.values()
            if step.job_id == job_id
            and version in (None, step.plan_version)
            and step.step > after_step
            and (before_step is None or step.step < before_step)
        )
        return max(measured, default=None)

    def list_steps(self, job_id: str, first_step: int, end_step: int) -> tuple[StepRecord, ...]:
        chosen = (
            step
            for step in self._tables.steps.values()
            if step.job_id == job_id and first_step <= step.step < end_step
        )
        return tuple(sorted(chosen, key=lambda step: (step.step, step.rank)))

    def list_step_totals(
        self, job_id: str, *, after_step: int, limit: int
    ) -> tuple[StepTotals, ...]:
        by_step: dict[int, list[StepRecord]] = defaultdict(list)
        for record in self._tables.steps.values():
            if record.job_id == job_id and record.step > after_step:
                by_step[record.step].append(record)
        return tuple(_totals(step, by_step[step]) for step in sorted(by_step)[:limit])

    def list_stage_totals(
        self, job_id: str, *, after_step: int, num_steps: int
    ) -> tuple[StageTotals, ...]:
        measured = [
            step
            for step in self._tables.steps.values()
            if step.job_id == job_id and step.step > after_step
        ]
        newest = set(sorted({step.step for step in measured})[-num_steps:])
        alike: dict[tuple[int, int, int | None], list[StepRecord]] = defaultdict(list)
        for record in measured:
            if record.step in newest:
                stage = self._tables.ranks[job_id, record.rank].stage
                alike[record.step, stage, record.plan_version].append(record)
        totals = (_stage_totals(stage, records) for (_, stage, _), records in alike.items())
        return tuple(sorted(totals, key=lambda each: each.place))

    def list_step_details(
        self, job_id: str, first_step: int, *, limit: int | None = None
    ) -> tuple[StepDetail, ...]:
        chosen = (
            detail
            for detail in self._tables.details.values()
            if detail.job_id == job_id and detail.step >= first_step
        )
        return tuple(sorted(chosen, key=lambda detail: (detail.step, detail.rank)))[:limit]

    def find_loop_state(self, job_id: str) -> JobLoopState:
        return self._tables.loop_states.get(job_id) or JobLoopState(job_id=job_id)

    def find_token(self, token_id: str) -> TokenRecord | None:
        return self._tables.tokens.get(token_id)

    def list_tokens(self) -> tuple[TokenRecord, ...]:
        tokens = self._tables.tokens.values()
        return tuple(sorted(tokens, key=lambda token: (token.created_at, token.token_id)))

    def save_job(self, job: JobRecord) -> None:
        self._tables.jobs[job.job_id] = job

    def save_ranks(self, ranks: Iterable[RankRecord]) -> None:
        for rank in ranks:
            self._check_job(rank.job_id)
            self._tables.ranks[rank.job_id, rank.rank] = rank

    def save_profile(self, job_id: str, profile: StageProfile) -> None:
        self._check_job(job_id)
        self._tables.profiles[job_id] = profile

    def delete_profile(self, job_id: str) -> None:
        self._tables.profiles.pop(job_id, None)

    def add_plan(self, plan: PlanRecord) -> None:
        self._check_job(plan.job_id)
        expected = len(self.list_versions(plan.job_id)) + 1
        if plan.version != expected:
            raise ValueError(f"the next plan version is {expected}, not {plan.version}")
        self._tables.plans[plan.job_id, plan.version] = plan

    def name_first_step(self, job_id: str, version: int, first_step: int) -> None:
        plan = self.find_plan(job_id, version)
        if plan is None or plan.first_step is not None:
            raise ValueError(f"plan version {version} of {job_id} is unknown or already named")
        self._tables.plans[job_id, version] = plan.evolve(first_step=first_step)

    def save_steps(self, steps: tuple[StepRecord, ...]) -> None:
        for step in steps:
            self._check_rank(step.job_id, step.rank)
            self._tables.steps[step.job_id, step.rank, step.step] = step

    def save_step_details(self, details: tuple[StepDetail, ...]) -> None:
        for detail in details:
            self._check_rank(detail.job_id, detail.rank)
            self._tables.details[detail.job_id, detail.rank, detail.step] = detail

    def drop_step_details(self, job_id: str, before_step: int) -> None:
        for key in [key for key in self._tables.details if key[0] == job_id]:
            if key[2] < before_step:
                del self._tables.details[key]

    def save_loop_state(self, loop_state: JobLoopState) -> None:
        self._check_job(loop_state.job_id)
        self._tables.loop_states[loop_state.job_id] = loop_state

    def touch_ranks(self, job_id: str, ranks: Collection[int], seen_at: datetime) -> None:
        for rank in self.find_ranks(job_id, ranks):
            self._tables.ranks[job_id, rank.rank] = rank.evolve(last_seen_at=seen_at)

    def rename_job(self, job_id: str, new_job_id: str) -> None:
        self._check_job(job_id)
        if new_job_id in self._tables.jobs:
            raise ValueError(f"there is a job {new_job_id}")
        for table, key, record in self._of_job(job_id):
            del table[key]
            new_key = new_job_id if isinstance(key, str) else (new_job_id, *key[1:])
            table[new_key] = (
                record.evolve(job_id=new_job_id) if isinstance(record, Record) else record
            )

    def delete_job(self, job_id: str) -> None:
        for table, key, _ in self._of_job(job_id):
            del table[key]

    def save_token(self, token: TokenRecord) -> None:
        self._tables.tokens[token.token_id] = token

    def delete_token(self, token_id: str) -> None:
        self._tables.tokens.pop(token_id, None)

    def _of_job(self, job_id: str) -> list[tuple[dict[Any, Any], Any, Any]]:
        """Table, key and record of all that belongs to a job, itself included."""
        tables = self._tables
        of_jobs: tuple[dict[Any, Any], ...] = (
            tables.jobs,
            tables.ranks,
            tables.profiles,
            tables.plans,
            tables.steps,
            tables.details,
            tables.loop_states,
        )
        return [
            (table, key, record)
            for table in of_jobs
            for key, record in table.items()
            if (key if isinstance(key, str) else key[0]) == job_id
        ]

    def _check_rank(self, job_id: str, rank: int) -> None:
        if (job_id, rank) not in self._tables.ranks:
            raise ValueError(f"no rank {rank} of job {job_id}")

    def _check_job(self, job_id: str) -> None:
        if job_id not in self._tables.jobs:
            raise ValueError(f"no job {job_id}")


def _stage_totals(stage: int, records: Sequence[StepRecord]) -> StageTotals:
    totals = _totals(records[0].step, records)
    clocks_mhz = [record.sm_clock_mhz for record in records if record.sm_clock_mhz is not None]
    return StageTotals(
        step=totals.step,
        stage=stage,
        plan_version=records[0].plan_version,
        num_ranks=totals.num_ranks,
        time_s=totals.time_s,
        energy_j=totals.energy_j,
        num_clock_misses=totals.num_clock_misses,
        num_power_capped=totals.num_power_capped,
        num_thermally_capped=totals.num_thermally_capped,
        num_with_clock=len(clocks_mhz),
        sm_clock_mhz=sum(clocks_mhz) / len(clocks_mhz) if clocks_mhz else None,
    )


def _totals(step: int, records: Sequence[StepRecord]) -> StepTotals:
    versions = [record.plan_version for record in records if record.plan_version is not None]
    energies_j = [record.energy_j for record in records if record.energy_j is not None]
    return StepTotals(
        step=step,
        num_ranks=len(records),
        lowest_version=min(versions, default=None),
        newest_version=max(versions, default=None),
        num_with_plan=len(versions),
        time_s=max(record.time_s for record in records),
        energy_j=sum(energies_j) if len(energies_j) == len(records) else None,
        num_unplanned=sum(record.num_unplanned for record in records),
        num_clock_misses=sum(record.num_clock_misses for record in records),
        num_power_capped=sum(record.num_power_capped for record in records),
        num_thermally_capped=sum(record.num_thermally_capped for record in records),
    )
