"""GPipe: all forwards, then all backwards (Huang et al., 2019), plain and with checkpoints."""

from __future__ import annotations

from flyball_profiles.stage_profile import InstructionKind
from flyball_server.planning.errors import PlanningError
from flyball_server.planning.schedules._base import (
    Instruction,
    Schedule,
    ScheduleContext,
    backward_kinds,
    warmup_then_alternate,
)

TORCHGPIPE = "torchgpipe"
CHECKPOINT_MODES = ("except_last", "always", "never")
"""torchgpipe's and PyTorch Pipe's; the first is their default, and ours."""


def check_checkpoint(schedule: str, mode: str | None) -> None:
    """Check that a schedule knows a checkpoint mode; each knows None.

    Raises:
        PlanningError: it does not.
    """
    if mode is not None and schedule != TORCHGPIPE:
        raise PlanningError(f"is for schedule {TORCHGPIPE}, not {schedule}", field="checkpoint")
    if mode is not None and mode not in CHECKPOINT_MODES:
        raise PlanningError(
            f"unknown {mode!r}; known: {', '.join(CHECKPOINT_MODES)}", field="checkpoint"
        )


def make_gpipe(context: ScheduleContext) -> Schedule:
    """All M forwards of a stage, then its M backwards in the same order."""
    return Schedule(
        name="gpipe",
        num_microbatches=context.num_microbatches,
        stages=tuple(
            tuple(warmup_then_alternate(context, stage, context.num_microbatches))
            for stage in range(context.profile.num_stages)
        ),
    )


def make_torchgpipe(context: ScheduleContext) -> Schedule:
    """GPipe as torchgpipe and PyTorch Pipe run it (Kim et al., 2020).

    Backwards go from the last microbatch to the first. A microbatch whose activations were not
    kept is computed forward again just before, without waiting for its gradient; `except_last`
    keeps those of the last microbatch, whose backward comes first.

    Raises:
        PlanningError: there is no such checkpoint mode.
    """
    check_checkpoint(TORCHGPIPE, context.checkpoint)
    mode = CHECKPOINT_MODES[0] if context.checkpoint is None else context.checkpoint
    last = context.num_microbatches - 1
    recomputed = {
        "never": frozenset[int](),
        "except_last": frozenset(range(last)),
        "always": frozenset(range(last + 1)),
    }[mode]
    stages: list[tuple[Instruction, ...]] = []
    for stage in range(context.profile.num_stages):
        order = [Instruction(InstructionKind.FORWARD, m) for m in range(last + 1)]
        for microbatch in range(last, -1, -1):
            if microbatch in recomputed:
                order.append(Instruction(InstructionKind.RECOMPUTE, microbatch))
            order += [
                Instruction(kind, microbatch) for kind in backward_kinds(context.profile, stage)
            ]
        stages.append(tuple(order))
    return Schedule(
        name=TORCHGPIPE, num_microbatches=context.num_microbatches, stages=tuple(stages)
    )
