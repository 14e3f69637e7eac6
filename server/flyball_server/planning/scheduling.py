"""The schedule of a profiled pipeline: its shape, EnvPipe's forwards in front, and memory."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

from flyball_pipeline.instruction import Checkpoint, InstructionKind, PipelineShape, backward_kinds
from flyball_pipeline.schedule import Schedule
from flyball_pipeline.schedules.envpipe import ENVPIPE
from flyball_pipeline.schedules.inputs import ExplicitOrder, ScheduleInputs
from flyball_pipeline.schedules.table import make_schedule
from flyball_profiles.stage_profile import StageProfile
from flyball_server.planning.errors import PlanningError
from flyball_server.planning.model.least_energy_clock import stage_least_energy


@dataclass(frozen=True, kw_only=True)
class ActivationMemory:
    """Activation memory available to an order, and EnvPipe's fills; one entry per stage.

    Attributes:
        activation_bytes: bytes held by one microbatch in flight, positive.
        free_bytes: bytes free beside what 1F1B holds, not negative.
    """

    activation_bytes: tuple[int, ...]
    free_bytes: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class ScheduleContext:
    """A profiled pipeline, and what its schedule depends on beside it.

    Attributes:
        profile: its stages' profile; gives the kinds that they run.
        num_microbatches: number of microbatches of a step.
        activation_memory: memory of the stages; None: it bounds nothing.
        checkpoint, order: as in ScheduleInputs.
        extra_forwards: as there; None: for `envpipe`, those of `extra_warmup_forwards`.

    Raises:
        PipelineError: the number of microbatches does not fit.
    """

    profile: StageProfile
    num_microbatches: int
    activation_memory: ActivationMemory | None = None
    checkpoint: Checkpoint | None = None
    order: ExplicitOrder | None = None
    extra_forwards: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        _shape_of(self)


def schedule_for(name: str, context: ScheduleContext) -> Schedule:
    """Return the order called `name` of a profiled pipeline.

    Raises:
        PipelineError: there is no such schedule, it cannot be made for this context, or a
            stage's memory cannot hold it.
    """
    extra_forwards = context.extra_forwards
    if name == ENVPIPE and extra_forwards is None:
        extra_forwards = extra_warmup_forwards(context)
    inputs = ScheduleInputs(
        shape=_shape_of(context),
        checkpoint=context.checkpoint,
        order=context.order,
        extra_forwards=extra_forwards,
    )
    schedule = make_schedule(name, inputs)
    if context.activation_memory is not None:
        _check_memory(schedule, context.activation_memory)
    return schedule


def _shape_of(context: ScheduleContext) -> PipelineShape:
    profile = context.profile
    return PipelineShape(
        num_microbatches=context.num_microbatches,
        stages=profile.kinds,
        chunks=tuple(chunk.kinds for chunk in profile.chunks),
    )


def _check_memory(schedule: Schedule, memory: ActivationMemory) -> None:
    """Refuse an order that a stage's memory cannot hold.

    A chunk of v counts for 1/v of a microbatch's activations: they are given for whole stages.

    Raises:
        PlanningError: names the first stage that is too small.
    """
    for stage, peak in enumerate(schedule.peak_activations):
        held = Fraction(peak, schedule.num_chunks)
        # Free is what is left beside 1F1B's.
        of_one_f_one_b = min(schedule.num_stages - stage, schedule.num_microbatches)
        room = of_one_f_one_b + Fraction(memory.free_bytes[stage], memory.activation_bytes[stage])
        if held > room:
            raise PlanningError(
                f"{schedule.name} keeps the activations of {float(held):g} microbatches on stage"
                f" {stage}, whose memory holds {float(room):g}",
                field="free_memory_bytes",
            )


def extra_warmup_forwards(context: ScheduleContext) -> tuple[int, ...]:
    """Per stage, EnvPipe's forwards before its first backward beyond those of 1F1B.

    `x_s = min(floor(t_bwd_at_max(s) (P-1-s) / t_fwd_at_valley(s)),
    floor(free_memory / activation_bytes), M - (P-s))`, not negative, 0 on the last stage; then,
    from stage 0 down, a stage never has more than the stage before it unless that already
    runs all its forwards in front: a longer lead would wait for activations that do not come
    (Choi et al., USENIX ATC 2023).
    """
    num_stages, num_microbatches = context.profile.num_stages, context.num_microbatches
    extra = [_extra_of_stage(context, stage) for stage in range(num_stages)]
    for stage in range(num_stages - 1):
        all_in_front = num_stages - stage + extra[stage] >= num_microbatches
        if extra[stage] < extra[stage + 1] and not all_in_front:
            extra[stage + 1] = extra[stage]
    return tuple(extra)


def _extra_of_stage(context: ScheduleContext, stage: int) -> int:
    profile, memory = context.profile, context.activation_memory
    later_stages = profile.num_stages - 1 - stage
    if later_stages == 0:
        return 0
    backward = backward_kinds(profile.kinds[stage])
    backward_at_max_s = sum(profile.points[stage, kind][0].time_s for kind in backward)
    valley = stage_least_energy(profile, stage, (InstructionKind.FORWARD, *backward))
    forward_at_valley_s = valley[InstructionKind.FORWARD].time_s
    limits = [
        math.floor(backward_at_max_s * later_stages / forward_at_valley_s),
        context.num_microbatches - (profile.num_stages - stage),
    ]
    if memory is not None:
        limits.append(memory.free_bytes[stage] // memory.activation_bytes[stage])
    return max(0, min(limits))
