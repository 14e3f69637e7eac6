"""Steps of a plan version: which run at the highest clocks, and how they make pairs. Pure."""

from __future__ import annotations

import copy
import functools
import math
from dataclasses import dataclass, field
from typing import NamedTuple

from flyball_server.jobs.savings.intervals import MeanEstimate
from flyball_server.jobs.step_records import StepTotals
from flyball_wire.savings import Estimate


class WorkAtHighest(NamedTuple):
    """Time and energy that a step's announced work takes at the highest clocks, predicted."""

    time_s: float
    energy_j: float
    #: Number of the coefficients; predictions of others are of another scale.
    model: int = 0


_MAX_CELLS = 256
# Share of steps whose work must be known, for all to be compared by it; the others are left out.
_LEAST_WITH_WORK = 0.9
_MAX_BATCHES = 30


@dataclass(kw_only=True)
class BatchMeans:
    """Mean of a series whose neighbours are correlated, by non-overlapping batch means.

    The series is cut into batches of equal length; their means are nearly independent where
    batches are long against the correlation, so their scatter gives the variance of the whole
    mean, whichever sign the correlation has (A. M. Law, Simulation Modeling and Analysis, 5th ed.,
    section 9.5.3). A batch has about n^(1/3) of n values, which makes the error of that variance
    least (J. M. Flegal and G. L. Jones, Annals of Statistics 38, 2010), and there are at most 30
    (B. Schmeiser, Operations Research 30, 1982).
    """

    #: Sums of as many neighbours as a cell has; the last cell may have fewer.
    sums: list[float] = field(default_factory=list[float])
    cell_length: int = 1
    num_in_last: int = 0
    num_values: int = 0
    #: Sum of all values.
    total: float = 0.0

    def add(self, value: float) -> None:
        """Add the next value of the series."""
        if self.num_in_last in {0, self.cell_length}:
            if len(self.sums) == _MAX_CELLS:
                self._merge_cells()
            self.sums.append(0.0)
            self.num_in_last = 0
        self.sums[-1] += value
        self.num_in_last += 1
        self.total += value
        self.num_values += 1

    def estimate(self) -> MeanEstimate | None:
        """Return the mean of all values; None if there are no values."""
        if not self.num_values:
            return None
        mean = self.total / self.num_values
        return MeanEstimate.of_parts(mean, self.batch_means(), num_steps=self.num_values)

    def batch_means(self) -> list[float]:
        """Return the means of batches of equal length; the remainder counts in the mean only."""
        num_full = len(self.sums) - (self.num_in_last < self.cell_length)
        longest = max(1, round(self.num_values ** (1 / 3)))
        cells = max(
            math.ceil(longest / self.cell_length),
            math.ceil(num_full / _MAX_BATCHES),
        )
        return [
            math.fsum(self.sums[start : start + cells]) / (cells * self.cell_length)
            for start in range(0, num_full - cells + 1, cells)
        ]

    def _merge_cells(self) -> None:
        """Merge the cells, all of them full, into half as many of twice the length."""
        self.sums = [a + b for a, b in zip(self.sums[::2], self.sums[1::2], strict=True)]
        self.cell_length *= 2
        self.num_in_last = self.cell_length


@dataclass(kw_only=True)
class WorkedMeans:
    """Steps' times or energies beside those that their announced work takes at the highest clocks.

    Both series have the same steps in the same order, so their batches are of the same steps.
    """

    measured: BatchMeans = field(default_factory=BatchMeans)
    of_work: BatchMeans = field(default_factory=BatchMeans)

    @property
    def num_values(self) -> int:
        """Number of steps added so far."""
        return self.measured.num_values

    def add(self, measured: float, of_work: float) -> None:
        """Add the next step."""
        self.measured.add(measured)
        self.of_work.add(of_work)

    def ratio(self) -> MeanEstimate | None:
        """Return the ratio of the sums, measured over predicted; None: there is none.

        The variance is that of `a - R b` over `b`'s mean squared, as in `PairedMeans.ratio`, of the
        means of batches.
        """
        a, b = self.measured, self.of_work
        if b.total <= 0:
            return None
        ratio, mean = a.total / b.total, b.total / b.num_values
        both = zip(a.batch_means(), b.batch_means(), strict=True)
        off = [(x - ratio * y) / mean for x, y in both]
        return MeanEstimate.of_parts(ratio, off, num_steps=a.num_values)


