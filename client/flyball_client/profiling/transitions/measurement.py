"""Measurement of clock changes of a computing GPU: a baseline of each clock, then pairs of clocks.

After LATEST (arXiv 2502.20075): the rate of short loops at each clock first; pairs that it does not
tell apart are left out; each change is requested at a random moment and found in the loops around
it; outliers of driver and host are left out of a pair.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from statistics import median

from flyball_client.gpu._base import ClockCall, ClockLimit
from flyball_client.profiling.transitions.bench import TransitionBench
from flyball_client.profiling.transitions.detection import Baseline, FoundChange, find_change
from flyball_profiles.clock_transitions import ClockTransitions
from flyball_profiles.measured_transitions import (
    ClockFacts,
    MeasuredTransitions,
    PairTimes,
    TimeSpread,
)
from flyball_wire.errors import FlyballError

NUM_REPETITIONS = 30
"""Number of changes of each pair of clocks and direction."""

_SETTLE_S = 0.5
_BASELINE_S = 0.1
_LEAD_S = 0.03
_LEAD_JITTER_S = 0.02
# Time after a request that is recorded; doubled after a change that was not seen.
_FIRST_WINDOW_S = 0.15
_LONGEST_WINDOW_S = 1.0
# Robust standard deviations of the logarithm: far beyond the tail of a log-normal distribution.
_OUTLIER_SIGMAS = 6.0
_SIGMA = 1.4826
_LEAST_LOG_DEVIATION = 0.02
# More than this share is no outlier but another mode of the GPU.
_MOST_OUTLIERS = 0.1
# Of the clock, at most one step of the GPU's.
_HELD_WITHIN_MHZ = 15

_NUM_AT_ONCE = 20
_FEWEST_AT_ONCE = 5
# Calls that meet do so for at least this share of a call alone.
_LEAST_OVERLAP = 0.3
# Calls that return last take longer than a call alone by this share of the time for which both were
# under way: by up to 0.75 where they run at once, by 0.84 and more where one waits for the other,
# in 99 of 100 checks with calls as on a V100 (log-normal, median 4.5, 99th percentile 12 ms).
_QUEUED_SHARE = 0.78


class TransitionsFailedError(FlyballError):
    """No clock changes can be measured; the text names the reason."""


def measure_transitions(
    bench: TransitionBench,
    clocks_mhz: Sequence[int],
    *,
    show: Callable[[str], None] = lambda text: None,
) -> MeasuredTransitions:
    """Measure clock changes, and check on two GPUs of the node whether calls queue.

    Args:
        bench: Computing GPU.
        clocks_mhz: Clocks in MHz, at least two.
        show: Function that is called with the current work, for a progress line.

    Raises:
        GpuError: A GPU cannot be read, or its clock cannot be set.
        LineProcessError: The load failed.
        TransitionsFailedError: The loops do not tell two clocks apart, or changes were not seen.
    """
    falling_mhz = sorted(set(clocks_mhz), reverse=True)
    show("calls of two GPUs at once")  # first, as long as the other is known to be free
    pairs = bench.calls_at_once((falling_mhz[-1], falling_mhz[0]) * (_NUM_AT_ONCE // 2))
    measured = _Measurement(bench, show).measure(falling_mhz)
    is_queueing = calls_queue(pairs, measured.times.call_p50_s or 0.0)
    return replace(measured, times=replace(measured.times, queues_in_node=is_queueing))


def calls_queue(pairs: Sequence[tuple[ClockCall, ClockCall]], call_p50_s: float) -> bool | None:
    """Return whether calls for two GPUs at once wait for each other.

    Args:
        pairs: Two calls at once; the call that returned last is second.
        call_p50_s: Median time of a call alone, s.

    Returns:
        None: too few calls met.
    """
    met = [
        (first.returned_s - last.began_s, last.returned_s - last.began_s - call_p50_s)
        for first, last in pairs
        if first.returned_s - last.began_s > _LEAST_OVERLAP * call_p50_s
    ]
    if len(met) < _FEWEST_AT_ONCE:
        return None
    return sum(longer_s - _QUEUED_SHARE * overlap_s for overlap_s, longer_s in met) > 0


@dataclass(kw_only=True)
class _Seen:
    """Changes from one clock to another.

    Attributes:
        from_mhz, to_mhz: Clocks in MHz.
        changes: Changes that were seen; delays in s from the request.
        num_missed: Number of changes that were not seen.
    """

    from_mhz: int
    to_mhz: int
    changes: list[FoundChange] = field(default_factory=list[FoundChange])
    num_missed: int = 0

    def kept(self) -> list[FoundChange]:
        """Return the changes without those whose completion is far off, if these are few."""
        logs = [math.log(max(change.completion_s, 1e-6)) for change in self.changes]
        middle = median(logs)
        deviation = max(_SIGMA * median(abs(log - middle) for log in logs), _LEAST_LOG_DEVIATION)
        kept = [
            change
            for change, log in zip(self.changes, logs, strict=True)
            if abs(log - middle) <= _OUTLIER_SIGMAS * deviation
        ]
        is_few = len(logs) - len(kept) <= _MOST_OUTLIERS * len(logs)
        return kept if is_few else self.changes

    def pair_times(self) -> PairTimes:
        """Return the times of the kept changes."""
        kept = self.kept()
        return PairTimes(
            from_mhz=self.from_mhz,
            to_mhz=self.to_mhz,
            num=len(kept),
            num_left_out=self.num_missed + len(self.changes) - len(kept),
            onset=TimeSpread.of([change.onset_s for change in kept]),
            completion=TimeSpread.of([change.completion_s for change in kept]),
        )


class _Measurement:
    """A measurement in progress."""

    def __init__(self, bench: TransitionBench, show: Callable[[str], None]) -> None:
        self._bench = bench
        self._show = show
        self._random = random.Random(0)
        self._baselines: dict[int, Baseline] = {}  # by clock
        self._clock_mhz: int | None = None
        self._window_s = _FIRST_WINDOW_S
        self._calls_s: list[float] = []

    def measure(self, falling_mhz: Sequence[int]) -> MeasuredTransitions:
        clocks = [self._measure_clock(mhz) for mhz in reversed(falling_mhz)]
        pairs = [
            (high_mhz, low_mhz)
            for high_mhz, low_mhz in combinations(falling_mhz, 2)
            if self._baselines[high_mhz].differs_from(self._baselines[low_mhz])
        ]
        if not pairs:
            raise TransitionsFailedError(
                "the load runs at the same rate at all clocks, MHz:"
                f" {', '.join(map(str, falling_mhz))}; the GPU does not hold them"
            )
        seen = [alternation for pair in pairs for alternation in self._alternate(*pair)]
        return MeasuredTransitions(
            times=_times_of(seen, self._calls_s),
            pairs=tuple(alternation.pair_times() for alternation in seen),
            clocks=tuple(reversed(clocks)),
            counts_cycles=self._bench.counts_cycles,
        )

    def _measure_clock(self, clock_mhz: int) -> ClockFacts:
        self._show(f"the load at {clock_mhz} MHz")
        self._go_to(clock_mhz)
        loops, ran_mhz, limits = self._bench.run(_BASELINE_S)
        try:
            self._baselines[clock_mhz] = baseline = Baseline.of(loops)
        except ValueError as error:
            raise TransitionsFailedError(f"the load is too slow: {error}") from None
        if self._bench.counts_cycles:
            ran_mhz = round(baseline.rate / 1e6)
        is_held = abs(ran_mhz - clock_mhz) <= _HELD_WITHIN_MHZ
        names = [str(limit.name).lower() for limit in ClockLimit if limit in limits]
        return ClockFacts(
            mhz=clock_mhz,
            ran_mhz=clock_mhz if is_held else ran_mhz,
            limit=None if is_held else " and ".join(names) or "unknown",
        )

    def _alternate(self, high_mhz: int, low_mhz: int) -> Iterator[_Seen]:
        """Go up and down between two clocks; yield the ups, then the downs, if any were seen."""
        self._go_to(low_mhz)
        self._window_s = _FIRST_WINDOW_S
        up = _Seen(from_mhz=low_mhz, to_mhz=high_mhz)
        down = _Seen(from_mhz=high_mhz, to_mhz=low_mhz)
        for number in range(NUM_REPETITIONS):
            self._show(f"{low_mhz} and {high_mhz} MHz, {number + 1} of {NUM_REPETITIONS}")
            for seen in (up, down):
                self._observe(seen)
        yield from (seen for seen in (up, down) if len(seen.changes) > 1)

    def _observe(self, seen: _Seen) -> None:
        call, loops = self._bench.change(
            seen.to_mhz,
            lead_s=_LEAD_S + self._random.uniform(0.0, _LEAD_JITTER_S),
            window_s=self._window_s,
        )
        self._calls_s.append(call.returned_s - call.began_s)
        before, after = self._baselines[seen.from_mhz], self._baselines[seen.to_mhz]
        found = find_change(loops, call.requested_s, before, after)
        if found is None:
            seen.num_missed += 1
            self._window_s = min(2 * self._window_s, _LONGEST_WINDOW_S)
        else:
            seen.changes.append(found)

    def _go_to(self, clock_mhz: int) -> None:
        """Change to a clock and let it settle, unless the GPU has it."""
        if clock_mhz != self._clock_mhz:
            self._bench.change(clock_mhz, lead_s=_LEAD_S, window_s=_SETTLE_S)
            self._clock_mhz = clock_mhz


def _times_of(seen: Sequence[_Seen], calls_s: list[float]) -> ClockTransitions:
    """Return the times that plans use."""
    ups = [
        change
        for alternation in seen
        if alternation.from_mhz < alternation.to_mhz
        for change in alternation.kept()
    ]
    downs = [
        change
        for alternation in seen
        if alternation.from_mhz > alternation.to_mhz
        for change in alternation.kept()
    ]
    if not ups or not downs:
        raise TransitionsFailedError("no change was seen within 1 s of its request")
    up = TimeSpread.of([change.completion_s for change in ups])
    down = TimeSpread.of([change.onset_s for change in downs])
    call = TimeSpread.of(calls_s)
    return ClockTransitions(
        up_p5_s=up.p5_s,
        up_p50_s=up.p50_s,
        up_p95_s=up.p95_s,
        down_p5_s=down.p5_s,
        down_p50_s=down.p50_s,
        down_p95_s=down.p95_s,
        call_p50_s=call.p50_s,
        call_p95_s=call.p95_s,
    )
