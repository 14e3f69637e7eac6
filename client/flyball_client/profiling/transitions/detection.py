"""Finding a clock change in the rates of short loops.

A loop in which the clock changes has a rate between the two: of its time d and work w,
x = (w - d r1) / (r0 - r1) seconds ran at the rate before, r0, and the rest at the new one, r1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from flyball_client.profiling.transitions._base import Loop

# Loops at the new rate that show that it stays.
_FEWEST_AFTER = 5
_FEWEST_OF_BASELINE = 20
# Loops in a row that are no outliers: of the host, a counter's resolution, or an interrupt.
_ONSET_RUN = 3
# Of a normal distribution, the standard deviation in median absolute deviations.
_SIGMA = 1.4826
_NUM_SIGMAS = 4.0
_LEAST_TOLERANCE = 0.003


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
        deviation = _SIGMA * median(abs(each - rate) for each in rates)
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
        stall_s: Time without progress between them, a lower bound.
    """

    onset_s: float
    completion_s: float
    stall_s: float


def find_change(
    loops: Sequence[Loop], requested_s: float, before: Baseline, after: Baseline
) -> FoundChange | None:
    """Find the change in the loops around its request.

    Args:
        loops: Loops in order of time.
        requested_s: Moment of the request in s.
        before: Baseline of the clock before, which differs from that of the new one.
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
        return FoundChange(onset_s=at_once_s, completion_s=at_once_s, stall_s=0.0)
    slower = min(before, after, key=lambda baseline: baseline.rate)
    first = _first_changed(later, last, before)
    changing = later[first : last + 1]
    stall_s = sum(_stall_s(loop, slower) for loop in changing)
    onset_s = later[first].begin_s
    if changing and not _stall_s(changing[0], slower):
        onset_s += _before_s(changing[0], before, after)
    completion_s = later[last].end_s
    if not _stall_s(later[last], slower):
        completion_s = later[last].begin_s + _before_s(later[last], before, after)
    onset_s = max(onset_s, requested_s)
    return FoundChange(
        onset_s=onset_s - requested_s,
        completion_s=max(onset_s, completion_s) - requested_s,
        stall_s=stall_s,
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


def _before_s(loop: Loop, before: Baseline, after: Baseline) -> float:
    time_s = loop.end_s - loop.begin_s
    old_s = (loop.work - time_s * after.rate) / (before.rate - after.rate)
    return min(max(old_s, 0.0), time_s)


def _stall_s(loop: Loop, slower: Baseline) -> float:
    """Return the time in which the loop cannot have progressed at either clock, s."""
    if loop.rate >= slower.rate - slower.tolerance:
        return 0.0
    return loop.end_s - loop.begin_s - loop.work / slower.rate
