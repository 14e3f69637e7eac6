"""Request of a job's plan: what to solve, in a canonical form with a digest."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, cast

from flyball_profiles.clock_transitions import ClockTransitions
from flyball_profiles.gpu_windows import MEASURE_BLOCKING_POWER, GpuTableError, GpuWindow
from flyball_profiles.stage_profile import StageProfile
from flyball_server.jobs.conditions.changes import keeps_plan
from flyball_server.jobs.errors import InvalidFieldError
from flyball_server.jobs.loop_state import JobLoopState
from flyball_server.jobs.planning_inputs import (
    MeasuredDelays,
    PlanningInputs,
    WorkModel,
    deadline_factor,
)
from flyball_server.planning.planner import PlanRequest
from flyball_server.planning.request_options import (
    DEFAULT_RECONFIGURE_GRANULARITY_MHZ,
    clock_transitions,
    limit_target,
    with_known_transitions,
)
from flyball_server.planning.stragglers.slowed_pipelines import SlowedRequest
from flyball_wire.measurements import MeasurementDetail
from flyball_wire.messages import Adaptation, JobSpec
from flyball_wire.plan_options import (
    DEFAULT_TARGET,
    PlanOptions,
    Policy,
    Reconfigure,
    plan_options,
)
from flyball_wire.plans.plan import Slowdown
from flyball_wire.targets import LIMIT_TARGET, parse_target

GpuTable = Callable[[str], GpuWindow]

# Number of the function from a job's facts to its request. Raise it on purpose where jobs that run
# are to be planned again after an upgrade: each digest begins with it.
FUNCTION = 1


def is_of_newer_function(digest: str) -> bool:
    """Return whether a digest was made by a newer function than this."""
    return int(digest.partition("-")[0]) > FUNCTION


def digest_of(value: object) -> str:
    """Return the digest of what to solve, in its canonical form, after the function's number."""
    text = json.dumps(_canonical(value), sort_keys=True)
    return f"{FUNCTION}-{hashlib.sha256(text.encode()).hexdigest()}"


@dataclass(frozen=True, kw_only=True)
class PlanToSolve:
    """Request of a job's plan, to which its profile is still to be added."""

    #: Options as they are given and measured, before what the GPU table has.
    asked: PlanOptions
    #: Options of the plan, with those of the GPU table.
    options: PlanOptions
    reconfigure_granularity_mhz: int
    num_microbatches: int
    #: Power limit of a GPU by stage, W, for target `power:limit`; empty: not all are known.
    power_limits_w: tuple[float, ...] = ()
    #: Measured median delay of a change to a higher and to a lower clock, s; None: not certain.
    changes_s: tuple[float | None, float | None] = (None, None)
    #: Digest of the profile.
    profile: str
    #: Jitter of the instructions, for a profile that has none; 0: not measured.
    jitter: float = 0.0
    #: Announced work that steps' own plans are made from, in each rank; None: they get none.
    work: WorkModel | None = None
    #: Factor of those plans' deadlines, which keeps a target `power:`.
    deadline_factor: float = 1.0
    slowdowns: tuple[Slowdown, ...] = ()
    #: Number of data-parallel pipelines where slowdowns may differ between them, else 1.
    num_pipelines: int = 1
    #: Detail of the ranks' measurements of each step.
    measurement_detail: MeasurementDetail = MeasurementDetail.TOTALS

    @functools.cached_property
    def digest(self) -> str:
        """Digest of the request; equal requests have one plan.

        Of the GPU table the name counts: planners may differ in its figures, during an upgrade say,
        and would replace each other's plans.
        """
        target, order = self.asked.target, self.asked.order
        if target != LIMIT_TARGET:
            parsed = parse_target(target)
            target = f"{parsed.kind}:{parsed.value!r}"
        asked = replace(self.asked, target=target, order=None)
        counted = replace(self, asked=asked, options=asked, reconfigure_granularity_mhz=0)
        return digest_of([counted, _digest_of_order(order)])

    def of_profile(self, profile: StageProfile) -> SlowedRequest:
        """Return the request for the planner, from the profile with this digest.

        Raises:
            PlanningError: a slowdown is of a stage or pipeline that does not exist.
        """
        if self.jitter and needs_jitter(self.options, profile):
            profile = _with_jitter(profile, self.jitter)
        options = self.options
        if options.target == LIMIT_TARGET:
            target = limit_target((profile,), self.power_limits_w) or DEFAULT_TARGET
            options = replace(options, target=target)
        request = PlanRequest(
            profile=profile,
            num_microbatches=self.num_microbatches,
            options=options,
            reconfigure_granularity_mhz=self.reconfigure_granularity_mhz,
        )
        return SlowedRequest(
            request=request, slowdowns=self.slowdowns, num_pipelines=self.num_pipelines
        )


