"""Movements of a GPU's energy counter while an instruction is repeated."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, Self

from flyball_client.gpu._base import ClockLimit, GpuDevice

# Pause between two readings, where a reading takes less.
_PAUSE_S = 0.002


@dataclass(frozen=True, kw_only=True, slots=True)
class Movement:
    """A reading after the counter moved.

    Attributes:
        moment_s: Time of the reading in s.
        energy_j: Energy counter in J.
        num_readings: Number of readings of the counter so far.
        sm_clock_mhz: SM clock in force, MHz.
        limits: Limits of the clock.
    """

    moment_s: float
    energy_j: float
    num_readings: int
    sm_clock_mhz: int
    limits: ClockLimit


class CounterWatch(Protocol):
    """Watch on one GPU's counter, for a `with` block.

    Attributes:
        is_concurrent: True: the counter is read while the instruction runs.
    """

    is_concurrent: bool

    def next(self) -> Movement | None:
        """Return a movement that was not returned yet; None: there is none.

        Raises:
            GpuError: The GPU cannot be read.
        """
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *exception: object) -> None: ...


def watch_counter(gpu: GpuDevice, now_s: Callable[[], float]) -> CounterWatch:
    """Return a watch: by a thread, or between two batches on a GPU of this process.

    A driver takes milliseconds for a reading (docs/measured-on-gpus.md). Between two batches the
    GPU would wait meanwhile, and its energy would be counted as the instruction's.
    """
    if gpu.address is None:
        return _WatchBetween(gpu, now_s)
    return _WatchThread(gpu, now_s)


class CounterReader:
    """Reader of the counter that finds its movements."""

    def __init__(self, gpu: GpuDevice, now_s: Callable[[], float]) -> None:
        self._gpu = gpu
        self._now_s = now_s
        self._num_readings = 0
        self._shown_j = gpu.total_energy_j()

    def read(self) -> Movement | None:
        """Read the counter, and return its movement since the last reading; None: it did not move.

        Raises:
            GpuError: The GPU cannot be read.
        """
        energy_j = self._gpu.total_energy_j()
        moment_s = self._now_s()
        self._num_readings += 1
        if energy_j == self._shown_j:
            return None
        self._shown_j = energy_j
        return Movement(
            moment_s=moment_s,
            energy_j=energy_j,
            num_readings=self._num_readings,
            sm_clock_mhz=self._gpu.sm_clock_mhz(),
            limits=self._gpu.clock_limits(),
        )


class _WatchBetween:
    """Watch that reads the counter when it is asked."""

    is_concurrent = False

    def __init__(self, gpu: GpuDevice, now_s: Callable[[], float]) -> None:
        self._reader = CounterReader(gpu, now_s)

    def next(self) -> Movement | None:
        return self._reader.read()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        pass


class _WatchThread:
    """Watch by a thread, which alone uses the GPU meanwhile."""

    is_concurrent = True

    def __init__(self, gpu: GpuDevice, now_s: Callable[[], float]) -> None:
        self._reader = CounterReader(gpu, now_s)
        self._movements: deque[Movement] = deque()
        self._error: Exception | None = None
        self._is_over = threading.Event()
        self._thread = threading.Thread(
            target=self._watch, name="flyball-counter-watch", daemon=True
        )

    def next(self) -> Movement | None:
        if self._error is not None:
            raise self._error
        return self._movements.popleft() if self._movements else None

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _watch(self) -> None:
        try:
            while not self._is_over.wait(_PAUSE_S):
                movement = self._reader.read()
                if movement is not None:
                    self._movements.append(movement)
        except Exception as error:
            self._error = error
