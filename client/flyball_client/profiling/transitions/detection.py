"""Finding a clock change in the rates of short loops.

A loop in which the clock changes has a rate between the two: of its time d and work w,
x = (w - d r1) / (r0 - r1) seconds ran at the rate before, r0, and the rest at the new rate, r1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

# Loops at the new rate that show that it stays.
_FEWEST_AFTER = 5
_FEWEST_OF_BASELINE = 20
# Loops in a row that are no outliers: of the host, a counter's resolution, or an interrupt.
_ONSET_RUN = 3
# Of a normal distribution, the standard deviation in median absolute deviations.
_SIGMA = 1.4826
_NUM_SIGMAS = 4.0
_LEAST_TOLERANCE = 0.003


class Loop(NamedTuple):
    """One loop of the load on a GPU.

    Attributes:
        begin_s, end_s: Moments in s, of the clock that `ClockCall` has.
        work: SM cycles, or 1 where every loop has the same work.
    """

    begin_s: float
    end_s: float
    work: float

    @property
    def rate(self) -> float:
        """Work per second."""
        return self.work / (self.end_s - self.begin_s)


@dataclass(frozen=True, kw_only=True)
class Baseline:
    """Rate of the loops at one clock.

    Attributes:
        rate: Median work per second.
        tolerance: Deviation from it that is noise.
    """

    rate: float
    tolerance: float

    @classmethod
    def of(cls, loops: Sequence[Loop]) -> Baseline:
        """Return the baseline of a GPU at a settled clock.

        Raises:
            ValueError: There are fewer than 20 loops.
        """
        if len(loops) < _FEWEST_OF_BASELINE:
            raise ValueError(f"{len(loops)} loops are too few; {_FEWEST_OF_BASELINE} are needed")
        rates = [loop.rate for loop in loops]
        rate = median(rates)
        deviation = _SIGMA * median(abs(value - rate) for value in rates)
        return cls(rate=rate, tolerance=max(_NUM_SIGMAS * deviation, _LEAST_TOLERANCE * rate))

    def has(self, loop: Loop) -> bool:
        """Return whether a loop ran at this clock."""
        return abs(loop.rate - self.rate) <= self.tolerance

    def differs_from(self, other: Baseline) -> bool:
        """Return whether no loop can be of both."""
        return abs(self.rate - other.rate) > 1.5 * (self.tolerance + other.tolerance)


@dataclass(frozen=True, kw_only=True)
class FoundChange:
    """A clock change; delays in s from the request.

    Attributes:
        onset_s: Delay until the GPU left the clock before.
        completion_s: Delay until it stayed at the new clock.
    """

    onset_s: float
    completion_s: float


def find_change(
    loops: Sequence[Loop], requested_s: float, before: Baseline, after: Baseline
) -> FoundChange | None:
    """Find the change in the loops around its request.

    Args:
        loops: Loops in order of time.
        requested_s: Moment of the request in s.
        before: Baseline of the clock before, which differs from that of the new clock.
        after: Baseline of the new clock.

    Returns:
        The change; None: the new clock did not come, or not long enough before the last loop.
    """
    later = [loop for loop in loops if loop.end_s > requested_s]
    last = _last_unsettled(later, after)
    if len(later) - last - 1 < _FEWEST_AFTER:
        return None
    if last < 0:
        at_once_s = max(0.0, later[0].begin_s - requested_s)
        return FoundChange(onset_s=at_once_s, completion_s=at_once_s)
    onset_s, _ = _change_within(later[_first_changed(later, last, before)], before, after)
    _, completion_s = _change_within(later[last], before, after)
    onset_s = max(onset_s, requested_s)
    return FoundChange(
        onset_s=onset_s - requested_s, completion_s=max(onset_s, completion_s) - requested_s
    )


def _last_unsettled(loops: Sequence[Loop], after: Baseline) -> int:
    """Return the last loop before the new clock stays, single outliers left out; -1: none."""
    for place in reversed(range(len(loops))):
        if not after.has(loops[place]) and (place == 0 or not after.has(loops[place - 1])):
            return place
    return -1


def _first_changed(loops: Sequence[Loop], last: int, before: Baseline) -> int:
    """Return the first loop that begins a run away from the clock before, at most `last + 1`."""
    for place in range(last + 1):
        if not any(before.has(loop) for loop in loops[place : place + _ONSET_RUN]):
            return place
    return last + 1


def _change_within(loop: Loop, before: Baseline, after: Baseline) -> tuple[float, float]:
    """Return when the loop left the old clock and had the new clock, s; both at once if it can."""
    time_s = loop.end_s - loop.begin_s
    slower = min(before, after, key=lambda baseline: baseline.rate)
    if loop.rate < slower.rate - slower.tolerance:  # the GPU stood still
        return loop.begin_s, loop.end_s
    old_s = (loop.work - time_s * after.rate) / (before.rate - after.rate)
    changed_s = loop.begin_s + min(max(old_s, 0.0), time_s)
    return changed_s, changed_s
