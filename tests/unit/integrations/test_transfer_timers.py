"""Timing of receives and sends, by the host's clock and by events that stand for the GPU's."""

from __future__ import annotations

import pytest

from flyball_integrations.shared.transfer_timers import DeviceTransferTimer, TransferTimer


class Device:
    """A GPU's stream: what is launched on it is over only when it is waited for."""

    def __init__(self) -> None:
        self.now_ms = 0.0
        self.num_waits = 0
        self.fails = False
        self._pending: list[Event] = []

    def make_event(self, *, enable_timing: bool) -> Event:
        """An event, as torch.cuda.Event makes it."""
        assert enable_timing
        return Event(self)

    def launched(self, event: Event) -> None:
        """It is over when the stream has come to it."""
        if self.fails:
            raise RuntimeError("CUDA error")
        event.launched_ms = self.now_ms
        event.over_ms = None
        self._pending.append(event)

    def synchronize(self) -> None:
        """All that was launched is over."""
        for event in self._pending:
            event.over_ms = event.launched_ms
        self._pending.clear()


class Event:
    """One event of it."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self.launched_ms = 0.0
        self.over_ms: float | None = None

    def record(self) -> None:
        """Launch it."""
        self._device.launched(self)

    def synchronize(self) -> None:
        """Wait for it."""
        self._device.num_waits += 1
        self._device.synchronize()

    def elapsed_time(self, after: Event) -> float:
        """Between this and a later event, ms; refused as CUDA does while one is not over."""
        if self.over_ms is None or after.over_ms is None:
            raise RuntimeError("Both events must be completed before calculating elapsed time.")
        return after.over_ms - self.over_ms


class Listener:
    def __init__(self) -> None:
        self.told: list[tuple[object, ...]] = []

    def __call__(self, *transfer: object, chunk: int, **of_transfer: object) -> None:
        assert chunk == 0
        self.told.append((*transfer, *of_transfer.values()))


class Timed:
    """A timer of a device's transfers, and what it tells."""

    def __init__(self) -> None:
        self.device, self.listener = Device(), Listener()
        self.timer = DeviceTransferTimer(self.listener, make_event=self.device.make_event)

    def transfer(self, ms: float, microbatch: int | None = None) -> None:
        self.timer.begin()
        self.device.now_ms += ms
        self.timer.end("receive" if microbatch is None else "send", "forward", microbatch)


def test_on_the_host_a_transfer_is_told_when_its_call_returns() -> None:
    listener, moments_s = Listener(), iter([1.0, 1.5, 7.0, 9.0])
    timer = TransferTimer(listener, clock_s=lambda: next(moments_s))
    timer.begin()
    timer.end("receive", "backward", None)
    assert listener.told == [("receive", "backward", 0.5, None)]
    timer.begin()
    timer.end("send", "forward", 3)
    for do_nothing in (timer.report, timer.end_step, timer.discard):
        do_nothing()
    assert listener.told[1:] == [("send", "forward", 2.0, 3)]


def test_on_a_device_transfers_are_told_once_it_has_been_waited_for_and_not_waited_for_here() -> (
    None
):
    timed = Timed()
    timed.transfer(250)
    timed.transfer(500, microbatch=2)
    assert timed.listener.told == []
    timed.device.synchronize()
    timed.timer.report()
    assert timed.listener.told == [
        ("receive", "forward", 0.25, None),
        ("send", "forward", 0.5, 2),
    ]
    timed.timer.report()
    timed.timer.end_step()
    assert len(timed.listener.told) == 2
    assert timed.device.num_waits == 0
    # The sends after the last computation are told when the step ends.
    timed.transfer(250, microbatch=1)
    timed.timer.end_step()
    assert timed.listener.told[2:] == [("send", "forward", 0.25, 1)]
    assert timed.device.num_waits == 1


def test_transfers_of_a_step_that_was_broken_off_are_never_told() -> None:
    timed = Timed()
    timed.transfer(250)
    timed.timer.discard()
    timed.device.synchronize()
    timed.timer.report()
    timed.timer.end_step()
    assert timed.listener.told == []


def test_events_that_fail_end_the_timing_with_one_line_and_nothing_is_raised(
    caplog: pytest.LogCaptureFixture,
) -> None:
    timed = Timed()
    timed.transfer(250)
    timed.timer.report()  # nobody has waited for the device
    timed.device.fails = True
    timed.transfer(250)
    timed.timer.end_step()
    assert timed.listener.told == []
    (record,) = caplog.records
    assert record.getMessage() == (
        "receives and sends are no longer timed: Both events must be completed before"
        " calculating elapsed time."
    )
