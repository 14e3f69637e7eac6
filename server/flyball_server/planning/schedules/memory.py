"""Check of an order against a stage's memory."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from flyball_profiles.stage_profile import InstructionKind
from flyball_server.planning.errors import PlanningError
from flyball_server.planning.schedules._base import ActivationMemory, Instruction, Schedule

_RELEASING = frozenset({InstructionKind.BACKWARD, InstructionKind.BACKWARD_WEIGHT})


def peak_activations(schedule: Schedule) -> tuple[int, ...]:
    """Per stage, the most forwards (of a chunk) whose last backward is still to end.

    Held from a forward's start to its whole backward's end, or its weight part's. What is
    computed forward again is held from its recomputation on: before, only its input is.
    """
    if schedule.is_periodic:
        return tuple(schedule.num_stages - stage for stage in range(schedule.num_stages))
    return tuple(_most_held(instructions) for instructions in schedule.stages)


def check_memory(schedule: Schedule, memory: ActivationMemory | None) -> None:
    """Refuse an order that a stage's memory cannot hold.

    A chunk of v counts for 1/v of a microbatch's activations: they are given for whole stages.

    Raises:
        PlanningError: names the first stage that is too small.
    """
    if memory is None:
        return
    for stage, held, room in _over_full(schedule, memory):
        raise PlanningError(
            f"{schedule.name} keeps the activations of {float(held):g} microbatches on stage"
            f" {stage}, whose memory holds {float(room):g}",
            field="free_memory_bytes",
        )


def _over_full(
    schedule: Schedule, memory: ActivationMemory
) -> list[tuple[int, Fraction, Fraction]]:
    """(stage, microbatches held, microbatches that there is room for) of those too small."""
    found: list[tuple[int, Fraction, Fraction]] = []
    for stage, peak in enumerate(peak_activations(schedule)):
        held = Fraction(peak, schedule.num_chunks)
        # Free is what is left beside 1F1B's.
        of_one_f_one_b = min(schedule.num_stages - stage, schedule.num_microbatches)
        extra = Fraction(memory.free_bytes[stage], memory.activation_bytes[stage])
        if held > of_one_f_one_b + extra:
            found.append((stage, held, of_one_f_one_b + extra))
    return found


def _most_held(instructions: Sequence[Instruction]) -> int:
    recomputed = {
        (instruction.microbatch, instruction.chunk)
        for instruction in instructions
        if instruction.kind is InstructionKind.RECOMPUTE
    }
    held = peak = 0
    for instruction in instructions:
        is_recomputed = (instruction.microbatch, instruction.chunk) in recomputed
        if instruction.kind is InstructionKind.RECOMPUTE or (
            instruction.kind is InstructionKind.FORWARD and not is_recomputed
        ):
            held += 1
            peak = max(peak, held)
        elif instruction.kind in _RELEASING:
            held -= 1
    return peak
