"""Input of a job's online profiling: the order that runs, the clocks, the measurements."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby

from flyball_profiles.gpu_windows import GpuWindow
from flyball_profiles.stage_profile import InstructionKind, OperatingPoint, StageProfile
from flyball_server.jobs.errors import InvalidFieldError
from flyball_server.jobs.records import PlanRecord, RankRecord, StepDetail, StepRecord
from flyball_server.planning.errors import PlanningError
from flyball_server.planning.probe_plan import ProbePlan
from flyball_server.planning.schedules import make_schedule
from flyball_server.planning.schedules._base import Schedule, ScheduleContext
from flyball_server.planning.schedules.explicit import explicit_order
from flyball_server.profiling.observations import (
    InstructionTimes,
    ProbedVersion,
    ProbeSetup,
    StageStep,
)
from flyball_server.profiling.profiling_result import ProfilingResult
from flyball_wire import online_profiling
from flyball_wire.messages import JobSpec

_WHOLE = (InstructionKind.FORWARD, InstructionKind.BACKWARD)
_SPLIT = (
    InstructionKind.FORWARD,
    InstructionKind.BACKWARD_INPUT,
    InstructionKind.BACKWARD_WEIGHT,
)
_RECOMPUTED = (InstructionKind.FORWARD, InstructionKind.RECOMPUTE, InstructionKind.BACKWARD)
_STEP = (InstructionKind.STEP,)
# Schedules by name without a number of chunks in the name.
_TWO_CHUNKS = frozenset({"zbv", "dualpipev"})


def probing_schedule(spec: JobSpec) -> Schedule:
    """Return the order that the ranks run while the job is profiled.

    Raises:
        InvalidFieldError: the order is unknown before there is a profile.
    """
    name = spec.schedule
    num_chunks = 2 if name in _TWO_CHUNKS else 1
    order = None if spec.order is None else explicit_order(spec.order, spec.virtual_stages)
    for kinds in (_WHOLE, _SPLIT, _RECOMPUTED, _STEP):
        context = ScheduleContext(
            profile=_flat_profile(spec.num_stages, kinds, num_chunks),
            num_microbatches=spec.num_microbatches,
            checkpoint=spec.checkpoint,
            order=order,
            extra_forwards=spec.extra_forwards,
        )
        try:
            schedule = make_schedule(name, context)
        except PlanningError:
            continue
        if not schedule.is_periodic:
            return schedule
    raise InvalidFieldError(
        "profiling",
        f"online does not support schedule {name}: its number of chunks, or the end of its"
        " iterations, is unknown before there is a profile; give the order as schedule explicit, or"
        " measure the profile with `flyball profile run`",
    )


def probe_setup(spec: JobSpec, ranks: Sequence[RankRecord], window: GpuWindow | None) -> ProbeSetup:
    """Return the setup for profiling the job.

    Args:
        spec: specification of the job.
        ranks: all ranks of the job.
        window: entry of the GPU table, if the job names a GPU: clocks below it are not probed.

    Raises:
        InvalidFieldError: a stage has no rank, or its GPUs share fewer than two clocks.
    """
    by_stage = [[rank for rank in ranks if rank.stage == stage] for stage in range(spec.num_stages)]
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
        if isinstance(record.plan, ProbePlan)
    )


def stage_steps(
    versions: Sequence[ProbedVersion],
    ranks: Sequence[RankRecord],
    steps: Sequence[StepRecord],
    details: Sequence[StepDetail],
) -> tuple[StageStep, ...]:
    """Return each stage in each step that all ranks have posted, by step, then stage.

    Args:
        versions: probed versions.
        ranks: all ranks of the job.
        steps: measured steps, by step, then rank.
        details: details of these steps.
    """
    stage_of = {rank.rank: rank.stage for rank in ranks}
    by_version = {version.version: version for version in versions}
    by_place = {(detail.step, detail.rank): detail for detail in details}
    merged: list[StageStep] = []
    for step, group in groupby(steps, key=lambda record: record.step):
        records = [record for record in group if record.rank in stage_of]
        if len(records) < len(ranks):
            continue
        time_s = max(record.time_s for record in records)
        by_stage: dict[int, list[tuple[StepRecord, StepDetail | None]]] = {}
        for record in records:
            pair = (record, by_place.get((step, record.rank)))
            by_stage.setdefault(stage_of[record.rank], []).append(pair)
        ran = {record.plan_version for record in records}
        version = by_version.get(ran.pop() or 0) if len(ran) == 1 else None
        merged.extend(
            _stage_step(stage, by_stage[stage], time_s, version=version)
            for stage in sorted(by_stage)
        )
    return tuple(merged)


def stored_result(result: ProfilingResult) -> online_profiling.ProfilingResult:
    """Return the result of a finished profiling for the job's loop state."""
    return online_profiling.ProfilingResult(
        state=online_profiling.ProfilingState.FINISHED,
        num_steps=result.num_steps,
        points=result.points,
        blocking_power_w=(
            None if result.blocking_power_error_w is None else result.blocking_power_w
        ),
        blocking_power_error_w=result.blocking_power_error_w,
        largest_slowdown=result.cost.largest_slowdown,
        extra_time_s=result.cost.extra_time_s,
        extra_energy_j=result.cost.extra_energy_j,
    )


