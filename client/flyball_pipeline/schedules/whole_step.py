"""No pipeline: a single stage, whose one instruction is the whole training step."""

from __future__ import annotations

from flyball_pipeline.errors import PipelineError
from flyball_pipeline.instruction import Instruction, InstructionKind
from flyball_pipeline.schedules.inputs import ScheduleInputs, Stages

STEP = "step"


def whole_step(inputs: ScheduleInputs) -> Stages:
    """One instruction, `step`.

    Raises:
        PipelineError: there are several stages or microbatches, or the stage runs no steps.
    """
    shape = inputs.shape
    if shape.num_stages != 1:
        raise PipelineError(
            f"{STEP} is for training without a pipeline; the profile has {shape.num_stages} stages",
            field="schedule",
        )
    if shape.num_microbatches != 1:
        raise PipelineError(
            f"must be 1 with schedule {STEP}, which has one instruction, not"
            f" {shape.num_microbatches}",
            field="num_microbatches",
        )
    if InstructionKind.STEP not in shape.stages[0]:
        raise PipelineError(
            f"{STEP} needs a profile with rows of the instruction step", field="schedule"
        )
    return [[Instruction(InstructionKind.STEP, 0)]]
