"""What a schedule is: for each stage, its instructions in the order of execution."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from flyball_profiles.stage_profile import InstructionKind, StageProfile
from flyball_server.planning.errors import PlanningError


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
        PlanningError: there is no stage, or a stage runs an instruction twice.
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
        if self.num_microbatches < 1:
            raise PlanningError(
                f"must be at least 1, not {self.num_microbatches}", field="num_microbatches"
            )
        memory = self.activation_memory
        if memory and len(memory.activation_bytes) != self.profile.num_stages:
            raise PlanningError(
                f"{len(memory.activation_bytes)} entries for {self.profile.num_stages} stages;"
                " give one per stage",
                field="activation_bytes",
            )


ScheduleMaker = Callable[[ScheduleContext], Schedule]


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
