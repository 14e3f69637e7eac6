"""Online profiling of a running job: its setup, its probe plans and the measurements so far."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import groupby

from flyball_pipeline.errors import PipelineError
from flyball_pipeline.instruction import InstructionKind, equal_stages
from flyball_pipeline.schedule import Schedule
from flyball_pipeline.schedules.explicit import explicit_order
from flyball_pipeline.schedules.inputs import ScheduleInputs
from flyball_pipeline.schedules.table import SCHEDULES, make_schedule
from flyball_profiles.gpu_windows import GpuWindow
from flyball_server.jobs.errors import InvalidFieldError
from flyball_server.jobs.records import JobRecord, PlanRecord, RankRecord, ranks_text
from flyball_server.jobs.step_records import StepDetail, StepRecord
from flyball_server.jobs.store.sql.job_reader import JobReader
from flyball_server.profiling.observations import (
    InstructionTimes,
    ProbedVersion,
    ProbeSetup,
    StageStep,
)
from flyball_server.profiling.worked_steps import WorkedRank, averaged, mean_work
from flyball_wire.measurements import MeasurementDetail
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
    def num_steps(self) -> int:
        """Number of steps read so far."""
        return len({step.step for step in self.observed})


def read_probing(reader: JobReader, job: JobRecord, now: datetime) -> ProbingRecord | None:
    """Return the record if there may be something to do; None: ranks or steps are pending."""
    ranks = reader.list_ranks(job.job_id)
    if len(ranks) < job.spec.num_expected_ranks:
        return None
    # Only the newest plan, as long as it is being measured: they are large.
    newest = reader.newest_plan(job.job_id)
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
    """Return the versions that measure the job since it last ran others, rising."""
    plans: list[PlanRecord] = []
    for entry in reversed(reader.list_versions(job_id)):
        record = reader.require_plan(job_id, entry.version)
        if not record.plan.is_probe or record.measurement_detail == MeasurementDetail.TOTALS:
            break
        plans.append(record)
    return plans[::-1]


def is_never_planned(reader: JobReader, job_id: str) -> bool:
    """Return whether all that the job's ranks were ever given was to measure it."""
    versions = reader.list_versions(job_id)
    return all(reader.require_plan(job_id, entry.version).plan.is_probe for entry in versions)


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
    before, after = (entry.first_step for entry in two) if len(two) == 2 else (None, None)
    return before is not None and after is not None and after <= before


def _is_highest(record: PlanRecord) -> bool:
    """Return whether each stage runs at one clock throughout, as the first version does."""
    plan = record.plan
    return plan.is_probe and all(
        len(set(of_stage)) == 1 for row in plan.cycle_mhz for of_stage in row
    )


def _is_measured(reader: JobReader, newest: PlanRecord, num_ranks: int) -> bool:
    """Return whether all ranks have posted the newest version's last step of a cycle, or later."""
    if newest.first_step is None:
        return False
    last_step = newest.first_step + newest.cycle_length - 1
    counts = Counter(record.step for record in _newest_steps(reader, newest))
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


def probing_schedule(spec: JobSpec) -> Schedule:
    """Return the order that the ranks run while the job is profiled.

    Raises:
        InvalidFieldError: the order is unknown before there is a profile.
    """
    entry = SCHEDULES[spec.schedule]
    if entry.num_chunks is None or entry.weight_versions is not None:
        raise InvalidFieldError(
            "profiling",
            f"online does not support schedule {spec.schedule}: its number of chunks, or the end of"
            " its iterations, is unknown before there is a profile; give the order as schedule"
            " explicit, or measure the profile with `flyball profile run`",
        )
    inputs = ScheduleInputs(
        shape=equal_stages(
            spec.num_stages,
            spec.num_microbatches,
            kinds=entry.kinds,
            num_chunks=entry.num_chunks,
        ),
        checkpoint=spec.checkpoint,
        order=None if spec.order is None else explicit_order(spec.order, spec.virtual_stages),
        extra_forwards=spec.extra_forwards,
    )
    try:
        return make_schedule(spec.schedule, inputs)
    except PipelineError as error:
        raise InvalidFieldError(error.field, error.message) from None