def _stage_step(
    stage: int,
    members: Sequence[tuple[StepRecord, StepDetail | None]],
    iteration_time_s: float,
    *,
    version: ProbedVersion | None,
) -> StageStep:
    """Return the totals of a stage's ranks; `version` is set if all ranks ran the same one."""
    records = [record for record, _ in members]
    energies_j = [record.energy_j for record in records if record.energy_j is not None]
    times = [_instruction_times(detail) for _, detail in members]
    return StageStep(
        stage=stage,
        step=records[0].step,
        version=records[0].plan_version,
        iteration_time_s=iteration_time_s,
        energy_j=sum(energies_j) if len(energies_j) == len(records) else None,
        instructions=max(times, key=_busy_s),
        is_clean=version is not None
        and all(times)
        and not any(record.num_unplanned or record.num_clock_misses for record in records),
    )


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
    shared: set[int] | None = None
    for rank in ranks:
        supported = set(rank.sm_clocks_mhz or ())
        shared = supported if shared is None else shared & supported
    if not shared:
        raise InvalidFieldError(
            "profiling", f"the ranks of stage {stage} have no SM clock in common that can be locked"
        )
    # Without a table: no frontier of a GPU measured so far is below half of the highest clock.
    lowest_mhz = max(shared) / 2 if window is None else window.filter_min_mhz
    highest_mhz = max(shared) if window is None else max(window.filter_max_mhz, lowest_mhz)
    clocks = tuple(
        sorted((mhz for mhz in shared if lowest_mhz <= mhz <= highest_mhz), reverse=True)
    )
    if len(clocks) < 2:
        raise InvalidFieldError(
            "profiling", f"the GPUs of stage {stage} have fewer than two clocks to choose from"
        )
    return clocks


def _flat_profile(
    num_stages: int, kinds: Sequence[InstructionKind], num_chunks: int
) -> StageProfile:
    """Return a profile of equal stages, for orders that depend on its shape only."""
    points: Mapping[tuple[int, InstructionKind], tuple[OperatingPoint, ...]] = {
        (stage, kind): tuple(
            OperatingPoint(frequency_mhz=mhz, time_s=1.0, energy_j=1.0) for mhz in (2, 1)
        )
        for stage in range(num_stages)
        for kind in kinds
    }
    num_ranks = (1,) * num_stages
    whole = StageProfile(points=points, num_ranks_per_stage=num_ranks)
    if num_chunks == 1:
        return whole
    return StageProfile(points=points, num_ranks_per_stage=num_ranks, chunks=(whole,) * num_chunks)
