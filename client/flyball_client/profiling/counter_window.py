"""Time, energy and their errors from readings while one instruction was repeated.

An energy counter moves about every 100 ms, and a reading after a movement is late by up to the
time between two readings. Between two such readings the counter rises by the energy between the
two movements, so the error of the energy comes from this lateness, not from the counter's period:
1 / sqrt(6) of the time between readings, divided by the window's length.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, stdev, variance

from flyball_client.gpu._base import ClockLimit
from flyball_client.profiling.counter_watch import Movement

_NUM_BLOCKS = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class CounterReading(Movement):
    """Movement of the counter, and the repetitions of the instruction so far.

    Attributes:
        num_repetitions: Number of repetitions, with the completed part of the running repetition.
        busy_s: Time of the repetitions, s.
    """

    num_repetitions: float
    busy_s: float


@dataclass(frozen=True, kw_only=True)
class Means:
    """Means of one instruction at one clock.

    Attributes:
        time_s: Mean time in s.
        time_error_s: Its standard error in s, from the scatter of the window's blocks.
        energy_j: Mean energy in J.
        energy_error_j: Its standard error in J, from late readings and from the blocks' scatter
            beyond that.
        num_repetitions: Number of repetitions.
        sm_clock_mhz: Mean of the clocks read back, MHz.
    """

    time_s: float
    time_error_s: float
    energy_j: float
    energy_error_j: float
    num_repetitions: int
    sm_clock_mhz: int

    @property
    def relative_error(self) -> float:
        """Larger one of both relative standard errors."""
        return max(self.time_error_s / self.time_s, self.energy_error_j / self.energy_j)


@dataclass(frozen=True, kw_only=True)
class WindowEstimate(Means):
    """Means over a window between two movements of the counter."""

    power_w: float
    readings: tuple[CounterReading, ...]

    def limits_below(self, sm_clock_mhz: int) -> ClockLimit:
        """Return the limits of all readings below this clock."""
        limits = ClockLimit.NONE
        for reading in self.readings:
            if reading.sm_clock_mhz < sm_clock_mhz:
                limits |= reading.limits
        return limits


def estimate(readings: Sequence[CounterReading]) -> WindowEstimate:
    """Estimate the means over a window.

    Args:
        readings: Readings of the window, at least three, with repetitions between each two.
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
        num_repetitions=round(num_repetitions),
        sm_clock_mhz=round(fmean(reading.sm_clock_mhz for reading in readings)),
        readings=tuple(readings),
    )


def power_error(readings: Sequence[CounterReading]) -> float:
    """Return the relative standard error of the mean power."""
    return _rate_error(readings, lambda reading: reading.moment_s)


def _rate_error(
    readings: Sequence[CounterReading], amount: Callable[[CounterReading], float]
) -> float:
    """Return the relative standard error of the energy per unit of an amount."""
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
    """Return the deviation of the difference of two latenesses, uniform over a reading's gap."""
    first, last = readings[0], readings[-1]
    gap_s = (last.moment_s - first.moment_s) / (last.num_readings - first.num_readings)
    return gap_s / math.sqrt(6)


def _blocks(readings: Sequence[CounterReading]) -> list[tuple[CounterReading, CounterReading]]:
    """Return up to eight successive blocks with about the same number of movements."""
    num_gaps = len(readings) - 1
    num_blocks = min(_NUM_BLOCKS, num_gaps)
    edges = [readings[round(i * num_gaps / num_blocks)] for i in range(num_blocks + 1)]
    return list(pairwise(edges))
