"""Means of measured steps and how sure they are: by batch means, and by pairs.

All accumulators take any number of values in bounded memory.
"""

from __future__ import annotations

import math

from flyball_server.jobs.savings.intervals import Interval, MeanEstimate

_MAX_CELLS = 1024
_MAX_BATCHES = 30


class BatchMeans:
    """The mean of a series whose neighbours are correlated, by non-overlapping batch means.

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
        """Values added so far."""
        return self._num_values

    @property
    def total(self) -> float:
        """Their sum."""
        return self._sum

    def add(self, value: float) -> None:
        """The next value of the series."""
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
        """The mean of all values; None where there are none."""
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
        """Of batches of equal length; what is left over at the end counts in the mean only."""
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
        """Cells of twice the length, half as many; all of them are full now."""
        self._sums = [a + b for a, b in zip(self._sums[::2], self._sums[1::2], strict=True)]
        self._cell_length *= 2
        self._num_in_last = self._cell_length


class PairedMeans:
    """Two kinds of steps in turn, compared pair by pair.

    What drifts slowly is the same for both halves of a pair and cancels in their difference. An
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
        """Pairs added so far."""
        return self._num_pairs

    @property
    def num_steps(self) -> int:
        """Steps of the smaller halves of all pairs."""
        return self._num_steps

    def add(self, a: float, b: float, *, num_steps: int) -> None:
        """A pair: the mean of each half, and how many steps the smaller half has."""
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
        """The mean of `a - b`."""
        return self._estimate(self._mean_a - self._mean_b, self._aa - 2 * self._ab + self._bb)

    def ratio(self) -> Interval | None:
        """Mean of `a` over mean of `b`; None where there is none.

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