def plan_to_solve(
    spec: JobSpec,
    profile: str,
    gpu_table: GpuTable,
    findings: JobLoopState,
    inputs: PlanningInputs,
) -> PlanToSolve:
    """Return the job's request, without slowdown factors; `profile` is a digest.

    Raises:
        InvalidFieldError: the blocking power is unknown.
        PlanningError: the GPUs of a node would take too long to change their clocks together.
    """
    window, delays = gpu_window(spec, gpu_table), inputs.delays
    is_given, is_measured = has_given_transitions(spec), is_raised_by_waits(spec, inputs)
    asked = _asked_options(spec, findings, inputs)
    known = with_known_transitions(plan_options(spec), window.transitions if window else None)
    options = with_measured_delays(
        replace(asked, transitions=known.transitions),
        spec.num_stages,
        delays,
        has_given_transitions=is_given,
    )
    step_power = None if inputs.step_work is None else inputs.step_power
    detail = MeasurementDetail.INSTRUCTIONS if is_measured else MeasurementDetail.TOTALS
    if spec.adaptation == Adaptation.FRONTIER or inputs.step_work is not None:
        detail = MeasurementDetail.CLOCKS
    return PlanToSolve(
        asked=replace(asked, tail_ms=options.tail_ms, transfer_ms=options.transfer_ms),
        options=replace(
            options, blocking_power_w=asked.blocking_power_w or given_power_w(spec, window)
        ),
        reconfigure_granularity_mhz=(
            window.reconfigure_granularity_mhz if window else DEFAULT_RECONFIGURE_GRANULARITY_MHZ
        ),
        num_microbatches=spec.num_microbatches,
        power_limits_w=findings.power_limits_w if asked.target == LIMIT_TARGET else (),
        changes_s=(None, None) if delays is None or is_given else (delays.up_s, delays.down_s),
        profile=profile,
        jitter=0.0 if delays is None else delays.jitter,
        work=inputs.step_work,
        deadline_factor=deadline_factor(step_power, asked.target),
        measurement_detail=detail,
    )


def _asked_options(spec: JobSpec, findings: JobLoopState, inputs: PlanningInputs) -> PlanOptions:
    """Return the job's options, filled in with findings; measured delays are added later."""
    asked, profiling, delays = plan_options(spec), findings.profiling, inputs.delays
    measured_w = None if profiling is None else profiling.blocking_power_w
    asked = replace(
        asked,
        # One GPU is as none known of.
        gpus_at_once=asked.gpus_at_once or _several(inputs.gpus_at_once),
        gpus_in_node=asked.gpus_in_node or _several(inputs.gpus_in_node),
        blocking_power_w=asked.blocking_power_w or measured_w,
        # Where waits are measured, they decide which clocks are raised, not the model.
        reconfigure=(
            Reconfigure.DEFAULT if is_raised_by_waits(spec, inputs) else spec.reconfiguration
        ),
        target=inputs.target or spec.target,
    )
    is_other_work = delays is not None and delays.work and inputs.step_work is None
    return _at_highest_clocks(asked) if inputs.changed is not None or is_other_work else asked


