"""Measurement of clock changes on a bench: baselines, pairs of clocks, GPUs at once.

After LATEST (arXiv 2502.20075): the rate of short loops at each clock first; pairs that it does not
tell apart are left out; each change is requested at a random moment and found in the loops around
it; outliers of driver and host are left out of a pair.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from statistics import median

from flyball_client.gpu._base import ClockLimit
from flyball_client.profiling.transitions._base import (
    LoadedRun,
    ObservedChange,
    TransitionBench,
)
from flyball_client.profiling.transitions.detection import Baseline, FoundChange, find_change
from flyball_profiles.clock_transitions import ClockTransitions
from flyball_profiles.measured_transitions import (
    ClockFacts,
    MeasuredTransitions,
    PairTimes,
    QueueTimes,
    TimeSpread,
    TransitionLoad,
)
from flyball_wire.errors import FlyballError

FEWEST_REPETITIONS = 30

_SETTLE_S = 0.5
_BASELINE_S = 0.1
_LEAD_S = 0.03
_LEAD_JITTER_S = 0.02
_FIRST_WINDOW_S = 0.15
_SHORTEST_WINDOW_S = 0.03
_LONGEST_WINDOW_S = 1.0
_WINDOW_PER_DELAY = 4.0
# Starting the load and reading its loops.
_OVERHEAD_S = 0.02
# Robust standard deviations of the logarithm: far beyond the tail of a log-normal distribution.
_OUTLIER_SIGMAS = 6.0
_SIGMA = 1.4826
_LEAST_LOG_DEVIATION = 0.02
# More than this share is no outlier but another mode of the GPU.
_MOST_OUTLIERS = 0.1
# Shorter calls delay nothing by queueing.
_LEAST_CALL_S = 1e-4
# Of the clock, at most one step of NVML's.
_HELD_WITHIN_MHZ = 15


class TransitionsFailedError(FlyballError):
    """No clock changes can be measured; the text names the reason."""


@dataclass(frozen=True, kw_only=True)
class TransitionRule:
    """Extent of a measurement.

    Attributes:
        clocks_mhz: Clocks in MHz, at least two.
        loads: Loads of the GPU.
        num_repetitions: Number of changes of each pair under each load, at least 30.
        nums_at_once: Numbers of GPUs that change together; empty: not measured.
        seed: Seed of the moments of requests.

    Raises:
        ValueError: A value is out of its range.
    """

    clocks_mhz: tuple[int, ...]
    loads: tuple[TransitionLoad, ...] = tuple(TransitionLoad)
    num_repetitions: int = FEWEST_REPETITIONS
    nums_at_once: tuple[int, ...] = ()
    seed: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "clocks_mhz", tuple(sorted(set(self.clocks_mhz), reverse=True)))
        if len(self.clocks_mhz) < 2:
            raise ValueError("clock changes need two clocks")
        if self.num_repetitions < FEWEST_REPETITIONS:
            raise ValueError(f"num_repetitions must be at least {FEWEST_REPETITIONS}")

    @property
    def num_changes(self) -> int:
        """Number of changes that are observed, several GPUs at once counted as one."""
        num_pairs = len(self.clocks_mhz) * (len(self.clocks_mhz) - 1)
        num_of_pairs = num_pairs * len(self.loads) * self.num_repetitions
        return num_of_pairs + 2 * self.num_repetitions * len(self.nums_at_once)

    @property
    def expected_s(self) -> float:
        """Expected time in s, where changes take up to 20 ms."""
        lead_s = _LEAD_S + _LEAD_JITTER_S / 2
        change_s = lead_s + _SHORTEST_WINDOW_S + _OVERHEAD_S
        clock_s = _LEAD_S + _SETTLE_S + _BASELINE_S
        return self.num_changes * change_s + len(self.clocks_mhz) * clock_s


def nums_at_once(num_gpus: int) -> tuple[int, ...]:
    """Return 1, 2, 4 and so on up to this number, which is the last; empty for one GPU."""
    if num_gpus < 2:
        return ()
    powers = [2**exponent for exponent in range(num_gpus.bit_length())]
    return tuple(sorted({*powers, num_gpus}))


def measure_transitions(
    bench: TransitionBench,
    rule: TransitionRule,
    *,
    show: Callable[[str], None] = lambda text: None,
) -> MeasuredTransitions:
    """Measure clock changes.

    Args:
        bench: GPUs.
        rule: Extent.
        show: Function that is called with the current work, for a progress line.

    Raises:
        GpuError: A GPU cannot be read, or its clock cannot be set.
        LoopError: The load failed.
        TransitionsFailedError: The loops do not tell two clocks apart, or changes were not seen.
    """
    return _Measurement(bench, rule, show).measure()


@dataclass
class _Window:
    """Time after a request that is recorded: a multiple of the longest delay seen so far."""

    time_s: float = _FIRST_WINDOW_S
    longest_s: float = 0.0

    def after(self, delay_s: float | None) -> None:
        """Adapt to the delay of a change in s; None: it was not seen."""
        if delay_s is None:
            self.time_s = min(2 * self.time_s, _LONGEST_WINDOW_S)
            return
        self.longest_s = max(self.longest_s, delay_s)
        wanted_s = max(_SHORTEST_WINDOW_S, _WINDOW_PER_DELAY * self.longest_s)
        self.time_s = min(wanted_s, _LONGEST_WINDOW_S)


@dataclass(frozen=True, kw_only=True)
class _Change:
    """One change, with the time of its call in s."""

    found: FoundChange
    call_s: float


@dataclass(kw_only=True)
class _Seen:
    """Changes from one clock to another under one load, of one or several GPUs at once.

    Attributes:
        from_mhz, to_mhz: Clocks in MHz.
        load: Load.
        changes: Those that were seen; delays in s from the request, of several GPUs from the
            first.
        num_missed: Number of those that were not seen.
    """

    from_mhz: int
    to_mhz: int
    load: TransitionLoad
    changes: list[_Change] = field(default_factory=list[_Change])
    num_missed: int = 0

    def kept(self) -> list[_Change]:
        """Return the changes without outliers."""
        return _without_outliers(self.changes)

    def pair_times(self) -> PairTimes:
        """Return their times."""
        kept = self.kept()
        return PairTimes(
            from_mhz=self.from_mhz,
            to_mhz=self.to_mhz,
            load=self.load,
            num=len(kept),
            num_left_out=self.num_missed + len(self.changes) - len(kept),
            onset=TimeSpread.of([each.found.onset_s for each in kept]),
            completion=TimeSpread.of([each.found.completion_s for each in kept]),
            stall_s=max(each.found.stall_s for each in kept),
        )


class _Measurement:
    """A measurement in progress."""

    def __init__(
        self, bench: TransitionBench, rule: TransitionRule, show: Callable[[str], None]
    ) -> None:
        self._bench = bench
        self._rule = rule
        self._show = show
        self._num_changes = 0
        self._random = random.Random(rule.seed)
        self._gpus = range(max((1, *rule.nums_at_once)))
        # By GPU and clock.
        self._baselines: dict[tuple[int, int], Baseline] = {}
        # All GPUs have the same between two steps.
        self._clock_mhz: int | None = None
        self._window = _Window()

    def measure(self) -> MeasuredTransitions:
        clocks = [self._measure_clock(mhz) for mhz in sorted(self._rule.clocks_mhz)]
        pairs = self._pairs([0])
        if not pairs:
            raise TransitionsFailedError(
                "the load runs at the same rate at all clocks, MHz:"
                f" {', '.join(map(str, self._rule.clocks_mhz))}; the GPU does not hold them"
            )
        seen = [
            each
            for load in self._rule.loads
            for high_mhz, low_mhz in pairs
            for each in self._alternate([0], high_mhz, low_mhz, load)
        ]
        at_once = tuple(self._measure_at_once())
        return MeasuredTransitions(
            times=_times_of(seen, self._rule.loads[0], at_once),
            pairs=tuple(each.pair_times() for each in seen),
            at_once=at_once,
            clocks=tuple(reversed(clocks)),
            counts_cycles=self._bench.counts_cycles,
        )

    def _measure_clock(self, clock_mhz: int) -> ClockFacts:
        self._show(f"the load at {clock_mhz} MHz")
        self._go_to(clock_mhz)
        runs = self._bench.run(self._gpus, _BASELINE_S)
        for gpu, run in zip(self._gpus, runs, strict=True):
            self._baselines[gpu, clock_mhz] = _baseline_of(run)
        ran_mhz = runs[0].sm_clock_mhz
        if self._bench.counts_cycles:
            ran_mhz = round(self._baselines[0, clock_mhz].rate / 1e6)
        is_held = abs(ran_mhz - clock_mhz) <= _HELD_WITHIN_MHZ
        return ClockFacts(
            mhz=clock_mhz,
            ran_mhz=clock_mhz if is_held else ran_mhz,
            limit=None if is_held else _limit_text(runs[0].limits),
        )

    def _pairs(self, gpus: Sequence[int]) -> list[tuple[int, int]]:
        """Return pairs of clocks, the higher first, that the load tells apart on these GPUs."""
        return [
            (high_mhz, low_mhz)
            for high_mhz, low_mhz in combinations(self._rule.clocks_mhz, 2)
            if all(
                self._baselines[gpu, high_mhz].differs_from(self._baselines[gpu, low_mhz])
                for gpu in gpus
            )
        ]

    def _alternate(
        self, gpus: Sequence[int], high_mhz: int, low_mhz: int, load: TransitionLoad
    ) -> Iterator[_Seen]:
        """Go up and down between two clocks; yield the ups, then the downs, if any were seen."""
        self._go_to(low_mhz)
        self._window = _Window()
        up = _Seen(from_mhz=low_mhz, to_mhz=high_mhz, load=load)
        down = _Seen(from_mhz=high_mhz, to_mhz=low_mhz, load=load)
        of = "" if len(gpus) == 1 else f", {len(gpus)} GPUs at once"
        for number in range(self._rule.num_repetitions):
            self._show(
                f"{low_mhz} and {high_mhz} MHz, {load}{of}, repetition {number + 1};"
                f" {self._num_changes} of at most {self._rule.num_changes} changes"
            )
            for seen in (up, down):
                self._observe(gpus, seen)
        yield from (seen for seen in (up, down) if len(seen.changes) > 1)

    def _observe(self, gpus: Sequence[int], seen: _Seen) -> None:
        observed = self._bench.change(
            gpus,
            seen.to_mhz,
            load=seen.load,
            lead_s=_LEAD_S + self._random.uniform(0.0, _LEAD_JITTER_S),
            window_s=self._window.time_s,
        )
        self._num_changes += 1
        change = self._change_of(gpus, observed, seen)
        self._window.after(None if change is None else change.found.completion_s)
        if change is None:
            seen.num_missed += 1
        else:
            seen.changes.append(change)

    def _change_of(
        self, gpus: Sequence[int], observed: Sequence[ObservedChange], seen: _Seen
    ) -> _Change | None:
        first_s = min(each.call.requested_s for each in observed)
        changes: list[FoundChange] = []
        for gpu, each in zip(gpus, observed, strict=True):
            before = self._baselines[gpu, seen.from_mhz]
            after = self._baselines[gpu, seen.to_mhz]
            found = find_change(each.loops, first_s, before, after)
            if found is None:
                return None
            changes.append(found)
        return _Change(
            found=FoundChange(
                onset_s=min(found.onset_s for found in changes),
                completion_s=max(found.completion_s for found in changes),
                stall_s=max(found.stall_s for found in changes),
            ),
            call_s=max(each.call.returned_s - each.call.began_s for each in observed),
        )

    def _measure_at_once(self) -> Iterator[QueueTimes]:
        pairs = self._pairs(self._gpus)
        if not pairs:
            return
        high_mhz, low_mhz = max(pairs, key=lambda pair: pair[0] - pair[1])
        for num_gpus in self._rule.nums_at_once:
            seen = self._alternate(range(num_gpus), high_mhz, low_mhz, TransitionLoad.COMPUTING)
            kept = [change for each in seen for change in each.kept()]
            if kept:
                yield QueueTimes(
                    num_gpus=num_gpus,
                    last=TimeSpread.of([change.found.completion_s for change in kept]),
                    call=TimeSpread.of([change.call_s for change in kept]),
                )

    def _go_to(self, clock_mhz: int) -> None:
        """Change all GPUs to a clock and let it settle, unless they have it."""
        if clock_mhz == self._clock_mhz:
            return
        self._bench.change(
            self._gpus,
            clock_mhz,
            load=TransitionLoad.COMPUTING,
            lead_s=_LEAD_S,
            window_s=_SETTLE_S,
        )
        self._clock_mhz = clock_mhz


def _baseline_of(run: LoadedRun) -> Baseline:
    try:
        return Baseline.of(run.loops)
    except ValueError as error:
        raise TransitionsFailedError(f"the load is too slow: {error}") from None


def _limit_text(limits: ClockLimit) -> str:
    names = [str(limit.name).lower() for limit in ClockLimit if limit in limits]
    return " and ".join(names) or "unknown"


def _without_outliers(changes: list[_Change]) -> list[_Change]:
    """Leave out changes whose completion is far off the others', if they are few."""
    if len(changes) < FEWEST_REPETITIONS // 2:
        return changes
    logs = [math.log(max(change.found.completion_s, 1e-6)) for change in changes]
    middle = median(logs)
    deviation = max(_SIGMA * median(abs(log - middle) for log in logs), _LEAST_LOG_DEVIATION)
    kept = [
        change
        for change, log in zip(changes, logs, strict=True)
        if abs(log - middle) <= _OUTLIER_SIGMAS * deviation
    ]
    return kept if len(changes) - len(kept) <= _MOST_OUTLIERS * len(changes) else changes


