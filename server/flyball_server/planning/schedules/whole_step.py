"""No pipeline: a single stage, whose one instruction is the whole training step."""

from __future__ import annotations

from flyball_profiles.stage_profile import InstructionKind
from flyball_server.planning.errors import PlanningError
from flyball_server.planning.schedules._base import Instruction, Schedule, ScheduleContext

STEP = "step"


def make_step(context: ScheduleContext) -> Schedule:
    """One instruction, `step`.

    Raises:
        PlanningError: there are several stages or microbatches, or the profile has no steps.
    """
    if context.profile.num_stages != 1:
        raise PlanningError(
            f"{STEP} is for training without a pipeline; the profile has"
            f" {context.profile.num_stages} stages",
            field="schedule",
        )
    if context.num_microbatches != 1:
        raise PlanningError(
            f"must be 1 with schedule {STEP}, which has one instruction, not"
            f" {context.num_microbatches}",
            field="num_microbatches",
        )
    if (0, InstructionKind.STEP) not in context.profile.points:
        raise PlanningError(
            f"{STEP} needs a profile with rows of the instruction step", field="schedule"
        )
    return context.schedule(STEP, [[Instruction(InstructionKind.STEP, 0)]])
