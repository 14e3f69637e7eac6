"""Instructions of a pipeline, and its shape: what an order is made for."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from flyball_pipeline.errors import PipelineError


class InstructionKind(StrEnum):
    """One computation of one stage on one microbatch, by the field's names.

    `step` is a whole training step, where there is no pipeline.
    """

    FORWARD = "forward"
    BACKWARD = "backward"
    BACKWARD_INPUT = "backward_input"
    BACKWARD_WEIGHT = "backward_weight"
    RECOMPUTE = "recompute"
    STEP = "step"


class Instruction(NamedTuple):
    """One computation of a stage on one microbatch (and one model chunk, where there are any)."""

    kind: InstructionKind
    microbatch: int
    chunk: int = 0


class Checkpoint(StrEnum):
    """Microbatches whose activations are recomputed, as in torchgpipe and PyTorch Pipe."""

    EXCEPT_LAST = "except_last"
    ALWAYS = "always"
    NEVER = "never"


Kinds = frozenset[InstructionKind]

WHOLE_BACKWARD: Kinds = frozenset({InstructionKind.FORWARD, InstructionKind.BACKWARD})
SPLIT_BACKWARD: Kinds = frozenset(
    {
        InstructionKind.FORWARD,
        InstructionKind.BACKWARD_INPUT,
        InstructionKind.BACKWARD_WEIGHT,
    }
)
WHOLE_STEP: Kinds = frozenset({InstructionKind.STEP})

# Kinds that send a gradient to the stage before; no other stage waits for a weight gradient.
GIVE_GRADIENT = (InstructionKind.BACKWARD, InstructionKind.BACKWARD_INPUT)

# Far above any real iteration; a slip of the finger must not fill the memory.
MAX_NUM_MICROBATCHES = 65_536


@dataclass(frozen=True, kw_only=True)
class PipelineShape:
    """Shape of a pipeline: stages, model chunks, the kinds that they run, and microbatches.

    Attributes:
        num_microbatches: number of microbatches of a step, 1 to 65,536.
        stages: per stage, the kinds that it can run as a whole.
        chunks: per model chunk, the same of the chunk's part of each stage; empty: stages are
            not divided.

    Raises:
        PipelineError: the number of microbatches is out of its bounds.
    """

    num_microbatches: int
    stages: tuple[Kinds, ...]
    chunks: tuple[tuple[Kinds, ...], ...] = ()

    def __post_init__(self) -> None:
        if not 1 <= self.num_microbatches <= MAX_NUM_MICROBATCHES:
            raise PipelineError(
                f"must be from 1 to {MAX_NUM_MICROBATCHES}, not {self.num_microbatches}",
                field="num_microbatches",
            )

    @property
    def num_stages(self) -> int:
        """Number of pipeline stages."""
        return len(self.stages)


def equal_stages(
    num_stages: int, num_microbatches: int, *, kinds: Kinds = WHOLE_BACKWARD, num_chunks: int = 1
) -> PipelineShape:
    """Return the shape of a pipeline whose stages, and their chunks, all run these kinds.

    Raises:
        PipelineError: as for `PipelineShape`.
    """
    stages = (kinds,) * num_stages
    return PipelineShape(
        num_microbatches=num_microbatches,
        stages=stages,
        chunks=(stages,) * num_chunks if num_chunks > 1 else (),
    )


def backward_kinds(kinds: Kinds) -> tuple[InstructionKind, ...]:
    """Return the instructions that make up a backward: whole, or its input part, then weight."""
    if InstructionKind.BACKWARD in kinds:
        return (InstructionKind.BACKWARD,)
    return (InstructionKind.BACKWARD_INPUT, InstructionKind.BACKWARD_WEIGHT)
