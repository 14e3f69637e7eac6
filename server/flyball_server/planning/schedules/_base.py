"""What a schedule is: for each stage, its instructions in the order of execution."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from flyball_profiles.stage_profile import InstructionKind, StageProfile
from flyball_server.planning.errors import PlanningError

# Far above any real iteration; a slip of the finger must not fill the memory.
MAX_NUM_MICROBATCHES = 65_536


class Instruction(NamedTuple):
    """One computation of a stage on one microbatch (and one model chunk, where there are any)."""

    kind: InstructionKind
    microbatch: int
    chunk: int = 0


@dataclass(frozen=True, kw_only=True)
class ActivationMemory:
    """What bounds the extra warm-up forwards of EnvPipe's order; one entry per stage.

    Attributes:
        activation_bytes: bytes held by one microbatch in flight, positive.
        free_bytes: bytes free beside what 1F1B holds, not negative.
    """

    activation_bytes: tuple[int, ...]
    free_bytes: tuple[int, ...]

    def __post_init__(self) -> None:
        if any(size < 1 for size in self.activation_bytes):
            raise PlanningError("each stage's must be positive", field="activation_bytes")
        if any(size < 0 for size in self.free_bytes):
            raise PlanningError("no stage's may be negative", field="free_memory_bytes")
        if len(self.activation_bytes) != len(self.free_bytes):
            raise PlanningError(
                f"{len(self.free_bytes)} entries beside {len(self.activation_bytes)}"
                " activation_bytes; give one per stage",
                field="free_memory_bytes",
            )


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """The order in which each stage runs its instructions.

    Attributes:
        name: as in DESIGN's list: `gpipe`, `1f1b`, ...
        stages: per stage, its instructions in the order of execution.

    Raises:
        PlanningError: there is no stage, a stage runs an instruction twice, or it does not run
            forward and backward (whole, or both parts) of exactly the microbatches 0 .. M-1.
    """

    name: str
    num_microbatches: int
    stages: tuple[tuple[Instruction, ...], ...]

    def __post_init__(self) -> None:
        if not self.stages or not all(self.stages):
            raise PlanningError("every stage must run something", field="schedule")
        for stage, instructions in enumerate(self.stages):
            if len(set(instructions)) != len(instructions):
                raise PlanningError(f"stage {stage} runs an instruction twice", field="schedule")
            self._check_microbatches(stage, instructions)

    def _check_microbatches(self, stage: int, instructions: tuple[Instruction, ...]) -> None:
        kinds: dict[tuple[int, int], set[InstructionKind]] = {}
        for kind, microbatch, chunk in instructions:
            kinds.setdefault((microbatch, chunk), set()).add(kind)
        for (microbatch, _), run in kinds.items():
            if not (0 <= microbatch < self.num_microbatches and _is_whole(run)):
                raise PlanningError(
                    f"stage {stage} does not run one forward and one backward of microbatch"
                    f" {microbatch}, of {self.num_microbatches} microbatches",
                    field="schedule",
                )
        num_chunks = len({chunk for _, chunk in kinds})
        if len(kinds) != self.num_microbatches * num_chunks:
            raise PlanningError(
                f"stage {stage} does not run all {self.num_microbatches} microbatches",
                field="schedule",
            )

    @property
    def num_stages(self) -> int:
        """Number of pipeline stages."""
        return len(self.stages)


@dataclass(frozen=True, kw_only=True)
class ScheduleContext:
    """What an order may depend on besides the pipeline's shape."""

    profile: StageProfile
    num_microbatches: int
    activation_memory: ActivationMemory | None

    def __post_init__(self) -> None:
        if not 1 <= self.num_microbatches <= MAX_NUM_MICROBATCHES:
            raise PlanningError(
                f"must be from 1 to {MAX_NUM_MICROBATCHES}, not {self.num_microbatches}",
                field="num_microbatches",
            )
        memory = self.activation_memory
        if memory and len(memory.activation_bytes) != self.profile.num_stages:
            raise PlanningError(
                f"{len(memory.activation_bytes)} entries for {self.profile.num_stages} stages;"
                " give one per stage",
                field="activation_bytes",
            )


ScheduleMaker = Callable[[ScheduleContext], Schedule]


def _is_whole(kinds: set[InstructionKind]) -> bool:
    """Whether these are all that one microbatch needs, none of it twice."""
    forward = {InstructionKind.FORWARD}
    return kinds - {InstructionKind.RECOMPUTE} in (
        forward | {InstructionKind.BACKWARD},
        forward | {InstructionKind.BACKWARD_INPUT, InstructionKind.BACKWARD_WEIGHT},
    )


def backward_kinds(profile: StageProfile, stage: int) -> tuple[InstructionKind, ...]:
    """The instructions that make up this stage's backward: whole, or input then weight."""
    if (stage, InstructionKind.BACKWARD) in profile.points:
        return (InstructionKind.BACKWARD,)
    return (InstructionKind.BACKWARD_INPUT, InstructionKind.BACKWARD_WEIGHT)


def warmup_then_alternate(context: ScheduleContext, stage: int, warmup: int) -> list[Instruction]:
    """`warmup` forwards (at most all), then backward and forward in turn, then the rest.

    A stage whose backward is profiled in two parts runs the weight part right after the input
    part, as frameworks do when a schedule does not split them.
    """
    num_microbatches = context.num_microbatches
    warmup = min(warmup, num_microbatches)
    forwards = [Instruction(InstructionKind.FORWARD, m) for m in range(num_microbatches)]
    order = forwards[:warmup]
    for microbatch in range(num_microbatches):
        order += [Instruction(kind, microbatch) for kind in backward_kinds(context.profile, stage)]
        order += forwards[warmup + microbatch : warmup + microbatch + 1]
    return order
