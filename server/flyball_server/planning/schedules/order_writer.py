"""Writing a stage's order in the usual notation: `F0 F1 B1`, repeated.

A token is a letter and a chunk: `F` forward, `R` recompute, `B` whole backward, `I` and `W` its
input and weight parts. Each gets the next microbatch of its kind and chunk. `W` without a chunk
is the weight part that has waited longest.
"""

from __future__ import annotations

from collections import Counter, deque

from flyball_profiles.stage_profile import InstructionKind, StageProfile
from flyball_server.planning.errors import PlanningError
from flyball_server.planning.schedules._base import Instruction

_KINDS = {
    "F": InstructionKind.FORWARD,
    "R": InstructionKind.RECOMPUTE,
    "B": InstructionKind.BACKWARD,
    "I": InstructionKind.BACKWARD_INPUT,
    "W": InstructionKind.BACKWARD_WEIGHT,
}


class OrderWriter:
    """One stage's order, written from its begin.

    A chunk whose backward was profiled in two parts only runs them one after the other where
    the order has a whole one.

    Args:
        chunks: the profile of each chunk.
        stage: stage that runs the order.
        num_microbatches: what goes beyond is left out, so that an order can be described for
            more microbatches than there are.
    """

    def __init__(self, chunks: tuple[StageProfile, ...], stage: int, num_microbatches: int) -> None:
        self._is_whole = [(stage, InstructionKind.BACKWARD) in chunk.points for chunk in chunks]
        self._num_microbatches = num_microbatches
        self._written: list[Instruction] = []
        self._counts: Counter[tuple[InstructionKind, int]] = Counter()
        self._waiting: deque[tuple[int, int]] = deque()

    @property
    def order(self) -> tuple[Instruction, ...]:
        """Return what has been written."""
        return tuple(self._written)

    def write(self, tokens: str, times: int = 1) -> None:
        """Append these, in turn, `times` times (a negative number is none)."""
        for token in tokens.split() * times:
            self._write(token[0], int(token[1:]) if token[1:] else None)

    def num_written(self, token: str) -> int:
        """Return how often it stands there so far, left-out microbatches included."""
        return self._counts[_KINDS[token[0]], int(token[1:])]

    def _write(self, letter: str, chunk: int | None) -> None:
        if chunk is None:
            self._write_waiting_weight()
        elif letter == "B":
            microbatch = self._next(InstructionKind.BACKWARD_INPUT, chunk)
            self._next(InstructionKind.BACKWARD_WEIGHT, chunk)
            if self._is_whole[chunk]:
                self._append(InstructionKind.BACKWARD, microbatch, chunk)
            else:
                self._append(InstructionKind.BACKWARD_INPUT, microbatch, chunk)
                self._append(InstructionKind.BACKWARD_WEIGHT, microbatch, chunk)
        else:
            microbatch = self._next(_KINDS[letter], chunk)
            self._append(_KINDS[letter], microbatch, chunk)
            if letter == "I":
                self._waiting.append((microbatch, chunk))
            elif letter == "W":
                self._waiting.remove((microbatch, chunk))

    def _write_waiting_weight(self) -> None:
        if self._waiting:
            microbatch, chunk = self._waiting.popleft()
            self._next(InstructionKind.BACKWARD_WEIGHT, chunk)
            self._append(InstructionKind.BACKWARD_WEIGHT, microbatch, chunk)

    def _next(self, kind: InstructionKind, chunk: int) -> int:
        microbatch = self._counts[kind, chunk]
        self._counts[kind, chunk] += 1
        return microbatch

    def _append(self, kind: InstructionKind, microbatch: int, chunk: int) -> None:
        if microbatch < self._num_microbatches:
            self._written.append(Instruction(kind, microbatch, chunk))


def require_split_backward(chunks: tuple[StageProfile, ...], schedule: str) -> None:
    """Check that every stage's backward is profiled in its two parts.

    Raises:
        PlanningError: one's is not.
    """
    parts = (InstructionKind.BACKWARD_INPUT, InstructionKind.BACKWARD_WEIGHT)
    for number, chunk in enumerate(chunks):
        for stage in range(chunk.num_stages):
            for kind in parts:
                if (stage, kind) not in chunk.points:
                    where = f"stage {stage}" + (f", chunk {number}" if len(chunks) > 1 else "")
                    raise PlanningError(
                        f"has no {kind} of {where}; {schedule} runs a backward in two parts",
                        field="profile",
                    )


def chunks_of(
    profile: StageProfile, schedule: str, num_chunks: int | None = None
) -> tuple[StageProfile, ...]:
    """Return the profile of each chunk, at least two, or exactly `num_chunks`.

    Raises:
        PlanningError: it has fewer, or another number.
    """
    if len(profile.chunks) < 2 or num_chunks not in (None, len(profile.chunks)):
        wanted = "at least 2" if num_chunks is None else str(num_chunks)
        raise PlanningError(
            f"has {len(profile.chunks) or 'no'} chunks; {schedule} runs {wanted} per stage: measure"
            " each and give its number in the column chunk",
            field="profile",
        )
    return profile.chunks
