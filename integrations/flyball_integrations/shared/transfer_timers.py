"""Duration of a rank's receives and sends: by the host's clock, or by events on the GPU.

Over gloo a transfer is over when its call returns. On a GPU the call only launches it, so events
are recorded before and after, and read after the next synchronization with the device.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from flyball_client.session.instruction_timings import Transfer

_logger = logging.getLogger(__name__)

# Called with the transfer, the kind of its instruction, `time_s=`, `microbatch=` and `chunk=`, as
# `RankSession.on_transfer`.
OnTransfer = Callable[..., None]


class TransferTimer:
    """Timer of transfers that are over when their call returns; it raises nothing into training."""

    def __init__(self, on_transfer: OnTransfer, *, clock_s: Callable[[], float]) -> None:
        self._on_transfer = on_transfer
        self._clock_s = clock_s
        self._began_s = 0.0

    def begin(self) -> None:
        """Call before a transfer is executed."""
        self._began_s = self._clock_s()

    def end(self, transfer: Transfer, kind: str, microbatch: int | None, *, chunk: int = 0) -> None:
        """Call after it was executed, or launched."""
        time_s = self._clock_s() - self._began_s
        self._on_transfer(transfer, kind, time_s=time_s, microbatch=microbatch, chunk=chunk)

    def report(self) -> None:
        """Report transfers that were launched; call after a synchronization with the device."""

    def end_step(self) -> None:
        """Report the rest; call after the step, optimizer included."""

    def discard(self) -> None:
        """Discard unreported times; call after a step that failed."""


class DeviceTransferTimer(TransferTimer):
    """Timer of transfers that are launched on a GPU's stream.

    It waits only at the end of a step, for the last send: the optimizer's work is launched behind
    it by then, so the GPU continues. After an event that fails, transfers are no longer timed,
    with one line in the log.

    Args:
        on_transfer: called after a synchronization with the device.
        make_event: returns an event that can be timed, as `torch.cuda.Event`.
    """

    def __init__(self, on_transfer: OnTransfer, *, make_event: Callable[..., Any]) -> None:
        super().__init__(on_transfer, clock_s=lambda: 0.0)
        self._make_event = make_event
        self._spare: list[Any] = []
        self._before: Any = None
        # Transfer, kind, microbatch, chunk, and the events around it.
        self._launched: list[tuple[Transfer, str, int | None, int, Any, Any]] = []
        self._is_over = False

    def begin(self) -> None:
        """Record an event in front."""
        self._unless_it_fails(self._record_before)

    def end(self, transfer: Transfer, kind: str, microbatch: int | None, *, chunk: int = 0) -> None:
        """Record an event behind."""
        self._unless_it_fails(
            lambda: self._launched.append(
                (transfer, kind, microbatch, chunk, self._before, self._recorded())
            )
        )

    def report(self) -> None:
        """Read the events."""
        self._unless_it_fails(self._read)

    def end_step(self) -> None:
        """Wait for the sends after the last computation, and read their events."""
        if self._launched:
            self._unless_it_fails(self._launched[-1][-1].synchronize)
            self.report()

    def discard(self) -> None:
        """Drop events that may never complete; new ones are made."""
        self._launched.clear()

    def _unless_it_fails(self, act: Callable[[], object]) -> None:
        if self._is_over:
            return
        try:
            act()
        except Exception as error:
            self._is_over = True
            self._launched.clear()
            _logger.warning("receives and sends are no longer timed: %s", error)

    def _record_before(self) -> None:
        self._before = self._recorded()

    def _recorded(self) -> Any:  # noqa: ANN401 - an event of whatever accelerator
        event = self._spare.pop() if self._spare else self._make_event(enable_timing=True)
        event.record()
        return event

    def _read(self) -> None:
        for transfer, kind, microbatch, chunk, before, after in self._launched:
            time_s = before.elapsed_time(after) / 1000
            self._on_transfer(transfer, kind, time_s=time_s, microbatch=microbatch, chunk=chunk)
            self._spare += (before, after)
        self._launched.clear()
