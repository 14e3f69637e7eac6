"""Hooks that an integration calls at each instruction, and the microbatch of each buffer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

# DeepSpeed's instruction type -> what executes it, called with the engine and `buffer_id=`.
Execute = Callable[..., Any]
Instructions = dict[type, Execute]
InstructionWrapper = Callable[[Instructions], Instructions]


class InstructionHooks(Protocol):
    """Hooks of a rank; `flyball_client.session.rank_session.RankSession` implements them."""

    def on_step_begin(self) -> None:
        """Begin a training step (one optimizer step)."""
        ...

    def on_step_end(self) -> None:
        """End the training step, optimizer included."""
        ...

    def on_step_failed(self) -> None:
        """End a training step that raised; called instead of `on_step_end`."""
        ...

    def on_instruction_begin(
        self, kind: str, *, microbatch: int | None = None, chunk: int = 0
    ) -> None:
        """Begin one computation on one microbatch."""
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
        # Microbatch of the gradient in a buffer, from its backward until the next one there.
        self._microbatch_of_gradient: dict[int, int | None] = {}

    def clear(self) -> None:
        """Begin a step: count from microbatch 0 again."""
        self._num_forwards = 0
        self._microbatch_of_buffer.clear()
        self._microbatch_of_gradient.clear()

    def of_forward(self, buffer_id: int) -> int:
        """Return the microbatch of the forward that now fills this buffer."""
        microbatch = self._num_forwards
        self._num_forwards += 1
        self._microbatch_of_buffer[buffer_id] = microbatch
        return microbatch

    def of_backward(self, buffer_id: int) -> int | None:
        """Return the microbatch in this buffer; None: no forward of this step filled it."""
        microbatch = self._microbatch_of_buffer.pop(buffer_id, None)
        self._microbatch_of_gradient[buffer_id] = microbatch
        return microbatch

    def of_sent(self, kind: str, buffer_id: int) -> int | None:
        """Return the microbatch of the output (`forward`) or input gradient in this buffer."""
        held = self._microbatch_of_buffer if kind == "forward" else self._microbatch_of_gradient
        return held.get(buffer_id)
