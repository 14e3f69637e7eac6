"""1F1B, PipeDream-Flush (Narayanan et al., 2021): one forward and one backward in turn."""

from __future__ import annotations

from flyball_profiles.stage_profile import InstructionKind
from flyball_server.planning.schedules._base import (
    Instruction,
    Schedule,
    ScheduleContext,
    warmup_then_alternate,
)

_BACKWARDS = frozenset({InstructionKind.BACKWARD, InstructionKind.BACKWARD_INPUT})


def make_one_f_one_b(context: ScheduleContext) -> Schedule:
    """Stage s of P runs P - s forwards (P - s - 1 of them warm-up) before its first backward."""
    return Schedule(
        name="1f1b", num_microbatches=context.num_microbatches, stages=_one_f_one_b(context)
    )


def make_early_recompute(context: ScheduleContext) -> Schedule:
    """1F1B with early recomputation (Merak: Lai et al., 2023).

    A stage computes a microbatch forward again while the gradient for it is still on its way:
    the recomputation stands before the backward and waits for nothing from outside. On the last
    stage a backward follows its forward at once, so nothing is computed again there.
    """
    last_stage = context.profile.num_stages - 1
    stages: list[tuple[Instruction, ...]] = []
    for stage, order in enumerate(_one_f_one_b(context)):
        with_recomputation: list[Instruction] = []
        for instruction in order:
            if stage != last_stage and instruction.kind in _BACKWARDS:
                with_recomputation.append(
                    Instruction(InstructionKind.RECOMPUTE, instruction.microbatch)
                )
            with_recomputation.append(instruction)
        stages.append(tuple(with_recomputation))
    return Schedule(
        name="early-recompute-1f1b",
        num_microbatches=context.num_microbatches,
        stages=tuple(stages),
    )


def _one_f_one_b(context: ScheduleContext) -> tuple[tuple[Instruction, ...], ...]:
    num_stages = context.profile.num_stages
    return tuple(
        tuple(warmup_then_alternate(context, stage, num_stages - stage))
        for stage in range(num_stages)
    )
