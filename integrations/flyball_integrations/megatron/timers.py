"""Hooks without changing anything of Megatron's: a callable in the place of its timers.

Megatron starts and stops a timer of `config.timers` around each forward, backward, receive and
send. Timers get no microbatch and chunk: these are counted, in the order of the schedule.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any

import torch

from flyball_client.session.instruction_timings import Transfer
from flyball_integrations.megatron.training import MegatronTraining
from flyball_integrations.shared.transfer_timers import TransferTimer
from flyball_pipeline.instruction import Instruction, InstructionKind

_INSTRUCTIONS = {"forward-compute": "forward", "backward-compute": "backward"}

# Transfer that each timer measures; one that sends and receives waits for the receive.
_TRANSFERS: dict[str, tuple[Transfer, str]] = {
    "forward-recv": ("receive", "forward"),
    "backward-recv": ("receive", "backward"),
    "forward-send": ("send", "forward"),
    "backward-send": ("send", "backward"),
    "forward-send-backward-recv": ("receive", "backward"),
    "backward-send-forward-recv": ("receive", "forward"),
    "forward-send-forward-recv": ("receive", "forward"),
    "backward-send-backward-recv": ("receive", "backward"),
    "forward-backward-send-forward-backward-recv": ("receive", "forward"),
}


class HookedTimers:
    """Replacement for `config.timers` that passes all calls on to the timers before it.

    A call of Megatron's schedule without gradients (`torch.no_grad`) counts as an evaluation.

    Args:
        timers: the timers before it; None: there were none.
        training: called around every call, forward and backward.
        order: instructions of this rank's stage, in the order of execution.
        transfers: timer of every receive and send.
    """

    def __init__(
        self,
        timers: Any,  # noqa: ANN401 - Megatron's Timers, or whatever can be called like it
        training: MegatronTraining,
        *,
        order: Sequence[Instruction],
        transfers: TransferTimer,
    ) -> None:
        self._timers = timers
        self._training = training
        self._transfers = transfers
        self._places = {
            kind.value: [
                (instruction.microbatch, instruction.chunk)
                for instruction in order
                if instruction.kind == kind
            ]
            for kind in (InstructionKind.FORWARD, InstructionKind.BACKWARD)
        }
        self._num_done = dict.fromkeys(self._places, 0)
        self._running: tuple[int | None, int] = (None, 0)

    def __call__(self, name: str, *args: object, **kwargs: object) -> HookedTimer:
        """Return the timer of this name; Megatron calls it at each start and stop."""
        timer = None if self._timers is None else self._timers(name, *args, **kwargs)
        if name == "forward-backward":
            return HookedTimer(timer, self._begin_call, self._training.end_call)
        if name in _INSTRUCTIONS:
            kind = _INSTRUCTIONS[name]
            return HookedTimer(timer, lambda: self._begin(kind), lambda: self._end(kind))
        if name in _TRANSFERS:
            return HookedTimer(
                timer, self._begin_transfer, lambda: self._end_transfer(*_TRANSFERS[name])
            )
        return HookedTimer(timer, _nothing, _nothing)

    def __getattr__(self, name: str) -> object:
        """Return other attributes of the timers before it (`log`, `write`, ...)."""
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._timers, name)

    def __deepcopy__(self, memo: object) -> HookedTimers:
        """Return itself: Megatron copies configs, and there is one training."""
        return self

    def _begin_call(self) -> None:
        self._num_done = dict.fromkeys(self._places, 0)
        self._training.begin_call(forward_only=not torch.is_grad_enabled())

    def _begin(self, kind: str) -> None:
        if not self._training.is_training:
            return
        number = self._num_done[kind]
        self._num_done[kind] = number + 1
        self._running = next(islice(self._places[kind], number, None), (None, 0))
        self._training.begin(kind, *self._running)

    def _end(self, kind: str) -> None:
        if self._training.is_training:
            self._training.end(kind, *self._running)

    def _begin_transfer(self) -> None:
        if self._training.is_training:
            self._transfers.begin()

    def _end_transfer(self, transfer: Transfer, kind: str) -> None:
        if self._training.is_training:
            self._transfers.end(transfer, kind, None)


class HookedTimer:
    """One timer with callbacks inside its start and stop."""

    def __init__(
        self,
        timer: Any,  # noqa: ANN401 - Megatron's Timer; None: there is none
        on_start: Callable[[], None],
        on_stop: Callable[[], None],
    ) -> None:
        self._timer = timer
        self._on_start = on_start
        self._on_stop = on_stop

    def start(self, *args: object, **kwargs: object) -> None:
        """Start it, with Megatron's arguments."""
        if self._timer is not None:
            self._timer.start(*args, **kwargs)
        self._on_start()

    def stop(self, *args: object, **kwargs: object) -> None:
        """Stop it."""
        self._on_stop()
        if self._timer is not None:
            self._timer.stop(*args, **kwargs)

    def __getattr__(self, name: str) -> object:
        """Return other attributes of the timer (`elapsed`, `reset`, ...)."""
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._timer, name)


def _nothing() -> None:
    pass
