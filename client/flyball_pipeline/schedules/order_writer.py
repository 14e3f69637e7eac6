"""Writing a stage's order in the usual notation: `F0 F1 B1`, repeated.

A token is a letter and a chunk: `F` forward, `R` recompute, `B` whole backward, `I` and `W` its
input and weight parts. Each gets the next microbatch of its kind and chunk. `W` without a chunk
is the weight part that has waited longest.
"""

from __future__ import annotations

from collections import Counter, deque

from flyball_pipeline.instruction import Instruction, InstructionKind, PipelineShape

_KINDS = {
    "F": InstructionKind.FORWARD,
    "R": InstructionKind.RECOMPUTE,
    "B": InstructionKind.BACKWARD,
    "I": InstructionKind.BACKWARD_INPUT,
    "W": InstructionKind.BACKWARD_WEIGHT,
}


class OrderWriter:
    """One stage's order, written from its begin.

    A chunk whose backward was measured in two parts only runs them one after the other where
    the order has a whole one.

    Args:
        shape: shape of the pipeline; microbatches beyond its number are left out, so that an
            order can be described for more than there are.
        stage: stage that runs the order.
    """

    def __init__(self, shape: PipelineShape, stage: int) -> None:
        chunks = shape.chunks or (shape.stages,)
        self._is_whole = [InstructionKind.BACKWARD in chunk[stage] for chunk in chunks]
        self._num_microbatches = shape.num_microbatches
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