@dataclass(kw_only=True)
class PairedMeans:
    """Two kinds of steps, interleaved and compared pair by pair.

    Slow drift is the same for both halves of a pair and cancels in their difference. An
    energy counter that is read late moves energy from a block of steps to its neighbour: that
    error has opposite signs in neighbouring differences, so intervals that take them as
    independent are rather too wide than too narrow.
    """

    num_pairs: int = 0
    #: Number of steps in the smaller halves of all pairs.
    num_steps: int = 0
    mean_a: float = 0.0
    mean_b: float = 0.0
    #: Sums of products of deviations from these means.
    aa: float = 0.0
    bb: float = 0.0
    ab: float = 0.0

    def add(self, a: float, b: float, *, num_steps: int) -> None:
        """Add a pair: the mean of each half, and the number of steps of the smaller half."""
        self.num_pairs += 1
        self.num_steps += num_steps
        # Welford's update, also of the co-moment.
        off_a, off_b = a - self.mean_a, b - self.mean_b
        self.mean_a += off_a / self.num_pairs
        self.mean_b += off_b / self.num_pairs
        self.aa += off_a * (a - self.mean_a)
        self.bb += off_b * (b - self.mean_b)
        self.ab += off_a * (b - self.mean_b)

    def difference(self) -> MeanEstimate | None:
        """Return the mean of `a - b`."""
        return self._estimate(self.mean_a - self.mean_b, self.aa - 2 * self.ab + self.bb)

    def ratio(self) -> Estimate | None:
        """Return the mean of `a` over the mean of `b`; None if undefined.

        Linearised: the variance is that of `a - R b` over `b`'s mean squared (W. G. Cochran,
        Sampling Techniques, 3rd ed., eq. 6.13).
        """
        if not self.num_pairs or self.mean_b <= 0:
            return None
        ratio = self.mean_a / self.mean_b
        squares = self.aa - 2 * ratio * self.ab + ratio**2 * self.bb
        estimate = self._estimate(ratio, squares / self.mean_b**2)
        return None if estimate is None else estimate.interval()

    def _estimate(self, mean: float, squares: float) -> MeanEstimate | None:
        if not self.num_pairs:
            return None
        others = self.num_pairs - 1
        return MeanEstimate(
            mean=mean,
            variance=max(squares, 0.0) / others / self.num_pairs if others else None,
            degrees_of_freedom=others,
            num_steps=self.num_steps,
        )


@dataclass(kw_only=True)
class CountingRule:
    """Rule for the steps that count; takes a job's steps in rising order.

    A step counts if all ranks have posted it, ran one version in it as planned, and ran the same
    version in the complete step before: clocks settle in the first step.
    """

    num_ranks: int
    #: Version of the previous complete step, alone in a tuple; empty: no such version.
    settled: tuple[int | None, ...] = ()

    def is_complete(self, step: StepTotals) -> bool:
        """Return whether all ranks have posted the step."""
        return step.num_ranks >= self.num_ranks

    def counts(self, step: StepTotals) -> bool:
        """Return whether the next step counts."""
        if step.num_unknown:
            self.settled = ()
        if step.num_unknown or not self.is_complete(step):
            return False
        settled, version = self.settled, step.newest_version
        # In a mixed step the ranks that have still to change are unknown.
        self.settled = () if step.is_mixed else (version,)
        return not (step.is_mixed or step.left_plan) and settled == (version,)