def probe_setup(record: ProbingRecord, gpu_table: Callable[[str], GpuWindow]) -> ProbeSetup:
    """Return the setup for profiling the job; clocks below those of the GPU table are not probed.

    Raises:
        GpuTableError, PlanningError: the job cannot be profiled.
        InvalidFieldError: a stage has no rank, or its GPUs share fewer than two clocks.
    """
    spec = record.spec
    window = None if spec.gpu is None else gpu_table(spec.gpu)
    by_stage = [
        [rank for rank in record.ranks if rank.stage == stage] for stage in range(spec.num_stages)
    ]
    power_w = spec.blocking_power_w
    if power_w is None and window is not None and window.blocking_power_w is not None:
        power_w = (window.blocking_power_w,)
    if power_w is not None and len(power_w) == 1:
        power_w *= spec.num_stages
    return ProbeSetup(
        schedule=probing_schedule(spec),
        clocks_mhz=tuple(
            _clocks_mhz(stage, of_stage, window) for stage, of_stage in enumerate(by_stage)
        ),
        num_ranks=tuple(len(of_stage) for of_stage in by_stage),
        slowdown_cap=spec.profiling_slowdown,
        blocking_power_w=power_w,
    )


def probed_versions(plans: Iterable[PlanRecord]) -> tuple[ProbedVersion, ...]:
    """Return the probe plans among a job's plan versions."""
    return tuple(
        ProbedVersion(version=record.version, first_step=record.first_step, plan=record.plan)
        for record in plans
        if record.plan.is_probe
    )


def stage_steps(
    versions: Sequence[ProbedVersion],
    ranks: Sequence[RankRecord],
    steps: Sequence[StepRecord],
    details: Sequence[StepDetail],
) -> tuple[StageStep, ...]:
    """Return each stage in each step that all ranks have posted, by step, then stage.

    The measurements in `steps` are ordered by step, then rank. Where work is announced, and steps
    at the highest clocks show how much longer it makes instructions, these are counted in units of
    the mean work.
    """
    stage_of = {rank.rank: rank.stage for rank in ranks}
    by_version = {version.version: version for version in versions}
    by_place = {(detail.step, detail.rank): detail for detail in details}
    counted = _counted_by_work(versions, stage_of, details)
    merged: list[StageStep] = []
    for step, group in groupby(steps, key=lambda record: record.step):
        records = [record for record in group if record.rank in stage_of]
        if len(records) < len(ranks):
            continue
        ran = {record.plan_version for record in records}
        is_probed = len(ran) == 1 and not ran.isdisjoint(by_version)
        work = _work_over_mean(
            [
                (_instruction_times(by_place.get(place)), times)
                for record in records
                for place in [(step, record.rank)]
                if (times := counted.get(place)) is not None
            ]
        )
        by_stage: dict[int, list[StepRecord]] = {}
        for record in records:
            by_stage.setdefault(stage_of[record.rank], []).append(record)
        merged.extend(
            _stage_step(
                stage,
                of_stage,
                [_instruction_times(by_place.get((step, record.rank))) for record in of_stage],
                [counted.get((step, record.rank)) for record in of_stage] if counted else (),
                iteration_time_s=max(record.time_s for record in records),
                is_probed=is_probed,
                work=work,
            )
            for stage, of_stage in sorted(by_stage.items())
        )
    return tuple(merged)


