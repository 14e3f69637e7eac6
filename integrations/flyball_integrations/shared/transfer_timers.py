"""Duration of a rank's receives and sends: by the host's clock, or by events on the GPU.

Over gloo a transfer is over when its call returns. On a GPU the call only launches it, so events
are recorded before and after, and read once the device has been waited for anyway.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from flyball_client.session.instruction_timings import Transfer

_logger = logging.getLogger(__name__)


class OnTransfer(Protocol):
    """Callback after a transfer; `RankSession.on_transfer` is one."""

    def __call__(
        self, transfer: Transfer, kind: str, *, time_s: float, microbatch: int | None = None
    ) -> None:
        """A receive or a send of an instruction of this kind took so long."""
        ...


class TransferTimer(Protocol):
    """Times the transfers of a training step; it raises nothing into training."""

    def begin(self) -> None:
        """The next transfer is about to be executed."""
        ...

    def end(self, transfer: Transfer, kind: str, microbatch: int | None) -> None:
        """It has been executed, or launched."""
        ...

    def tell(self) -> None:
        """The device has finished all that was launched: tell what is not told yet."""
        ...

    def end_step(self) -> None:
        """The step is over, optimizer included: tell the rest."""
        ...

    def forget(self) -> None:
        """The step was broken off: what is not told will not be."""
        ...


class HostTransferTimer:
    """For transfers that are over when their call returns.

    Args:
        on_transfer: told at once.
        clock_s: monotonic time, s.
    """

    def __init__(self, on_transfer: OnTransfer, *, clock_s: Callable[[], float]) -> None:
        self._on_transfer = on_transfer
        self._clock_s = clock_s
        self._began_s = 0.0

    def begin(self) -> None:
        """Read the clock."""
        self._began_s = self._clock_s()

    def end(self, transfer: Transfer, kind: str, microbatch: int | None) -> None:
        """Read it again, and tell."""
        time_s = self._clock_s() - self._began_s
        self._on_transfer(transfer, kind, time_s=time_s, microbatch=microbatch)

    def tell(self) -> None:
        """Nothing: all is told."""

    def end_step(self) -> None:
        """Likewise."""

    def forget(self) -> None:
        """Likewise."""


@dataclass(frozen=True, kw_only=True)
class _Launched:
    """A transfer that has been launched between two events."""

    transfer: Transfer
    kind: str
    microbatch: int | None
    before: Any
    after: Any


class DeviceTransferTimer:
    """For transfers that are launched on a GPU's stream.

    Nothing is waited for here but, at the end of a step, the last send: the optimizer's work is
    launched behind it by then, so the GPU goes on. If an event fails, transfers are no longer
    timed, with one line in the log.

    Args:
        on_transfer: told when the device has been waited for.
        make_event: makes an event that can be timed, as `torch.cuda.Event`.
    """

    def __init__(self, on_transfer: OnTransfer, *, make_event: Callable[..., Any]) -> None:
        self._on_transfer = on_transfer
        self._make_event = make_event
        self._spare: list[Any] = []
        self._before: Any = None
        self._launched: list[_Launched] = []
        self._is_over = False

    def begin(self) -> None:
        """Record an event in front."""
        if self._is_over:
            return
        try:
            self._before = self._recorded()
        except Exception as error:
            self._give_up(error)

    def end(self, transfer: Transfer, kind: str, microbatch: int | None) -> None:
        """Record an event behind."""
        if self._is_over:
            return
        try:
            launched = _Launched(
                transfer=transfer,
                kind=kind,
                microbatch=microbatch,
                before=self._before,
                after=self._recorded(),
            )
        except Exception as error:
            self._give_up(error)
            return
        self._launched.append(launched)

    def tell(self) -> None:
        """Read the events; the device has been waited for."""
        if not self._launched:
            return
        try:
            for one in self._launched:
                time_s = one.before.elapsed_time(one.after) / 1000
                self._on_transfer(one.transfer, one.kind, time_s=time_s, microbatch=one.microbatch)
                self._spare += (one.before, one.after)
        except Exception as error:
            self._give_up(error)
        self._launched.clear()

    def end_step(self) -> None:
        """Wait for the sends after the last computation, and read them."""
        if not self._launched:
            return
        try:
            self._launched[-1].after.synchronize()
        except Exception as error:
            self._give_up(error)
        self.tell()

    def forget(self) -> None:
        """Their events may never come to pass; new ones are made."""
        self._launched.clear()

    def _recorded(self) -> Any:  # noqa: ANN401 - an event of whatever accelerator
        event = self._spare.pop() if self._spare else self._make_event(enable_timing=True)
        event.record()
        return event

    def _give_up(self, error: Exception) -> None:
        self._is_over = True
        self._launched.clear()
        _logger.warning("receives and sends are no longer timed: %s", error)
