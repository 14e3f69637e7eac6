"""EnvPipe's order (Choi et al., USENIX ATC 2023): bubbles are moved to stand behind units.

Each stage runs some forwards more than 1F1B before its first backward, as many as the wait for
that backward and the memory allow.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from flyball_profiles.stage_profile import InstructionKind
from flyball_server.planning.errors import PlanningError
from flyball_server.planning.model.least_energy_clock import stage_least_energy
from flyball_server.planning.schedules._base import (
    Schedule,
    ScheduleContext,
    backward_kinds,
    warmup_then_alternate,
)

ENVPIPE = "envpipe"


def make_envpipe(context: ScheduleContext) -> Schedule:
    """1F1B with more forwards in front on each stage: those given, or `extra_warmup_forwards`.

    Raises:
        PlanningError: the given ones cannot be run.
    """
    num_stages, extra = context.profile.num_stages, context.extra_forwards
    if extra is None:
        extra = extra_warmup_forwards(context)
    else:
        check_extra_forwards(extra, num_stages, context.num_microbatches)
    stages = (
        warmup_then_alternate(context, stage, num_stages - stage + of_stage)
        for stage, of_stage in enumerate(extra)
    )
    return context.schedule(ENVPIPE, stages)


def check_extra_forwards(extra: Sequence[int], num_stages: int, num_microbatches: int) -> None:
    """Check that the stages can run so many more forwards in front than 1F1B.

    Raises:
        PlanningError: they are not one count per stage, at least 0, or a stage waits before its
            first backward for more forwards than the stage before it runs in front of its own.
    """
    field = "extra_forwards"
    if len(extra) != num_stages:
        raise PlanningError(
            f"{len(extra)} values for {num_stages} stages; give one per stage", field=field
        )
    if min(extra) < 0:
        raise PlanningError(f"must be at least 0, not {min(extra)}", field=field)
    in_front = [
        min(num_stages - stage + of_stage, num_microbatches) for stage, of_stage in enumerate(extra)
    ]
    for stage, (before, own) in enumerate(pairwise(in_front), start=1):
        if own > before:
            raise PlanningError(
                f"stage {stage} would run {own} forwards in front and stage {stage - 1} only"
                f" {before}, so each would wait for the other forever",
                field=field,
            )


def extra_warmup_forwards(context: ScheduleContext) -> tuple[int, ...]:
    """Per stage, the forwards it runs before its first backward beyond those of 1F1B.

    `x_s = min(floor(t_bwd_at_max(s) (P-1-s) / t_fwd_at_valley(s)),
    floor(free_memory / activation_bytes), M - (P-s))`, not negative, 0 on the last stage; then,
    from stage 0 down, a stage never has more than the one before it unless that one already
    runs all its forwards in front: a longer lead would wait for activations that do not come.
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
    backward = backward_kinds(profile, stage)
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