def _stage_step(
    stage: int,
    records: Sequence[StepRecord],
    times: Sequence[tuple[InstructionTimes, ...]],
    counted: Sequence[tuple[InstructionTimes, ...] | None],
    *,
    iteration_time_s: float,
    is_probed: bool,
    work: float,
) -> StageStep:
    """Return the totals of a stage's ranks, given the instruction times of each.

    Args:
        stage: the stage.
        records: its ranks' totals.
        times: their instructions.
        counted: the same in units of the mean work, None where that is not known; empty: no work
            is announced.
        iteration_time_s: time of the step, s.
        is_probed: the step ran a version that measures.
        work: as in StageStep.
    """
    known = [count for count in counted if count is not None]
    energies_j = [record.energy_j for record in records if record.energy_j is not None]
    return StageStep(
        stage=stage,
        step=records[0].step,
        version=records[0].plan_version,
        iteration_time_s=iteration_time_s,
        energy_j=sum(energies_j) if len(energies_j) == len(records) else None,
        work=work,
        instructions=averaged(known) if known else max(times, key=_busy_s),
        is_clean=is_probed
        and len(known) == len(counted)
        and all(times)
        # Power and heat limit the highest clocks too: so does the GPU when left alone.
        and not any(record.num_unplanned or record.num_lost_clocks for record in records),
    )


def _work_over_mean(
    ranks: Sequence[tuple[tuple[InstructionTimes, ...], tuple[InstructionTimes, ...]]],
) -> float:
    """Return the greatest ratio of a rank's times to those of the mean work; 1: not known.

    Args:
        ranks: instructions of ranks in a step, and the same in units of the mean work.
    """
    return max(
        (
            _busy_s(times)
            / sum(raw.count * mean.mean_s for raw, mean in zip(times, of_mean, strict=True))
            for times, of_mean in ranks
        ),
        default=1.0,
    )


def _counted_by_work(
    versions: Sequence[ProbedVersion], stage_of: Mapping[int, int], details: Sequence[StepDetail]
) -> dict[tuple[int, int], tuple[InstructionTimes, ...]]:
    """Return instructions in units of the mean work, by step and rank; empty: not known."""
    worked = {
        (detail.step, detail.rank): WorkedRank(
            stage=stage_of[detail.rank],
            work=detail.work,
            instructions=_instruction_times(detail),
        )
        for detail in details
        if detail.work is not None and detail.rank in stage_of
    }
    if not worked or not versions:
        return {}
    # The first version runs entirely at the highest clocks.
    highest_row = versions[0].plan.cycle_mhz[0]
    highest_mhz = {stage: max(row, default=0) for stage, row in enumerate(highest_row)}
    mean = mean_work(list(worked.values()), highest_mhz)
    if mean is None:
        return {}
    counted = {place: mean.counted(rank) for place, rank in worked.items()}
    return {place: times for place, times in counted.items() if times is not None}


def _instruction_times(detail: StepDetail | None) -> tuple[InstructionTimes, ...]:
    known = set(map(str, InstructionKind))
    rows = () if detail is None else detail.by_clock or ()
    return tuple(
        InstructionTimes(
            kind=InstructionKind(kind),
            chunk=chunk,
            sm_clock_mhz=clock_mhz,
            count=count,
            mean_s=mean_s,
            variance_s2=variance_s2,
        )
        for kind, chunk, clock_mhz, count, mean_s, variance_s2 in rows
        if kind in known
    )


def _busy_s(times: Sequence[InstructionTimes]) -> float:
    return sum(entry.count * entry.mean_s for entry in times)


def _clocks_mhz(
    stage: int, ranks: Sequence[RankRecord], window: GpuWindow | None
) -> tuple[int, ...]:
    """Return the clocks that all ranks of the stage support within the window, MHz, falling."""
    supported = [set(rank.sm_clocks_mhz or ()) for rank in ranks]
    shared = set[int].intersection(*supported) if supported else set[int]()
    if not shared:
        raise InvalidFieldError(
            "profiling", f"the ranks of stage {stage} have no SM clock in common that can be locked"
        )
    # Without a table: no frontier of a GPU measured so far is below half of the highest clock.
    lowest_mhz = max(shared) / 2 if window is None else window.filter_min_mhz
    highest_mhz = max(shared) if window is None else max(window.filter_max_mhz, lowest_mhz)
    within = (mhz for mhz in shared if lowest_mhz <= mhz <= highest_mhz)
    clocks = tuple(sorted(within, reverse=True))
    if len(clocks) < 2:
        raise InvalidFieldError(
            "profiling", f"the GPUs of stage {stage} have fewer than two clocks to choose from"
        )
    return clocks
