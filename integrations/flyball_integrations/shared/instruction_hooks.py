"""Hooks that an integration calls at each instruction, and the microbatch of each buffer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

# DeepSpeed's instruction type -> what executes it, called with the engine and `buffer_id=`.
Execute = Callable[..., Any]
Instructions = dict[type, Execute]
InstructionWrapper = Callable[[Instructions], Instructions]


class InstructionHooks(Protocol):
    """The hooks of a rank; `flyball_client.session.rank_session.RankSession` has them."""

    def on_step_begin(self) -> None:
        """A training step (one optimizer step) begins."""
        ...

    def on_step_end(self) -> None:
        """The training step is over, optimizer included."""
        ...

    def on_step_failed(self) -> None:
        """The training step was broken off by an exception; in the place of `on_step_end`."""
        ...

    def on_instruction_begin(
        self, kind: str, *, microbatch: int | None = None, chunk: int = 0
    ) -> None:
        """One computation on one microbatch begins."""
        ...

    def on_instruction_end(
        self, kind: str, *, microbatch: int | None = None, chunk: int = 0
    ) -> None:
        """End the instruction."""
        ...


class BufferMicrobatches:
    """Microbatch of each pipeline buffer, found by counting a step's forwards.

    DeepSpeed's instructions carry a buffer's number only. A step runs its forwards in the
    order of the microbatches, so the n-th forward is microbatch n; the backward of a buffer
    belongs to the forward that filled it last.
    """

    def __init__(self) -> None:
        self._num_forwards = 0
        self._microbatch_of_buffer: dict[int, int | None] = {}
        # Whose gradient a buffer holds, from its backward until the next one there.
        self._microbatch_of_gradient: dict[int, int | None] = {}

    def clear(self) -> None:
        """A new step begins: count from microbatch 0 again."""
        self._num_forwards = 0
        self._microbatch_of_buffer.clear()
        self._microbatch_of_gradient.clear()

    def of_forward(self, buffer_id: int) -> int:
        """The microbatch of the forward that now fills this buffer."""
        microbatch = self._num_forwards
        self._num_forwards += 1
        self._microbatch_of_buffer[buffer_id] = microbatch
        return microbatch

    def of_backward(self, buffer_id: int) -> int | None:
        """The microbatch in this buffer; None where no forward of this step filled it."""
        microbatch = self._microbatch_of_buffer.pop(buffer_id, None)
        self._microbatch_of_gradient[buffer_id] = microbatch
        return microbatch

    def of_sent(self, kind: str, buffer_id: int) -> int | None:
        """The microbatch whose output (of `forward`) or input's gradient this buffer holds."""
        held = self._microbatch_of_buffer if kind == "forward" else self._microbatch_of_gradient
        return held.get(buffer_id)
