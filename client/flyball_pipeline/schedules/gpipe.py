"""GPipe: all forwards, then all backwards (Huang et al., 2019), plain and with checkpoints."""

from __future__ import annotations

from flyball_pipeline.instruction import (
    Checkpoint,
    Instruction,
    InstructionKind,
    backward_kinds,
)
from flyball_pipeline.schedules.inputs import ScheduleInputs, Stages
from flyball_pipeline.schedules.one_f_one_b import warmup_then_alternate


def gpipe(inputs: ScheduleInputs) -> Stages:
    """All M forwards of a stage, then its M backwards in the same order."""
    num_microbatches = inputs.shape.num_microbatches
    return warmup_then_alternate(inputs.shape, [num_microbatches] * inputs.shape.num_stages)


def torchgpipe(inputs: ScheduleInputs) -> Stages:
    """GPipe as torchgpipe and PyTorch Pipe run it (Kim et al., 2020).

    Backwards go from the last microbatch to the first. A microbatch whose activations were not
    kept is computed forward again just before, without waiting for its gradient; `except_last`
    keeps those of the last microbatch, whose backward comes first.
    """
    num_microbatches = inputs.shape.num_microbatches
    recomputed = {
        Checkpoint.NEVER: range(0),
        Checkpoint.EXCEPT_LAST: range(num_microbatches - 1),
        Checkpoint.ALWAYS: range(num_microbatches),
    }[inputs.checkpoint or Checkpoint.EXCEPT_LAST]
    for kinds in inputs.shape.stages:
        order = [Instruction(InstructionKind.FORWARD, m) for m in range(num_microbatches)]
        for microbatch in reversed(range(num_microbatches)):
            if microbatch in recomputed:
                order.append(Instruction(InstructionKind.RECOMPUTE, microbatch))
            order += [Instruction(kind, microbatch) for kind in backward_kinds(kinds)]
        yield order
