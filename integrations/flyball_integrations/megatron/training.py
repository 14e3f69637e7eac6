"""Detection of Megatron's training calls, and the hooks around them.

Both ways into Megatron (`patch_schedules`, `timers.py`) call it; it calls the session's hooks.
Calls without training (`forward_only`) reach no hook.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from flyball_integrations.shared.instruction_hooks import InstructionHooks
from flyball_integrations.shared.transfer_timers import TransferTimer


class MegatronTraining:
    """Steps of one rank and the computations in them.

    A step is one call of Megatron's `forward_backward_func`, or what stands in a
    `with training_step()` around it.

    Args:
        hooks: called in the order of execution.
        synchronize: waits until the device has finished the computations launched so far.
        transfers: times receives and sends; None: they are not timed.
    """

    def __init__(
        self,
        hooks: InstructionHooks,
        *,
        synchronize: Callable[[], None],
        transfers: TransferTimer | None = None,
    ) -> None:
        self._hooks = hooks
        self._synchronize = synchronize
        self._transfers = transfers
        self._is_in_step = False
        self._is_step_of_call = False
        self._is_evaluating = False

    @property
    def is_training(self) -> bool:
        """Return whether a training step runs."""
        return self._is_in_step and not self._is_evaluating

    # ------------------------------------------------------------------ steps

    @contextmanager
    def training_step(self) -> Iterator[None]:
        """Run the block as one training step, the optimizer's included."""
        self._begin_step()
        try:
            yield
        except BaseException:
            self._fail_step()
            raise
        self._end_step()

    @contextmanager
    def call(self, *, forward_only: bool) -> Iterator[None]:
        """Run the forwards and backwards of all microbatches inside the block."""
        self.begin_call(forward_only=forward_only)
        try:
            yield
        except BaseException:
            self._is_evaluating = False
            if self._is_step_of_call:
                self._fail_step()
            raise
        self.end_call()

    def begin_call(self, *, forward_only: bool) -> None:
        """Begin a call; one that never ended is dropped."""
        self._is_evaluating = forward_only
        if forward_only or (self._is_in_step and not self._is_step_of_call):
            return
        self._begin_step()
        self._is_step_of_call = True

    def end_call(self) -> None:
        """End the call."""
        if self._is_step_of_call and not self._is_evaluating:
            self._end_step()
        self._is_evaluating = False

    # ------------------------------------------------------------------ instructions

    def begin(self, kind: str, microbatch: int | None, chunk: int) -> None:
        """Call before a forward or a backward is launched."""
        self._synchronize()
        if self._transfers is not None:
            self._transfers.report()
        self._hooks.on_instruction_begin(kind, microbatch=microbatch, chunk=chunk)

    def end(self, kind: str, microbatch: int | None, chunk: int) -> None:
        """Call after the launch."""
        self._synchronize()
        self._hooks.on_instruction_end(kind, microbatch=microbatch, chunk=chunk)

    # ------------------------------------------------------------------ inside

    def _begin_step(self) -> None:
        if self._transfers is not None:
            self._transfers.discard()
        self._hooks.on_step_begin()
        self._is_in_step = True
        self._is_step_of_call = False

    def _end_step(self) -> None:
        self._is_in_step = self._is_step_of_call = False
        if self._transfers is not None:
            self._transfers.end_step()
        self._hooks.on_step_end()

    def _fail_step(self) -> None:
        self._is_in_step = self._is_step_of_call = False
        if self._transfers is not None:
            self._transfers.discard()
        self._hooks.on_step_failed()
