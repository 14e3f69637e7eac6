"""Steps of a plan version: which run at the highest clocks, and how they make pairs. Pure."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, field

from flyball_server.jobs.savings.intervals import MeanEstimate
from flyball_wire.closed_loop import Estimate

_MAX_CELLS = 1024
_MAX_BATCHES = 30


class BatchMeans:
    """Mean of a series whose neighbours are correlated, by non-overlapping batch means.

    The series is cut into batches of equal length; their means are nearly independent where
    batches are long against the correlation, so their scatter gives the variance of the whole
    mean, whichever sign the correlation has (A. M. Law, Simulation Modeling and Analysis, 5th ed.,
    section 9.5.3). A batch has about n^(1/3) of n values, which makes the error of that variance
    least (J. M. Flegal and G. L. Jones, Annals of Statistics 38, 2010), and there are at most 30
    (B. Schmeiser, Operations Research 30, 1982).
    """

    def __init__(self) -> None:
        self._sums: list[float] = []
        self._cell_length = 1
        self._num_in_last = 0
        self._num_values = 0
        self._sum = 0.0
        self._estimate: MeanEstimate | None = None

    @property
    def num_values(self) -> int:
        """Number of values added so far."""
        return self._num_values

    @property
    def total(self) -> float:
        """Sum of these values."""
        return self._sum

    def add(self, value: float) -> None:
        """Add the next value of the series."""
        if self._num_in_last in {0, self._cell_length}:
            if len(self._sums) == _MAX_CELLS:
                self._merge_cells()
            self._sums.append(0.0)
            self._num_in_last = 0
        self._sums[-1] += value
        self._num_in_last += 1
        self._sum += value
        self._num_values += 1
        self._estimate = None

    def estimate(self) -> MeanEstimate | None:
        """Return the mean of all values; None if there are no values."""
        if self._estimate is None and self._num_values:
            self._estimate = self._made_estimate()
        return self._estimate

    def _made_estimate(self) -> MeanEstimate:
        means = self._batch_means()
        mean = self._sum / self._num_values
        if len(means) < 2:
            return MeanEstimate(
                mean=mean, variance=None, degrees_of_freedom=0, num_steps=self._num_values
            )
        center = math.fsum(means) / len(means)
        squares = math.fsum((each - center) ** 2 for each in means)
        return MeanEstimate(
            mean=mean,
            variance=squares / (len(means) - 1) / len(means),
            degrees_of_freedom=len(means) - 1,
            num_steps=self._num_values,
        )

    def _batch_means(self) -> list[float]:
        """Return the means of batches of equal length; the remainder counts in the mean only."""
        num_full = len(self._sums) - (self._num_in_last < self._cell_length)
        longest = max(1, round(self._num_values ** (1 / 3)))
        cells = max(
            math.ceil(longest / self._cell_length),
            math.ceil(num_full / _MAX_BATCHES),
        )
        return [
            math.fsum(self._sums[start : start + cells]) / (cells * self._cell_length)
            for start in range(0, num_full - cells + 1, cells)
        ]

    def _merge_cells(self) -> None:
        """Merge the cells, all of them full, into half as many of twice the length."""
        self._sums = [a + b for a, b in zip(self._sums[::2], self._sums[1::2], strict=True)]
        self._cell_length *= 2
        self._num_in_last = self._cell_length


class PairedMeans:
    """Two kinds of steps, interleaved and compared pair by pair.

    Slow drift is the same for both halves of a pair and cancels in their difference. An
    energy counter that is read late moves energy from a block of steps to its neighbour: that
    error has opposite signs in neighbouring differences, so intervals that take them as
    independent are rather too wide than too narrow.
    """

    def __init__(self) -> None:
        self._num_pairs = 0
        self._num_steps = 0
        self._mean_a = self._mean_b = 0.0
        self._aa = self._bb = self._ab = 0.0

    @property
    def num_pairs(self) -> int:
        """Number of pairs added so far."""
        return self._num_pairs

    @property
    def num_steps(self) -> int:
        """Number of steps in the smaller halves of all pairs."""
        return self._num_steps

    def add(self, a: float, b: float, *, num_steps: int) -> None:
        """Add a pair: the mean of each half, and the number of steps of the smaller half."""
        self._num_pairs += 1
        self._num_steps += num_steps
        # Welford's update, also of the co-moment.
        off_a, off_b = a - self._mean_a, b - self._mean_b
        self._mean_a += off_a / self._num_pairs
        self._mean_b += off_b / self._num_pairs
        self._aa += off_a * (a - self._mean_a)
        self._bb += off_b * (b - self._mean_b)
        self._ab += off_a * (b - self._mean_b)

    def difference(self) -> MeanEstimate | None:
        """Return the mean of `a - b`."""
        return self._estimate(self._mean_a - self._mean_b, self._aa - 2 * self._ab + self._bb)

    def ratio(self) -> Estimate | None:
        """Return the mean of `a` over the mean of `b`; None if undefined.

        Linearised: the variance is that of `a - R b` over `b`'s mean squared (W. G. Cochran,
        Sampling Techniques, 3rd ed., eq. 6.13).
        """
        if not self._num_pairs or self._mean_b <= 0:
            return None
        ratio = self._mean_a / self._mean_b
        squares = self._aa - 2 * ratio * self._ab + ratio**2 * self._bb
        estimate = self._estimate(ratio, squares / self._mean_b**2)
        return None if estimate is None else estimate.interval()

    def _estimate(self, mean: float, squares: float) -> MeanEstimate | None:
        if not self._num_pairs:
            return None
        others = self._num_pairs - 1
        return MeanEstimate(
            mean=mean,
            variance=max(squares, 0.0) / others / self._num_pairs if others else None,
            degrees_of_freedom=others,
            num_steps=self._num_steps,
        )


@dataclass(frozen=True, kw_only=True)
class WholeStep:
    """A step over all its ranks.

    Attributes:
        version: newest plan version that was run in it; None: default clocks on all ranks.
        is_complete: true once all ranks have posted it.
        is_mixed: true if ranks ran several versions in it.
        left_plan: true if the step deviated from the plan.
        is_unknown: true if a rank ran a plan that is unknown here: the step counts as nothing.
        time_s: iteration time of the slowest rank, s.
        energy_j: energy of all ranks, J; None: a rank could not read it.
        num_unplanned: instructions that the plan does not have.
        num_overruns: emulated instructions whose computation took longer than profiled.
        num_capped: clock readings that power or heat held below the plan's clock.
        num_lost_clocks: other readings below the plan's clock.
        num_without_clocks: ranks that set no clocks, so that theirs are not known.
    """

    step: int
    version: int | None
    is_complete: bool
    is_mixed: bool
    left_plan: bool
    time_s: float
    energy_j: float | None
    is_unknown: bool = False
    num_unplanned: int = 0
    num_overruns: int = 0
    num_capped: int = 0
    num_lost_clocks: int = 0
    num_without_clocks: int = 0


class CountingRule:
    """Rule for the steps that count; takes a job's steps in rising order.

    A step counts if all ranks have posted it, ran one version in it as planned, and ran the same
    version in the complete step before: clocks settle in the first one.
    """

    def __init__(self) -> None:
        # Version of the previous complete step, alone in a tuple; empty: no such version.
        self._settled: tuple[int | None, ...] = ()

    def counts(self, step: WholeStep) -> bool:
        """Return whether the next step counts."""
        if step.is_unknown:
            self._settled = ()
        if step.is_unknown or not step.is_complete:
            return False
        settled = self._settled
        # In a mixed step the ranks that have still to change are unknown.
        self._settled = () if step.is_mixed else (step.version,)
        return not (step.is_mixed or step.left_plan) and settled == (step.version,)


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
    first_step: int = 0
    last_step: int = 0

    @property
    def num_steps(self) -> int:
        """Number of steps added so far."""
        return self.times_s.num_values

    def add(self, step: WholeStep) -> None:
        """Add the next step."""
        if not self.num_steps:
            self.first_step = step.step
        self.last_step = step.step
        self.times_s.add(step.time_s)
        if step.energy_j is not None:
            self.energies_j.add(step.energy_j)

    def distance_to(self, other: StepSeries) -> int:
        """Return the number of steps between the two, 0 if they overlap."""
        return max(self.first_step - other.last_step, other.first_step - self.last_step, 0)


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


class PairGathering:
    """Steps of an interleaved version, combined into pairs.

    A pair counts if at least half of its steps of either kind have a valid measurement.
    """

    def __init__(self, kinds: StepKinds) -> None:
        self._pairs = Pairs()
        self._kinds = kinds
        self._pair_of_row, self._sizes = pairs_of(kinds.baseline_cycle)
        self._now: tuple[int, int] | None = None
        self._on_plan, self._at_baseline = StepSeries(), StepSeries()

    def add(self, step: WholeStep) -> None:
        """Add the next step with a valid measurement."""
        cycle, row = divmod(step.step - self._kinds.first_step, len(self._pair_of_row))
        pair = (cycle, self._pair_of_row[row])
        if pair != self._now:
            self._end_pair()
            self._now = pair
        half = self._at_baseline if self._kinds.is_baseline(step.step) else self._on_plan
        half.add(step)

    def so_far(self) -> Pairs:
        """Return all pairs as if the current one were complete; nothing changes."""
        wanted = self._num_wanted()
        if not wanted:
            return self._pairs
        counted = copy.deepcopy(self._pairs)  # a few sums, independent of the number of pairs
        self._count_in(counted, wanted)
        return counted

    def _end_pair(self) -> None:
        wanted = self._num_wanted()
        if wanted:
            self._count_in(self._pairs, wanted)
        self._on_plan, self._at_baseline = StepSeries(), StepSeries()

    def _num_wanted(self) -> int:
        """Return the number of steps of either kind that complete the current pair; 0: no pair."""
        return 0 if self._now is None else (*self._sizes, 0)[self._now[1]]

    def _count_in(self, pairs: Pairs, wanted: int) -> None:
        on_plan, at_baseline = self._on_plan, self._at_baseline
        _add_pair(pairs.times_s, on_plan.times_s, at_baseline.times_s, wanted)
        _add_pair(pairs.energies_j, on_plan.energies_j, at_baseline.energies_j, wanted)


def _add_pair(pairs: PairedMeans, a: BatchMeans, b: BatchMeans, wanted: int) -> None:
    smaller = min(a.num_values, b.num_values)
    if 2 * smaller >= wanted:
        pairs.add(a.total / a.num_values, b.total / b.num_values, num_steps=smaller)
