"""Conversion of a job's specification to a plan request, and checks that need no profile."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from flyball_pipeline.dag import build_dag
from flyball_pipeline.errors import PipelineError
from flyball_pipeline.instruction import equal_stages
from flyball_pipeline.schedules.envpipe import ENVPIPE
from flyball_pipeline.schedules.explicit import EXPLICIT, explicit_order, schedule_of_order
from flyball_pipeline.schedules.inputs import ScheduleInputs
from flyball_pipeline.schedules.table import SCHEDULES, make_schedule
from flyball_profiles.clock_transitions import ClockTransitions
from flyball_profiles.gpu_windows import MEASURE_BLOCKING_POWER, GpuTableError, GpuWindow
from flyball_profiles.stage_profile import StageProfile
from flyball_server.jobs.bounds import check_count, check_length, check_text
from flyball_server.jobs.conditions.changes import keeps_plan
from flyball_server.jobs.errors import InvalidFieldError
from flyball_server.jobs.loop_state import JobLoopState, MeasuredDelays, PlanningInputs
from flyball_server.jobs.probing import probing_schedule
from flyball_server.planning.planner import PlanRequest
from flyball_server.planning.request_options import (
    DEFAULT_RECONFIGURE_GRANULARITY_MHZ,
    clock_transitions,
    limit_target,
    with_known_transitions,
)
from flyball_server.planning.schedule_choice import is_auto
from flyball_wire.messages import Adaptation, JobSpec
from flyball_wire.options import OptionError
from flyball_wire.plan_options import (
    DEFAULT_TARGET,
    PlanOptions,
    Policy,
    Reconfigure,
    check_together,
    plan_options,
)
from flyball_wire.targets import LIMIT_TARGET

MAX_OTHER_ORDERS = 16
GpuTable = Callable[[str], GpuWindow]


def check_spec(spec: JobSpec, gpu_table: GpuTable) -> None:
    """Check a specification whose fields were read one by one: all but what its profile decides.

    Raises:
        InvalidFieldError: a value is missing or for nothing, or a name is unknown.
    """
    if spec.num_expected_ranks < spec.num_stages:
        raise InvalidFieldError(
            "num_ranks",
            f"must be at least one for each of {spec.num_stages} stages, not {spec.num_ranks}",
        )
    _check_other_orders(spec)
    _check_schedule(spec)
    _check_adaptation(spec)
    window = _window(spec, gpu_table)
    if not spec.is_profiled_online:
        _blocking_power_w(spec, window, None)
    try:
        check_together(spec, spec.num_stages)
        with_known_transitions(plan_options(spec), window.transitions if window else None)
        _check_order(spec)
    except PipelineError as error:
        raise InvalidFieldError(error.field, error.message) from None
    if spec.is_profiled_online:
        probing_schedule(spec)


def _check_other_orders(spec: JobSpec) -> None:
    check_count("other_orders", len(spec.other_orders), most=MAX_OTHER_ORDERS)
    for other in spec.other_orders:
        check_text("other_orders", other.schedule)
        check_text("other_orders", other.line)


def _check_adaptation(spec: JobSpec) -> None:
    if spec.adaptation == Adaptation.RECONFIGURE and spec.policy != Policy.ENVELOPE:
        raise InvalidFieldError(
            "adaptation", f"reconfigure raises clocks of policy envelope, not of {spec.policy}"
        )
    if spec.adaptation == Adaptation.FRONTIER and spec.policy != Policy.FRONTIER:
        raise InvalidFieldError(
            "adaptation", f"frontier plans with policy frontier, not with {spec.policy}"
        )


def _check_order(spec: JobSpec) -> None:
    """Check that the order of the ranks is known and runs to its end."""
    if spec.schedule == ENVPIPE:
        if spec.extra_forwards is None:
            raise OptionError(
                f"must be given with schedule {ENVPIPE}, as its ranks run it",
                field="extra_forwards",
            )
        shape = equal_stages(spec.num_stages, spec.num_microbatches)
        make_schedule(ENVPIPE, ScheduleInputs(shape=shape, extra_forwards=spec.extra_forwards))
    if spec.schedule != EXPLICIT:
        return
    if spec.order is None:
        raise OptionError(f"must be given with schedule {EXPLICIT}", field="order")
    check_length("order", len(spec.order), (spec.num_stages,))
    try:
        order = explicit_order(spec.order, spec.virtual_stages)
        build_dag(schedule_of_order(order, spec.num_microbatches))
    except PipelineError as error:
        field = "order" if error.field == "schedule" else error.field
        raise InvalidFieldError(field, error.message) from None


def plan_request(
    spec: JobSpec, profile: StageProfile, gpu_table: GpuTable, loop_state: JobLoopState
) -> PlanRequest:
    """Return the job's plan request, without slowdown factors.

    Args:
        spec: current specification.
        profile: the job's profile.
        gpu_table: GPU windows by name.
        loop_state: loop state of the job: its current target, a measured blocking power.

    Raises:
        InvalidFieldError: the blocking power is unknown.
    """
    window = _window(spec, gpu_table)
    granularity_mhz = (
        DEFAULT_RECONFIGURE_GRANULARITY_MHZ
        if window is None
        else window.reconfigure_granularity_mhz
    )
    # Where waits are measured, they decide which clocks are raised, not the model.
    is_measured = is_raised_by_waits(spec, loop_state.inputs)
    known = with_known_transitions(plan_options(spec), window.transitions if window else None)
    if known.gpus_at_once is None:
        known = replace(known, gpus_at_once=loop_state.inputs.gpus_at_once)
    if known.gpus_in_node is None:
        known = replace(known, gpus_in_node=loop_state.inputs.gpus_in_node)
    known, profile = with_measured_delays(
        known,
        profile,
        loop_state.inputs.delays,
        has_given_transitions=has_given_transitions(spec),
    )
    options = replace(
        known,
        blocking_power_w=_blocking_power_w(spec, window, loop_state),
        reconfigure=Reconfigure.DEFAULT if is_measured else spec.reconfiguration,
        target=_target(spec, profile, loop_state),
        effort=loop_state.inputs.effort or spec.effort,
    )
    inputs = loop_state.inputs
    is_other_work = inputs.delays is not None and inputs.delays.work and inputs.step_work is None
    if inputs.changed is not None or is_other_work:
        options = _at_highest_clocks(options)
    return PlanRequest(
        profile=profile,
        num_microbatches=spec.num_microbatches,
        options=options,
        reconfigure_granularity_mhz=granularity_mhz,
    )


def _target(spec: JobSpec, profile: StageProfile, loop_state: JobLoopState) -> str:
    """Return the current target, with W in place of `power:limit`, or as the fastest if unknown."""
    target = loop_state.inputs.target or spec.target
    if target != LIMIT_TARGET:
        return target
    return limit_target((profile,), loop_state.power_limits_w) or DEFAULT_TARGET


def _at_highest_clocks(options: PlanOptions) -> PlanOptions:
    """Return the options with the highest clocks, where the target promises a time.

    No reserve keeps one plan from making steps longer whose work differs (decision 48), and a
    profile says nothing about other conditions (decision 51).
    """
    if keeps_plan(options.target):
        return options
    return replace(
        options,
        policy=Policy.BASELINE,
        target=DEFAULT_TARGET,
        reserve=None,
        reconfigure=Reconfigure.DEFAULT,
    )


def has_given_transitions(spec: JobSpec) -> bool:
    """Return whether the job gives the times of its clock changes."""
    return spec.transition_ms is not None or spec.transitions is not None


def known_transitions(spec: JobSpec, gpu_table: GpuTable) -> ClockTransitions | None:
    """Return the times of clock changes that the job gives or its GPU has, of a single GPU.

    Raises:
        InvalidFieldError: the GPU is not in the table.
    """
    if has_given_transitions(spec):
        return spec.transitions
    window = _window(spec, gpu_table)
    return None if window is None else window.transitions


def with_measured_delays(
    options: PlanOptions,
    profile: StageProfile,
    delays: MeasuredDelays | None,
    *,
    has_given_transitions: bool,
) -> tuple[PlanOptions, StageProfile]:
    """Return options and profile with the measured tail, transfers, clock changes and jitter.

    Given times win, and so does the profile's jitter; jitter only serves to choose a reserve.

    Args:
        options: options of the job.
        profile: profile of the job.
        delays: measured delays; None: not measured.
        has_given_transitions: the job gives the times of its clock changes.

    Raises:
        PlanningError: the GPUs of a node would take too long to change their clocks together.
    """
    if delays is None:
        return options, profile
    if options.tail_ms is None:
        options = replace(options, tail_ms=delays.tail_s * 1e3)
    if options.transfer_ms is None and len(delays.transfer_s) == profile.num_stages - 1:
        options = replace(options, transfer_ms=tuple(1e3 * hop_s for hop_s in delays.transfer_s))
    if not has_given_transitions:
        options = _with_measured_changes(options, delays)
    if needs_jitter(options, profile):
        profile = _with_jitter(profile, delays.jitter)
    return options, profile


def _with_measured_changes(options: PlanOptions, delays: MeasuredDelays) -> PlanOptions:
    """Return the options with the measured delays of clock changes, of which a queue is part."""
    up_s, down_s = delays.up_s, delays.down_s
    certain_s = [each_s for each_s in (up_s, down_s) if each_s is not None]
    if not certain_s:
        return options
    has_others = (options.gpus_in_node or 1) > (options.gpus_at_once or 1)
    before = clock_transitions(replace(options, gpus_in_node=None))
    if before is None:  # a direction that is not certain is as late as the other
        before = ClockTransitions.of_medians(certain_s[0], certain_s[0])
    return replace(
        options,
        transitions=before.with_medians(up_s, down_s),
        gpus_at_once=1,
        gpus_in_node=options.gpus_in_node if has_others else None,
    )


def needs_jitter(options: PlanOptions, profile: StageProfile) -> bool:
    """Return whether a reserve is to be chosen and the profile has no jitter."""
    return (
        options.policy == Policy.FRONTIER
        and options.reserve is None
        and not any(
            point.jitter
            for of_chunk in profile.chunks or (profile,)
            for points in of_chunk.points.values()
            for point in points
        )
    )


def _with_jitter(profile: StageProfile, jitter: float) -> StageProfile:
    points = {
        key: tuple(replace(point, jitter=jitter) for point in of_key)
        for key, of_key in profile.points.items()
    }
    chunks = tuple(_with_jitter(chunk, jitter) for chunk in profile.chunks)
    return replace(profile, points=points, chunks=chunks)


def is_raised_by_waits(spec: JobSpec, inputs: PlanningInputs) -> bool:
    """Return whether measured waits decide which clocks are raised.

    This is false while ranks are slower than their profile: then pipelines differ, and the model,
    which includes their slowdown factors, decides. It is false too where the profile does not hold.
    """
    slowdowns = [slowed.slowdown for slowed in inputs.rank_slowdowns]
    slowdowns += [slowed.slowdown for slowed in inputs.stage_slowdowns]
    is_as_profiled = inputs.changed is None and all(each == 1 for each in slowdowns)
    return spec.adaptation == Adaptation.RECONFIGURE and is_as_profiled


def _check_schedule(spec: JobSpec) -> None:
    """Check that the order is known before the job's first step, from which on it holds."""
    if is_auto(spec.schedule):
        raise InvalidFieldError(
            "schedule",
            "auto is for `flyball plan` and `flyball frontier` only: a job's order holds from its"
            " first step; name the order that its ranks run, and `flyball report` says which other"
            " order saves more",
        )
    if spec.schedule not in SCHEDULES:
        known = ", ".join(SCHEDULES)
        raise InvalidFieldError("schedule", f"unknown {spec.schedule!r}; known: {known}")


def _window(spec: JobSpec, gpu_table: GpuTable) -> GpuWindow | None:
    if spec.gpu is None:
        return None
    try:
        return gpu_table(spec.gpu)
    except GpuTableError as error:
        raise InvalidFieldError("gpu", str(error)) from None


def _blocking_power_w(
    spec: JobSpec, window: GpuWindow | None, loop_state: JobLoopState | None
) -> tuple[float, ...]:
    if spec.blocking_power_w is not None:
        return spec.blocking_power_w
    profiling = None if loop_state is None else loop_state.profiling
    if profiling is not None and profiling.blocking_power_w is not None:
        return profiling.blocking_power_w
    if window is None:
        raise InvalidFieldError("blocking_power_w", "give it in W, or name a gpu of the table")
    power_w = window.blocking_power_w
    if power_w is None:
        raise InvalidFieldError(
            "blocking_power_w",
            f"the table of {spec.gpu} has none; measure it with {MEASURE_BLOCKING_POWER} and give"
            " it in W, or have it measured in training with profiling online",
        )
    return (power_w,)