def _several(num_gpus: int | None) -> int | None:
    return num_gpus if num_gpus is not None and num_gpus > 1 else None


def is_raised_by_waits(spec: JobSpec, inputs: PlanningInputs) -> bool:
    """Return whether measured waits decide which clocks are raised.

    This is false while ranks are slower than their profile: then pipelines differ, and the model,
    which includes their slowdown factors, decides. It is false too where the profile does not hold.
    """
    slowdowns = [slowed.slowdown for slowed in inputs.rank_slowdowns]
    slowdowns += [slowed.slowdown for slowed in inputs.stage_slowdowns]
    is_as_profiled = inputs.changed is None and all(slowdown == 1 for slowdown in slowdowns)
    return spec.adaptation == Adaptation.RECONFIGURE and is_as_profiled


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
    window = gpu_window(spec, gpu_table)
    return None if window is None else window.transitions


def with_measured_delays(
    options: PlanOptions,
    num_stages: int,
    delays: MeasuredDelays | None,
    *,
    has_given_transitions: bool,
) -> PlanOptions:
    """Return options with the measured tail, transfers and clock changes; given times win.

    `delays` is None where none were measured; `has_given_transitions` is true if the job gives the
    times of its clock changes.

    Raises:
        PlanningError: the GPUs of a node would take too long to change their clocks together.
    """
    if delays is None:
        return options
    if options.tail_ms is None:
        options = replace(options, tail_ms=delays.tail_s * 1e3)
    if options.transfer_ms is None and len(delays.transfer_s) == num_stages - 1:
        options = replace(options, transfer_ms=tuple(1e3 * hop_s for hop_s in delays.transfer_s))
    return options if has_given_transitions else _with_measured_changes(options, delays)


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


def gpu_window(spec: JobSpec, gpu_table: GpuTable) -> GpuWindow | None:
    """Return the GPU table's entry of the job; None: it names no GPU.

    Raises:
        InvalidFieldError: the GPU is not in the table.
    """
    if spec.gpu is None:
        return None
    try:
        return gpu_table(spec.gpu)
    except GpuTableError as error:
        raise InvalidFieldError("gpu", str(error)) from None


def given_power_w(spec: JobSpec, window: GpuWindow | None) -> tuple[float, ...]:
    """Return the blocking power that the job gives or its GPU has, W.

    Raises:
        InvalidFieldError: it is unknown.
    """
    if spec.blocking_power_w is not None:
        return spec.blocking_power_w
    if window is None:
        raise InvalidFieldError("blocking_power_w", "give it in W, or name a gpu of the table")
    if window.blocking_power_w is None:
        raise InvalidFieldError(
            "blocking_power_w",
            f"the table of {spec.gpu} has none; measure it with {MEASURE_BLOCKING_POWER} and give"
            " it in W, or have it measured in training with profiling online",
        )
    return (window.blocking_power_w,)


# An order may have a hundred thousand entries, and a job asks for its digest many times a second.
@functools.lru_cache(maxsize=64)
def _digest_of_order(order: object) -> str:
    return hashlib.sha256(json.dumps(order).encode()).hexdigest()


def _canonical(value: object) -> Any:  # noqa: ANN401 - JSON
    """Return plain data in which equal numbers are equal, without fields that have their default.

    A field that a later version adds changes no digest while it has its default.
    """
    if value is None or isinstance(value, str | bool):
        return value
    if isinstance(value, int | float):
        return repr(float(value))
    if is_dataclass(value) and not isinstance(value, type):
        found = {field.name: getattr(value, field.name) for field in fields(value)}
        defaults = {field.name: field.default for field in fields(value)}
        return {name: _canonical(each) for name, each in found.items() if each != defaults[name]}
    if isinstance(value, Sequence):
        return [_canonical(member) for member in cast("Sequence[object]", value)]
    raise TypeError(f"{type(value).__name__} has no canonical form")
