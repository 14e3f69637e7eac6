"""Time of a rank's hooks: after a wait for its device, or as the device reaches them.

A framework launches work and goes on; the device computes later. `synchronize` waits for the
device before each hook, so that the hook runs at the right moment. The device then has nothing to
do until the host has launched the next work. `stream` lets the host launch ahead: an event is
recorded at each hook, and a thread calls the hook once the device has reached the event.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from flyball_client.governor.own_process import OwnProcess, call_at_normal_end
from flyball_client.session.instruction_timings import Transfer
from flyball_client.session.rank_session import RankSession
from flyball_client.session.rank_settings import Timing
from flyball_integrations.shared.instruction_hooks import InstructionHooks
from flyball_integrations.shared.transfer_timers import (
    DeviceTransferTimer,
    OnTransfer,
    TransferTimer,
)

_logger = logging.getLogger(__name__)

# Longest wait for the device when Flyball is detached.
_CLOSE_TIMEOUT_S = 10.0


class DeviceTimeline:
    """Thread that makes calls in the order of their launch, each once the device has reached it.

    After an error of the device nothing is called any more, with one line in the log.

    Args:
        device: CUDA device, or another one whose torch module has events and streams.
        on_failure: called once after such an error.
        device_module: torch's module of the device; None: the device's own.
    """

    def __init__(
        self,
        device: torch.device,
        *,
        on_failure: Callable[[], None] = lambda: None,
        device_module: Any = None,  # noqa: ANN401 - torch.cuda, or one like it
    ) -> None:
        self._device = device
        self._module = device_module or torch.get_device_module(device)
        self._on_failure = on_failure
        self._launched: queue.SimpleQueue[tuple[int, Any, Callable[[], None]] | None] = (
            queue.SimpleQueue()
        )
        self._spare: list[Any] = []
        # Launches of older generations are not called any more.
        self._generation = 0
        self._is_over = False
        self._calling = threading.Lock()
        self._now_s = time.monotonic()
        self._thread: threading.Thread | None = None
        self._cancel_end: Callable[[], None] = lambda: None
        self._own_process = OwnProcess(self._forget)

    def now_s(self) -> float:
        """Return the moment in s at which the device reached the current call."""
        return self._now_s

    def call(self, function: Callable[[], None]) -> None:
        """Call a function once the device has done what is launched on its current stream."""
        if self._is_over:
            return
        try:
            if self._thread is None:
                self._start()
            event = self._spare.pop() if self._spare else self._new_event()
            event.record(self._module.current_stream(self._device))
        except Exception as error:
            self._give_up(error)
            return
        self._launched.put((self._generation, event, function))

    def drop(self, then: Callable[[], None]) -> None:
        """Drop the calls that were not made yet, and make this one at once."""
        with self._calling:
            self._generation += 1
            then()

    def close(self) -> None:
        """Make the calls that are left, within 10 s, and end the thread; may be called again."""
        if not self._own_process.is_current():
            return
        self._cancel_end()
        self._launched.put(None)
        if self._thread is not None:
            self._thread.join(_CLOSE_TIMEOUT_S)
            if self._thread.is_alive():
                _logger.warning("the device did not finish within %g s", _CLOSE_TIMEOUT_S)
        self._is_over = True
        self.drop(lambda: None)

    def _start(self) -> None:
        self._thread = threading.Thread(
            target=self._follow, name="flyball-device-timeline", daemon=True
        )
        self._thread.start()
        # Registered after the session's own, and so called before it.
        self._cancel_end = call_at_normal_end(self.close)

    def _forget(self) -> None:
        """In a forked child: its copy has no thread, and the lock may never be free."""
        self._is_over = True
        self._calling = threading.Lock()

    def _new_event(self) -> Any:  # noqa: ANN401 - an event of whatever accelerator
        # Blocking: the thread sleeps while it waits.
        return self._module.Event(enable_timing=True, blocking=True)

    def _follow(self) -> None:
        before: Any = None
        while (launched := self._launched.get()) is not None:
            generation, event, function = launched
            if generation != self._generation or self._is_over:
                continue
            try:
                event.synchronize()
                with self._calling:
                    if generation != self._generation:
                        continue
                    # Times between neighbouring events: CUDA counts milliseconds in 32 bits.
                    if before is not None:
                        self._now_s += before.elapsed_time(event) / 1000
                        self._spare.append(before)
                    before = event
                    function()
            except Exception as error:
                self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        if self._is_over:
            return
        self._is_over = True
        _logger.warning("instructions are no longer followed on the device: %s", error)
        self.drop(self._on_failure)


class _StreamHooks:
    """Hooks of a session, called on a timeline."""

    def __init__(self, session: RankSession, timeline: DeviceTimeline) -> None:
        self._hooks: InstructionHooks = session
        self._session = session
        self._timeline = timeline
        # Of the next launch, which the session may be some steps behind.
        self.next_step = session.next_step

    def on_step_begin(self) -> None:
        self.next_step += 1
        self._timeline.call(self._hooks.on_step_begin)

    def on_step_end(self) -> None:
        self._timeline.call(self._hooks.on_step_end)

    def on_step_failed(self) -> None:
        self._timeline.drop(self._hooks.on_step_failed)
        self.next_step = self._session.next_step  # without the steps that were dropped

    def on_instruction_begin(
        self, kind: str, *, microbatch: int | None = None, chunk: int = 0
    ) -> None:
        self._timeline.call(
            partial(self._hooks.on_instruction_begin, kind, microbatch=microbatch, chunk=chunk)
        )

    def on_instruction_end(
        self, kind: str, *, microbatch: int | None = None, chunk: int = 0
    ) -> None:
        self._timeline.call(
            partial(self._hooks.on_instruction_end, kind, microbatch=microbatch, chunk=chunk)
        )


class _StreamTransferTimer(TransferTimer):
    """Timer of transfers, called on a timeline."""

    def __init__(self, on_transfer: OnTransfer, timeline: DeviceTimeline) -> None:
        super().__init__(on_transfer, clock_s=timeline.now_s)
        self._timeline = timeline

    def begin(self) -> None:
        self._timeline.call(super().begin)

    def end(self, transfer: Transfer, kind: str, microbatch: int | None, *, chunk: int = 0) -> None:
        self._timeline.call(partial(super().end, transfer, kind, microbatch, chunk=chunk))


class DeviceHooks:
    """Hooks and transfer timer of one rank, as its integration calls them at launch.

    On the CPU nothing is launched ahead: hooks are called at once.

    Args:
        device: of the stage.
        timing: `synchronize` or `stream`.
        device_module: torch's module of the device; None: the device's own.
    """

    def __init__(
        self,
        device: torch.device,
        timing: Timing,
        *,
        device_module: Any = None,  # noqa: ANN401 - torch.cuda, or one like it
    ) -> None:
        self._device = device
        self._module = device_module
        self._session: RankSession | None = None
        self._launched: _StreamHooks | None = None
        self._timeline: DeviceTimeline | None = None
        if device.type == "cpu":
            return
        self._module = device_module or torch.get_device_module(device)
        if timing == "stream":
            self._timeline = DeviceTimeline(
                device, on_failure=self._break_off, device_module=device_module
            )

    @property
    def clock_s(self) -> Callable[[], float] | None:
        """Clock of the session in s; None: its own."""
        return None if self._timeline is None else self._timeline.now_s

    def of(self, session: RankSession) -> InstructionHooks:
        """Return the hooks to call instead of the session's."""
        self._session = session
        if self._timeline is None:
            return session
        self._launched = _StreamHooks(session, self._timeline)
        return self._launched

    @property
    def next_step(self) -> int:
        """Number of the step that is launched next, once there are hooks."""
        counted = self._session if self._launched is None else self._launched
        return 0 if counted is None else counted.next_step

    def transfer_timer(
        self, session: RankSession, on_transfer: OnTransfer | None = None
    ) -> TransferTimer:
        """Return the timer of this rank's receives and sends."""
        on_transfer = on_transfer or session.on_transfer
        if self._timeline is not None:
            return _StreamTransferTimer(on_transfer, self._timeline)
        if self._module is None:
            return TransferTimer(on_transfer, clock_s=session.clock_s)
        return DeviceTransferTimer(on_transfer, make_event=self._module.Event)

    def synchronize(self) -> None:
        """Wait, where hooks need it, for the work on the current stream.

        Not for the whole device: receives posted ahead run on streams of their own, and may wait
        for a neighbour that waits for this rank.
        """
        if self._timeline is None and self._module is not None:
            self._module.current_stream(self._device).synchronize()

    def close(self) -> None:
        """Make the calls that are left."""
        if self._timeline is not None:
            self._timeline.close()

    def _break_off(self) -> None:
        if self._session is not None:
            self._session.on_step_failed()