@dataclass(frozen=True, kw_only=True)
class StepKinds:
    """Steps of a plan version that run at the highest clocks.

    Attributes:
        first_step: step of the first entry of `baseline_cycle`.
        baseline_cycle: repeated pattern, as in PlanRecord; `(True,)`: all steps; empty: none.
        is_probe: true for a version of online profiling.
        num_microbatches: microbatches of its steps; 0: not known.
    """

    first_step: int = 0
    baseline_cycle: tuple[bool, ...] = ()
    is_probe: bool = False
    num_microbatches: int = 0

    def is_baseline(self, step: int) -> bool:
        """Return whether this step runs at the highest clocks."""
        cycle = self.baseline_cycle
        return bool(cycle) and cycle[(step - self.first_step) % len(cycle)]

    @property
    def is_interleaved(self) -> bool:
        """Return whether its steps are compared with each other."""
        return not self.is_probe and len(set(self.baseline_cycle)) > 1

    @property
    def is_all_baseline(self) -> bool:
        """Return whether all its steps run at the highest clocks, and none is for profiling."""
        return not self.is_probe and bool(self.baseline_cycle) and all(self.baseline_cycle)


DEFAULT_CLOCKS = StepKinds(baseline_cycle=(True,))


@dataclass(kw_only=True)
class StepSeries:
    """Steps of one kind: their times, and their energies if measured."""

    times_s: BatchMeans = field(default_factory=BatchMeans)
    energies_j: BatchMeans = field(default_factory=BatchMeans)
    #: Both beside those that the steps' announced work takes at the highest clocks, predicted; of
    #: steps whose work is known.
    times_of_work: WorkedMeans = field(default_factory=WorkedMeans)
    energies_of_work: WorkedMeans = field(default_factory=WorkedMeans)
    #: Number of the coefficients of these steps, that of the first; of others, work is not known.
    model: int = 0
    first_step: int = 0
    last_step: int = 0

    @property
    def num_steps(self) -> int:
        """Number of steps added so far."""
        return self.times_s.num_values

    @property
    def has_work(self) -> bool:
        """Return whether the work of nearly all steps is known."""
        return 0 < _LEAST_WITH_WORK * self.num_steps <= self.times_of_work.num_values

    @property
    def work_model(self) -> int | None:
        """Return the number of the coefficients; None: the work of too many steps is not known."""
        return self.model if self.has_work else None

    def add(self, step: StepTotals, work: WorkAtHighest | None = None) -> None:
        """Add the next step; a run that has started over has steps with lower numbers again."""
        self.first_step = min(self.first_step, step.step) if self.num_steps else step.step
        self.last_step = max(self.last_step, step.step)
        self.times_s.add(step.time_s)
        if step.energy_j is not None:
            self.energies_j.add(step.energy_j)
        if work is not None and not self.times_of_work.num_values:
            self.model = work.model
        if work is not None and work.model != self.model:
            work = None
        if work is not None:
            self.times_of_work.add(step.time_s, work.time_s)
        if work is not None and step.energy_j is not None:
            self.energies_of_work.add(step.energy_j, work.energy_j)

    def distance_to(self, other: StepSeries) -> int:
        """Return the number of steps between the two, 0 if they overlap."""
        return max(self.first_step - other.last_step, other.first_step - self.last_step, 0)


