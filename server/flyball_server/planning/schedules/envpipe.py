"""EnvPipe's order (Choi et al., USENIX ATC 2023): bubbles are moved to stand behind units.

Each stage runs some forwards more than 1F1B before its first backward, as many as the wait for
that backward and the memory allow.
"""

from __future__ import annotations

import math

from flyball_profiles.stage_profile import InstructionKind
from flyball_server.planning.model.least_energy_clock import stage_least_energy
from flyball_server.planning.schedules._base import (
    Schedule,
    ScheduleContext,
    backward_kinds,
    warmup_then_alternate,
)


def make_envpipe(context: ScheduleContext) -> Schedule:
    """1F1B with `extra_warmup_forwards` more forwards in front on each stage."""
    num_stages = context.profile.num_stages
    stages = (
        warmup_then_alternate(context, stage, num_stages - stage + extra)
        for stage, extra in enumerate(extra_warmup_forwards(context))
    )
    return context.schedule("envpipe", stages)


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
