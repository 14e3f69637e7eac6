"""Readings of a GPU's energy counter that do not hold up the hooks, and count only if it moves."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from flyball_client.gpu._base import GpuDevice

_logger = logging.getLogger(__name__)

EnergyCallback = Callable[[float | None], None]
"""Called with the energy counter in J; None: it cannot be read, or does not move."""

# Counters move every 100 ms, idle and busy (docs/measured-on-gpus.md).
FROZEN_AFTER_S = 0.5
# Age of a request above which a reading is late: readings take up to 16 ms.
LATE_AFTER_S = 0.25
# Pause between two readings that only look whether the counter has moved.
_LOOK_AGAIN_S = 0.02
# Pause after a reading that failed, doubled after each further one.
FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 60.0


@dataclass(frozen=True)
class _Reading:
    """Reading, and who waits for it; of a late one nothing is measured."""

    energy_j: float | None
    then: list[EnergyCallback]
    is_late: bool = False


class EnergyReader:
    """Reader of one GPU's energy counter, by a thread where the GPU is a real one.

    A driver may take many milliseconds for a reading (docs/measured-on-gpus.md). One reading
    serves all requests that came before its end, as those of a step's end and the next step's
    begin. It is given out once the counter has moved on: one that stands still has stopped at an
    unknown moment, and its last value is not measured either. Nor is one that comes late, of a call
    that hangs: steps that ended meanwhile would have no energy, and one of them that of all. After
    an error the counter is read again after a pause, which grows. All are logged, and their end.

    Args:
        gpu: GPU; None: there is none, and no energy is measured.
        rank_name: Job and rank, for the log.
    """

    def __init__(self, gpu: GpuDevice | None, *, rank_name: str) -> None:
        self._gpu = gpu
        self._rank_name = rank_name
        # One without an address is computed in this process: its counter is read at once.
        self._is_immediate = gpu is None or gpu.address is None
        self._changed = threading.Condition()
        # With the moment of each, s.
        self._requests: list[tuple[EnergyCallback, float]] = []
        self._is_calling = self._is_closed = False
        # Waited for: the counter is read again although nobody asks for it.
        self._num_waiting = 0
        self._thread: threading.Thread | None = None
        # Of the thread alone: the readings that are not given out, and the last value's age.
        self._held: list[_Reading] = []
        self._last_j: float | None = None
        self._moved_s = 0.0
        self._pause_s = FIRST_PAUSE_S
        self._next_read_s = 0.0
        # Readings that failed or stood still since the last that did not.
        self._num_missed = 0

    def request(self, then: EnergyCallback) -> None:
        """Read the counter, and call this function with it; requests are served in order."""
        if self._is_immediate:
            then(self._read())
            return
        with self._changed:
            if self._is_closed:
                return
            self._requests.append((then, time.monotonic()))
            self._changed.notify_all()
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._serve, name="flyball-energy-reader", daemon=True
                )
                self._thread.start()

    def wait(self, timeout_s: float) -> None:
        """Wait until all requests are served, at most this long."""
        with self._changed:
            self._num_waiting += 1
            self._changed.notify_all()
            self._changed.wait_for(
                lambda: not (self._requests or self._is_calling or self._held), timeout=timeout_s
            )
            self._num_waiting -= 1

    def close(self, timeout_s: float) -> None:
        """Wait as `wait` does, and end the thread; later requests are not served."""
        self.wait(timeout_s)
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def _serve(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(self._has_work)
                if self._is_closed:
                    return
                if not self._requests:
                    self._changed.wait(_LOOK_AGAIN_S)
            energy_j, ended_s = self._read(), time.monotonic()
            with self._changed:
                requests, self._requests = self._requests, []
                self._is_calling = True
            is_late = bool(requests) and ended_s - requests[0][1] > LATE_AFTER_S
            self._note(_Reading(energy_j, [then for then, _ in requests], is_late))
            if is_late and energy_j is not None:
                self._miss("energy is not measured for now: its counter is read late")
            with self._changed:
                self._is_calling = False
                self._changed.notify_all()

    def _has_work(self) -> bool:
        return bool(self._requests or self._is_closed or (self._held and self._num_waiting))

    def _note(self, reading: _Reading) -> None:
        """Give out the readings that this one is about; hold it until it is known to move."""
        now_s, energy_j = time.monotonic(), reading.energy_j
        if energy_j is not None and energy_j != self._last_j:
            # A fall is the start of another count, of a driver that was loaded again.
            self._last_j, self._moved_s = energy_j, now_s
            self._give_out(are_measured=True)
            self._end_gap()
        if reading.then:
            self._held.append(reading)
        is_old = now_s - self._moved_s > FROZEN_AFTER_S
        if energy_j is None:
            # Held readings are of a counter that moved when it was last seen.
            self._give_out(are_measured=not is_old)
        elif is_old:
            self._miss("energy is not measured for now: its counter does not move")
            self._give_out(are_measured=False)

    def _give_out(self, *, are_measured: bool) -> None:
        held, self._held = self._held, []
        for reading in held:
            energy_j = reading.energy_j if are_measured and not reading.is_late else None
            for then in reading.then:
                try:
                    then(energy_j)
                except Exception:
                    _logger.exception("%s: a step's energy is lost", self._rank_name)

    def _read(self) -> float | None:
        if self._gpu is None or time.monotonic() < self._next_read_s:
            self._num_missed += 1
            return None
        try:
            energy_j = self._gpu.total_energy_j()
        except Exception as error:
            if not self._next_read_s:
                self._log(f"energy is not measured for now: {error}")
            self._num_missed += 1
            self._next_read_s = time.monotonic() + self._pause_s
            self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)
            return None
        if self._is_immediate and self._next_read_s:
            self._end_gap()
        return energy_j

    def _end_gap(self) -> None:
        """Log how many readings were missed, if any were."""
        self._next_read_s, self._pause_s = 0.0, FIRST_PAUSE_S
        missed, self._num_missed = self._num_missed, 0
        if missed:
            self._log(f"energy is measured again; {missed} readings were missed")

    def _miss(self, why: str) -> None:
        """Count a reading that is not measured; log why, of the first."""
        if not self._num_missed:
            self._log(why)
        self._num_missed += 1

    def _log(self, text: str) -> None:
        _logger.warning("%s: %s", self._rank_name, text)
