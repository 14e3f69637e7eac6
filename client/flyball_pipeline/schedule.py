"""A schedule: for each stage, its instructions in the order of execution."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from flyball_pipeline.errors import PipelineError
from flyball_pipeline.instruction import Instruction, InstructionKind

_RELEASING = frozenset({InstructionKind.BACKWARD, InstructionKind.BACKWARD_WEIGHT})


def _most_held(instructions: Sequence[Instruction]) -> int:
    recomputed = {
        (instruction.microbatch, instruction.chunk)
        for instruction in instructions
        if instruction.kind == InstructionKind.RECOMPUTE
    }
    held = peak = 0
    for instruction in instructions:
        is_recomputed = (instruction.microbatch, instruction.chunk) in recomputed
        if instruction.kind == InstructionKind.RECOMPUTE or (
            instruction.kind == InstructionKind.FORWARD and not is_recomputed
        ):
            held += 1
            peak = max(peak, held)
        elif instruction.kind in _RELEASING:
            held -= 1
    return peak


VirtualStages = tuple[tuple[int, ...], ...]
"""Per stage, the virtual stage of each of its chunks."""


def one_chunk_each(num_stages: int) -> VirtualStages:
    """Stage s is virtual stage s."""
    return looped(num_stages, 1)


def looped(num_stages: int, num_chunks: int) -> VirtualStages:
    """Chunk c of stage s is virtual stage `c P + s`: after the last stage comes the first again."""
    return tuple(
        tuple(chunk * num_stages + stage for chunk in range(num_chunks))
        for stage in range(num_stages)
    )


def v_shaped(num_stages: int) -> VirtualStages:
    """Two chunks: down the stages and up again, so stage 0 holds the first and the last."""
    return tuple((stage, 2 * num_stages - 1 - stage) for stage in range(num_stages))


def check_virtual_stages(virtual_stages: VirtualStages, num_stages: int) -> None:
    """Check that all stages hold equally many chunks, and each virtual stage has a holder.

    Raises:
        PipelineError: it is not so.
    """
    if len(virtual_stages) != num_stages:
        raise PipelineError(
            f"{len(virtual_stages)} entries for {num_stages} stages; give one per stage",
            field="virtual_stages",
        )
    if len({len(of_stage) for of_stage in virtual_stages}) != 1:
        raise PipelineError(
            "all stages must hold the same number of chunks", field="virtual_stages"
        )
    held = sorted(virtual for of_stage in virtual_stages for virtual in of_stage)
    if held != list(range(len(held))):
        raise PipelineError(
            f"must hold each of 0 to {len(held) - 1} once, not {', '.join(map(str, held))}",
            field="virtual_stages",
        )


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """The order in which each stage runs its instructions.

    Attributes:
        name: as in DESIGN's list: `gpipe`, `1f1b`, ...
        stages: per stage, its instructions in the order of execution.
        virtual_stages: per stage, where in the model each of its chunks stands, from 0; left
            out: one chunk a stage, in the order of the stages.
        weight_versions: per stage, the versions of its weights that it holds, where the pipeline
            never flushes; the stages then give the order of one steady-state period, which
            follows itself without end. None: every iteration flushes.

    Raises:
        PipelineError: there is no stage, a stage runs an instruction twice or before what it
            needs of its own, or it does not run forward and backward (whole, or both parts) of
            exactly the microbatches 0 .. M-1 for each of its chunks.
    """

    name: str
    num_microbatches: int
    stages: tuple[tuple[Instruction, ...], ...]
    virtual_stages: VirtualStages = ()
    weight_versions: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if not self.stages or not all(self.stages):
            raise PipelineError("every stage must run something", field="schedule")
        if not self.virtual_stages:
            object.__setattr__(self, "virtual_stages", one_chunk_each(len(self.stages)))
        check_virtual_stages(self.virtual_stages, len(self.stages))
        self._check_weight_versions()
        for stage, instructions in enumerate(self.stages):
            if len(set(instructions)) != len(instructions):
                raise PipelineError(f"stage {stage} runs an instruction twice", field="schedule")
            self._check_microbatches(stage, instructions)

    def _check_weight_versions(self) -> None:
        versions = self.weight_versions
        if versions is not None and (len(versions) != len(self.stages) or min(versions) < 1):
            raise PipelineError(
                f"must be at least 1 for each of {len(self.stages)} stages", field="weight_versions"
            )

    def _check_microbatches(self, stage: int, instructions: tuple[Instruction, ...]) -> None:
        kinds: dict[tuple[int, int], list[InstructionKind]] = {}
        for kind, microbatch, chunk in instructions:
            kinds.setdefault((microbatch, chunk), []).append(kind)
        for (microbatch, chunk), run in kinds.items():
            if not 0 <= chunk < self.num_chunks:
                raise PipelineError(
                    f"stage {stage} runs chunk {chunk}, but has {self.num_chunks}; virtual_stages"
                    " gives each chunk's place in the model",
                    field="schedule",
                )
            if not (0 <= microbatch < self.num_microbatches and _is_whole(set(run))):
                raise PipelineError(
                    f"stage {stage} does not run one forward and one backward of microbatch"
                    f" {microbatch}{self._of_chunk(chunk)}, of {self.num_microbatches}"
                    " microbatches",
                    field="schedule",
                )
            early = None if self.is_periodic else _first_too_early(run)
            if early is not None:
                raise PipelineError(
                    f"stage {stage} runs {early} of microbatch {microbatch}"
                    f"{self._of_chunk(chunk)} before the instruction of this stage that it needs",
                    field="schedule",
                )
        if len(kinds) != self.num_microbatches * self.num_chunks:
            raise PipelineError(
                f"stage {stage} does not run all {self.num_microbatches} microbatches"
                + (" of every chunk" if self.num_chunks > 1 else ""),
                field="schedule",
            )

    def _of_chunk(self, chunk: int) -> str:
        return f" in chunk {chunk}" if self.num_chunks > 1 else ""

    @property
    def num_stages(self) -> int:
        """Number of pipeline stages."""
        return len(self.stages)

    @property
    def num_chunks(self) -> int:
        """Number of model chunks that each stage holds."""
        return len(self.virtual_stages[0])

    def node_of(self, instruction: Instruction) -> Instruction:
        """Return an instruction's node in the DAG: itself, or its kind in a whole period.

        In a steady state all microbatches of a stage run alike, and are planned as one.
        """
        return instruction._replace(microbatch=0) if self.is_periodic else instruction

    @property
    def is_periodic(self) -> bool:
        """Return whether the pipeline never flushes; `stages` is then one period of it."""
        return self.weight_versions is not None

    @property
    def peak_activations(self) -> tuple[int, ...]:
        """Per stage, the most forwards (of a chunk) whose last backward is still to end.

        Held from a forward's start to its whole backward's end, or its weight part's. What is
        computed forward again is held from its recomputation on: before, only its input is.
        """
        if self.is_periodic:
            return tuple(self.num_stages - stage for stage in range(self.num_stages))
        return tuple(_most_held(instructions) for instructions in self.stages)


# What each kind needs that its own stage has run for the same microbatch and chunk.
_NEEDS: Mapping[InstructionKind, frozenset[InstructionKind]] = MappingProxyType(
    {
        InstructionKind.FORWARD: frozenset(),
        InstructionKind.RECOMPUTE: frozenset({InstructionKind.FORWARD}),
        InstructionKind.BACKWARD: frozenset({InstructionKind.FORWARD}),
        InstructionKind.BACKWARD_INPUT: frozenset({InstructionKind.FORWARD}),
        InstructionKind.BACKWARD_WEIGHT: frozenset({InstructionKind.BACKWARD_INPUT}),
        InstructionKind.STEP: frozenset(),
    }
)


def _first_too_early(run: list[InstructionKind]) -> InstructionKind | None:
    """Return the first of one microbatch's instructions, in their order, that stands too early."""
    for position, kind in enumerate(run):
        before = set(run[:position])
        needed = _NEEDS[kind]
        if kind != InstructionKind.FORWARD and InstructionKind.RECOMPUTE in run:
            needed |= {InstructionKind.RECOMPUTE} - {kind}
        if not needed <= before:
            return kind
    return None


def _is_whole(kinds: set[InstructionKind]) -> bool:
    """Return whether these are all that one microbatch needs, none of it twice."""
    forward = {InstructionKind.FORWARD}
    return kinds - {InstructionKind.RECOMPUTE} in (
        forward | {InstructionKind.BACKWARD},
        forward | {InstructionKind.BACKWARD_INPUT, InstructionKind.BACKWARD_WEIGHT},
        {InstructionKind.STEP},
    )