def _times_of(
    seen: Sequence[_Seen], load: TransitionLoad, at_once: Sequence[QueueTimes]
) -> ClockTransitions:
    """Return the times that plans use, of the changes under this load."""
    of_load = [each for each in seen if each.load == load]
    ups = [change for each in of_load if each.from_mhz < each.to_mhz for change in each.kept()]
    downs = [change for each in of_load if each.from_mhz > each.to_mhz for change in each.kept()]
    if not ups or not downs:
        raise TransitionsFailedError("no change was seen within 1 s of its request")
    up = TimeSpread.of([change.found.completion_s for change in ups])
    down = TimeSpread.of([change.found.onset_s for change in downs])
    call = TimeSpread.of([change.call_s for change in (*ups, *downs)])
    return ClockTransitions(
        up_p5_s=up.p5_s,
        up_p50_s=up.p50_s,
        up_p95_s=up.p95_s,
        down_p5_s=down.p5_s,
        down_p50_s=down.p50_s,
        down_p95_s=down.p95_s,
        call_p50_s=call.p50_s,
        call_p95_s=call.p95_s,
        queues_in_node=_is_queueing(at_once, call.p50_s),
    )


def _is_queueing(at_once: Sequence[QueueTimes], call_s: float) -> bool | None:
    """Return whether the last of several GPUs is late by its place; None: not measured."""
    if len(at_once) < 2:
        return None
    alone, most = at_once[0], at_once[-1]
    late_s = most.last.p50_s - alone.last.p50_s
    return late_s > max(call_s, _LEAST_CALL_S) * (most.num_gpus - alone.num_gpus) / 2
