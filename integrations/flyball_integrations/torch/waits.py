"""How long a rank of torch.distributed.pipelining waits for its messages."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

import torch

from flyball_client.session.instruction_timings import Transfer
from flyball_integrations.shared.transfer_timers import (
    DeviceTransferTimer,
    HostTransferTimer,
    TransferTimer,
)
from flyball_integrations.torch.private_schedules import Wait, waits_replaced


class Instruction(NamedTuple):
    """One computation, as hooks are told of it."""

    kind: str
    microbatch: int
    chunk: int


class OnChunkTransfer(Protocol):
    """What is told of a transfer that is over; `RankSession.on_transfer` is one."""

    def __call__(
        self,
        transfer: Transfer,
        kind: str,
        *,
        time_s: float,
        microbatch: int | None = None,
        chunk: int = 0,
    ) -> None:
        """A receive or a send of an instruction took so long."""
        ...


class WaitTimes:
    """Times the waits of one schedule's steps, and tells them as receives and sends.

    torch waits for a list of transfers without saying which way they go. So what is waited for
    before a computation counts as its receive, from the first wait on, and what is waited for
    after the last one of a step as its send.

    Args:
        on_transfer: told of each.
        device: of the stage; on the CPU a wait is over when it returns, elsewhere it is launched.
        clock_s: monotonic time, s.
    """

    def __init__(
        self,
        on_transfer: OnChunkTransfer,
        *,
        device: torch.device,
        clock_s: Callable[[], float],
    ) -> None:
        self._on_transfer = on_transfer
        self._last = Instruction("forward", 0, 0)
        self._is_waiting = False
        self.timer: TransferTimer
        if device.type == "cpu":
            self.timer = HostTransferTimer(self._tell, clock_s=clock_s)
        else:
            make_event = torch.get_device_module(device).Event
            self.timer = DeviceTransferTimer(self._tell, make_event=make_event)

    @contextmanager
    def in_force(self) -> Iterator[None]:
        """A step of the schedule; its waits are timed."""
        self._is_waiting = False
        with waits_replaced(self._timed):
            yield
        self._end("send", self._last)

    def before(self, instruction: Instruction) -> None:
        """This computation is about to begin; its input is there, or launched."""
        self._last = instruction
        self._end("receive", instruction)

    def _timed(self, wait: Wait) -> Wait:
        def timed_wait(work: Sequence[Any]) -> None:
            if work and not self._is_waiting:
                self._is_waiting = True
                self.timer.begin()
            wait(work)

        return timed_wait

    def _end(self, transfer: Transfer, instruction: Instruction) -> None:
        if self._is_waiting:
            self._is_waiting = False
            self.timer.end(transfer, instruction.kind, instruction.microbatch)

    def _tell(
        self, transfer: Transfer, kind: str, *, time_s: float, microbatch: int | None = None
    ) -> None:
        # Receives go to the next of their kind; there is one send a step, and it is told last.
        chunk = self._last.chunk
        self._on_transfer(transfer, kind, time_s=time_s, microbatch=microbatch, chunk=chunk)
