"""Stored state of a job's online profiling: ranks, probe plans, measurements."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from flyball_profiles.gpu_windows import GpuWindow
from flyball_server.jobs.probing.probing_setup import probe_setup, probed_versions, stage_steps
from flyball_server.jobs.records import (
    JobRecord,
    PlanRecord,
    RankRecord,
    StepRecord,
    ranks_text,
)
from flyball_server.jobs.registry.inspection import newest_plan, require_plan
from flyball_server.jobs.store.sql.job_reader import JobReader
from flyball_server.planning.probe_plan import ProbePlan
from flyball_server.profiling.observations import ProbedVersion, ProbeSetup, StageStep
from flyball_wire.messages import JobSpec, PlanVersion

# Number of newest steps that may still lack the last rank's measurement.
_LOOK_BACK_STEPS = 8
# Number of steps, beyond the cycle, that the other ranks may be ahead of a silent one, and the time
# that a version may be measured. Both must have passed: ranks post at most every 15 s, so at steps
# of 10 ms 200 of them say nothing.
PATIENCE_STEPS = 200
PATIENCE = timedelta(seconds=60)


@dataclass(frozen=True, kw_only=True)
class ProbingRecord:
    """Facts that decide the next move.

    Attributes:
        versions: probe plans, oldest first.
        observed: measurements of the stages from the first version's first step on.
        problem: reason why profiling cannot continue; None: no problem.
    """

    spec: JobSpec
    ranks: tuple[RankRecord, ...]
    versions: tuple[ProbedVersion, ...]
    observed: tuple[StageStep, ...]
    problem: str | None = None

    @property
    def first_step(self) -> int | None:
        """First step of the first version; None: not set yet."""
        return self.versions[0].first_step if self.versions else None

    @property
    def num_steps(self) -> int:
        """Number of steps read so far."""
        return len({step.step for step in self.observed})

    def setup(self, gpu_table: Callable[[str], GpuWindow]) -> ProbeSetup:
        """Return the setup of the profiling.

        Raises:
            InvalidFieldError, GpuTableError, PlanningError: the job cannot be profiled.
        """
        window = None if self.spec.gpu is None else gpu_table(self.spec.gpu)
        return probe_setup(self.spec, self.ranks, window)


def read_probing(reader: JobReader, job: JobRecord, now: datetime) -> ProbingRecord | None:
    """Return the record if there may be something to do; None: ranks or steps are pending."""
    ranks = reader.list_ranks(job.job_id)
    if len(ranks) < job.spec.num_expected_ranks:
        return None
    # Only the newest one, as long as it is being measured: they are large.
    newest = newest_plan(reader, job.job_id)
    problem = None
    has_started_over = _has_started_over(reader.list_versions(job.job_id)[-2:])
    if newest is not None and not (has_started_over or _is_measured(reader, newest, len(ranks))):
        problem = _silence(reader, newest, ranks, now)
        if problem is None:
            return None
    plans = _since_last_start(probe_plans(reader, job.job_id))
    return ProbingRecord(
        spec=job.spec,
        ranks=ranks,
        versions=probed_versions(plans),
        observed=_observed(reader, job.job_id, ranks, plans),
        problem=problem,
    )


def probe_plans(reader: JobReader, job_id: str) -> list[PlanRecord]:
    """Return the versions that measure the job since it was last planned, rising."""
    plans: list[PlanRecord] = []
    for entry in reversed(reader.list_versions(job_id)):
        record = require_plan(reader, job_id, entry.version)
        if not isinstance(record.plan, ProbePlan):
            break
        plans.append(record)
    return plans[::-1]


def is_never_planned(reader: JobReader, job_id: str) -> bool:
    """Return whether all that the job's ranks were ever given was to measure it."""
    return len(probe_plans(reader, job_id)) == len(reader.list_versions(job_id))


def _since_last_start(plans: list[PlanRecord]) -> list[PlanRecord]:
    """Return the versions since the run last started over at a lower step.

    Measuring starts again from there, beginning with the highest clocks: the run may have been on
    other machines before.
    """
    first = 0
    for number in range(1, len(plans)):
        if _has_started_over(plans[number - 1 : number + 1]):
            first = number
    since = plans[first:]
    return since if not first or _is_highest(since[0]) else since[1:]


def _has_started_over(two: Sequence[PlanRecord | PlanVersion]) -> bool:
    """Return whether the second of two versions holds from no later a step than the first."""
    match [entry.first_step for entry in two]:
        case [int(before), int(after)]:
            return after <= before
        case _:
            return False


def _is_highest(record: PlanRecord) -> bool:
    """Return whether each stage runs at one clock throughout, as the first version does."""
    plan = record.plan
    return isinstance(plan, ProbePlan) and all(
        len(set(of_stage)) == 1 for row in plan.cycle_mhz for of_stage in row
    )


def _is_measured(reader: JobReader, newest: PlanRecord, num_ranks: int) -> bool:
    """Return whether all ranks have posted the newest version's last step of a cycle, or later."""
    if newest.first_step is None:
        return False
    last_step = newest.first_step + newest.cycle_length - 1
    counts: dict[int, int] = {}
    for record in _newest_steps(reader, newest):
        counts[record.step] = counts.get(record.step, 0) + 1
    return any(step >= last_step and count >= num_ranks for step, count in counts.items())


def _silence(
    reader: JobReader, newest: PlanRecord, ranks: tuple[RankRecord, ...], now: datetime
) -> str | None:
    """Return which ranks post nothing while others have long passed the newest version's cycle."""
    newest_steps = _newest_steps(reader, newest)
    is_young = now - newest.created_at < PATIENCE
    if newest.first_step is None or not newest_steps or is_young:
        return None
    waited_for = newest_steps[-1].step - (newest.first_step + newest.cycle_length)
    if waited_for < PATIENCE_STEPS:
        return None
    silent = sorted({rank.rank for rank in ranks} - {record.rank for record in newest_steps})
    names = ranks_text(silent) if silent else "some rank"
    return f"{names} reported no step while others ran {waited_for} more"


def _newest_steps(reader: JobReader, newest: PlanRecord) -> tuple[StepRecord, ...]:
    """Return those of the newest steps that ran this version."""
    return tuple(
        record
        for record in reader.list_newest_steps(newest.job_id, _LOOK_BACK_STEPS)
        if record.plan_version == newest.version
    )


def _observed(
    reader: JobReader, job_id: str, ranks: tuple[RankRecord, ...], plans: list[PlanRecord]
) -> tuple[StageStep, ...]:
    first_step = plans[0].first_step if plans else None
    if first_step is None:
        return ()
    numbers = {plan.version for plan in plans}
    newest = reader.list_newest_steps(job_id, 1)
    steps = reader.list_steps(job_id, first_step, newest[-1].step + 1) if newest else ()
    details = reader.list_step_details(job_id, first_step)
    of_versions = [step for step in steps if step.plan_version in numbers]
    return stage_steps(probed_versions(plans), ranks, of_versions, details)