@functools.cache
def pairs_of(cycle: tuple[bool, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return how the steps of a cycle of plan and baseline steps are paired.

    A pair is the shortest stretch with as many steps of either kind: `ABBA` has two, so has
    `AABBBBAA`. Steps at the end that make no whole stretch belong to none.

    Returns:
        Per row of the cycle the pair that it belongs to (from 0; the number of pairs: none), and
        per pair its steps of either kind.
    """
    pair_of_row: list[int] = []
    sizes: list[int] = []
    begun = balance = 0
    for row, is_baseline in enumerate(cycle):
        balance += 1 if is_baseline else -1
        pair_of_row.append(len(sizes))
        if balance == 0:
            sizes.append((row + 1 - begun) // 2)
            begun = row + 1
    return tuple(pair_of_row), tuple(sizes)


@dataclass(kw_only=True)
class Pairs:
    """Plan steps against baseline steps; pairs without energies are missing in `energies_j`."""

    times_s: PairedMeans = field(default_factory=PairedMeans)
    energies_j: PairedMeans = field(default_factory=PairedMeans)


@dataclass(kw_only=True)
class PairGathering:
    """Steps of an interleaved version, combined into pairs.

    A pair counts if at least half of its steps of either kind have a valid measurement. Where the
    work of all its steps is known, the sums of either half are scaled to the same work, the mean of
    both: so its ratio is one of sums, each over what the half's work takes at the highest clocks.
    """

    kinds: StepKinds
    pairs: Pairs = field(default_factory=Pairs)
    #: Cycle and number of the current pair; None: no step yet.
    now: tuple[int, int] | None = None
    #: Steps of the current pair.
    on_plan: StepSeries = field(default_factory=StepSeries)
    at_baseline: StepSeries = field(default_factory=StepSeries)

    def add(self, step: StepTotals, work: WorkAtHighest | None = None) -> None:
        """Add the next step with a valid measurement."""
        pair_of_row, _ = pairs_of(self.kinds.baseline_cycle)
        cycle, row = divmod(step.step - self.kinds.first_step, len(pair_of_row))
        pair = (cycle, pair_of_row[row])
        if pair != self.now:
            self._end_pair()
            self.now = pair
        half = self.at_baseline if self.kinds.is_baseline(step.step) else self.on_plan
        half.add(step, work)

    def so_far(self) -> Pairs:
        """Return all pairs as if the current pair were complete; nothing changes."""
        wanted = self._num_wanted()
        if not wanted:
            return self.pairs
        counted = copy.deepcopy(self.pairs)  # a few sums, independent of the number of pairs
        self._count_in(counted, wanted)
        return counted

    def _end_pair(self) -> None:
        wanted = self._num_wanted()
        if wanted:
            self._count_in(self.pairs, wanted)
        self.on_plan, self.at_baseline = StepSeries(), StepSeries()

    def _num_wanted(self) -> int:
        """Return the number of steps of either kind that complete the current pair; 0: no pair."""
        if self.now is None:
            return 0
        _, sizes = pairs_of(self.kinds.baseline_cycle)
        return (*sizes, 0)[self.now[1]]

    def _count_in(self, pairs: Pairs, wanted: int) -> None:
        a, b = self.on_plan, self.at_baseline
        is_by_work = a.work_model is not None and a.work_model == b.work_model
        for of_pairs, halves in (
            (pairs.times_s, [(side.times_s, side.times_of_work) for side in (a, b)]),
            (pairs.energies_j, [(side.energies_j, side.energies_of_work) for side in (a, b)]),
        ):
            one, other = (
                _half(values, worked if is_by_work else WorkedMeans()) for values, worked in halves
            )
            _add_pair(of_pairs, one, other, wanted)


class _Half(NamedTuple):
    """Steps of one kind in a pair: their number and sum, and what their work takes."""

    num_steps: int
    total: float
    #: 0: not known.
    of_work: float = 0.0


def _half(values: BatchMeans, worked: WorkedMeans) -> _Half:
    if worked.num_values:
        return _Half(worked.num_values, worked.measured.total, worked.of_work.total)
    return _Half(values.num_values, values.total)


def _add_pair(pairs: PairedMeans, a: _Half, b: _Half, wanted: int) -> None:
    smaller = min(a.num_steps, b.num_steps)
    if 2 * smaller < wanted:
        return
    mean_a, mean_b = a.total / a.num_steps, b.total / b.num_steps
    if a.of_work and b.of_work:
        per_step = (a.of_work + b.of_work) / (a.num_steps + b.num_steps)
        mean_a, mean_b = per_step * a.total / a.of_work, per_step * b.total / b.of_work
    pairs.add(mean_a, mean_b, num_steps=smaller)
