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
from flyball_wire.plan_options import Checkpoint

TORCHGPIPE = "torchgpipe"


def check_checkpoint(schedule: str, mode: Checkpoint | None) -> None:
    """Check that a checkpoint mode is given for schedule `torchgpipe` only.

    Raises:
        PlanningError: it is given for another schedule.
    """
    if mode is not None and schedule != TORCHGPIPE:
        raise PlanningError(f"is for schedule {TORCHGPIPE}, not {schedule}", field="checkpoint")


def make_gpipe(context: ScheduleContext) -> Schedule:
    """All M forwards of a stage, then its M backwards in the same order."""
    stages = (
        warmup_then_alternate(context, stage, context.num_microbatches)
        for stage in range(context.profile.num_stages)
    )
    return context.schedule("gpipe", stages)


def make_torchgpipe(context: ScheduleContext) -> Schedule:
    """GPipe as torchgpipe and PyTorch Pipe run it (Kim et al., 2020).

    Backwards go from the last microbatch to the first. A microbatch whose activations were not
    kept is computed forward again just before, without waiting for its gradient; `except_last`
    keeps those of the last microbatch, whose backward comes first.
    """
    last = context.num_microbatches - 1
    recomputed = {
        Checkpoint.NEVER: frozenset[int](),
        Checkpoint.EXCEPT_LAST: frozenset(range(last)),
        Checkpoint.ALWAYS: frozenset(range(last + 1)),
    }[context.checkpoint or Checkpoint.EXCEPT_LAST]
    stages: list[list[Instruction]] = []
    for stage in range(context.profile.num_stages):
        order = [Instruction(InstructionKind.FORWARD, m) for m in range(last + 1)]
        for microbatch in range(last, -1, -1):
            if microbatch in recomputed:
                order.append(Instruction(InstructionKind.RECOMPUTE, microbatch))
            order += [
                Instruction(kind, microbatch) for kind in backward_kinds(context.profile, stage)
            ]
        stages.append(order)
    return context.schedule(TORCHGPIPE, stages)
