"""Time, energy and their errors from what was read while one instruction was repeated.

An energy counter moves about every 100 ms, and a reading after a movement comes late by up to
the time between two readings. Between two such readings the counter has risen by what the GPU
drew between the two movements, so that only this lateness, and not the counter's period, makes
the energy uncertain: by 1 / sqrt(6) of the time between readings, over the window's length.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, stdev, variance

from flyball_client.gpu._base import ClockLimit

_NUM_BLOCKS = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class CounterReading:
    """Readings at the moment the energy counter was found to have moved.

    Attributes:
        moment_s: when, s of the profiler's clock.
        energy_j: what the counter shows, J.
        num_repetitions: of the instruction, so far.
        num_readings: of the counter, so far.
        busy_s: how long the repetitions took so far, s.
        sm_clock_mhz: in force, MHz.
        limits: what holds the clock down.
    """

    moment_s: float
    energy_j: float
    num_repetitions: int
    num_readings: int
    busy_s: float
    sm_clock_mhz: int
    limits: ClockLimit


@dataclass(frozen=True, kw_only=True, slots=True)
class WindowEstimate:
    """One instruction at one clock, over a window between two movements of the counter.

    Attributes:
        time_s: mean duration, s.
        time_error_s: its standard error, s, from the scatter of the window's blocks.
        energy_j: mean energy, J.
        energy_error_j: its standard error, J: of reading late, and of the blocks' scatter
            beyond what reading late explains.
        power_w: mean power over the window, W.
        num_repetitions: in the window.
        readings: of the window, for the clock that was in force.
    """

    time_s: float
    time_error_s: float
    energy_j: float
    energy_error_j: float
    power_w: float
    num_repetitions: int
    readings: tuple[CounterReading, ...]

    @property
    def relative_error(self) -> float:
        """The larger one of both relative standard errors."""
        return max(self.time_error_s / self.time_s, self.energy_error_j / self.energy_j)

    @property
    def sm_clock_mhz(self) -> int:
        """Mean of the clocks that were read back, MHz."""
        return round(fmean(reading.sm_clock_mhz for reading in self.readings))

    def limits_below(self, sm_clock_mhz: int) -> ClockLimit:
        """Return what held the clock down whenever it was found below this one."""
        limits = ClockLimit.NONE
        for reading in self.readings:
            if reading.sm_clock_mhz < sm_clock_mhz:
                limits |= reading.limits
        return limits


def estimate(readings: Sequence[CounterReading]) -> WindowEstimate:
    """Return what the window from the first of these readings to the last one says.

    Args:
        readings: at least three, with repetitions between each two.
    """
    first, last = readings[0], readings[-1]
    num_repetitions = last.num_repetitions - first.num_repetitions
    energy_j = (last.energy_j - first.energy_j) / num_repetitions
    times_s = [
        (end.busy_s - begin.busy_s) / (end.num_repetitions - begin.num_repetitions)
        for begin, end in _blocks(readings)
    ]
    return WindowEstimate(
        time_s=(last.busy_s - first.busy_s) / num_repetitions,
        time_error_s=stdev(times_s) / math.sqrt(len(times_s)),
        energy_j=energy_j,
        energy_error_j=energy_j * _rate_error(readings, lambda reading: reading.num_repetitions),
        power_w=(last.energy_j - first.energy_j) / (last.moment_s - first.moment_s),
        num_repetitions=num_repetitions,
        readings=tuple(readings),
    )


def power_error(readings: Sequence[CounterReading]) -> float:
    """Relative standard error of the mean power from the first reading to the last one."""
    return _rate_error(readings, lambda reading: reading.moment_s)


def _rate_error(
    readings: Sequence[CounterReading], amount: Callable[[CounterReading], float]
) -> float:
    """Relative standard error of the energy for each unit of an amount that grows with time."""
    first, last = readings[0], readings[-1]
    rate = (last.energy_j - first.energy_j) / (amount(last) - amount(first))
    lateness_s = _lateness_s(readings)
    blocks = _blocks(readings)
    shares = [
        (end.energy_j - begin.energy_j) / (amount(end) - amount(begin)) / rate
        for begin, end in blocks
    ]
    of_lateness = fmean(
        (lateness_s / (end.moment_s - begin.moment_s)) ** 2 for begin, end in blocks
    )
    scatter = max(0.0, variance(shares) - of_lateness) / len(blocks)
    return math.sqrt((lateness_s / (last.moment_s - first.moment_s)) ** 2 + scatter)


def _lateness_s(readings: Sequence[CounterReading]) -> float:
    """Standard deviation of the difference of two latenesses, each even over a reading's gap."""
    first, last = readings[0], readings[-1]
    gap_s = (last.moment_s - first.moment_s) / (last.num_readings - first.num_readings)
    return gap_s / math.sqrt(6)


def _blocks(readings: Sequence[CounterReading]) -> list[tuple[CounterReading, CounterReading]]:
    """Up to eight blocks of about as many movements each, one after the other."""
    num_gaps = len(readings) - 1
    num_blocks = min(_NUM_BLOCKS, num_gaps)
    edges = [readings[round(i * num_gaps / num_blocks)] for i in range(num_blocks + 1)]
    return list(pairwise(edges))
