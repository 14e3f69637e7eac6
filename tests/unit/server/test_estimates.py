"""Means of measured steps: exact where they can be, and honest about how sure they are."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable

import pytest

from flyball_server.jobs.measurements.step_pairs import BatchMeans, PairedMeans, WorkedMeans
from flyball_server.jobs.savings.intervals import (
    MeanEstimate,
    combined,
    quantile_of_t,
    ratio_of,
)
from flyball_wire.savings import Estimate

NUM_RUNS = 200
COUNTER_S = 0.1
POWER_W = 300.0


def batch_means(values: list[float]) -> BatchMeans:
    series = BatchMeans()
    for value in values:
        series.add(value)
    return series


def holds(interval: Estimate | None, truth: float) -> bool:
    assert interval is not None
    assert interval.low is not None
    assert interval.high is not None
    return interval.low <= truth <= interval.high


def coverage(draw: Callable[[random.Random], bool]) -> float:
    """Share of seeded runs in which an interval held the truth."""
    return sum(draw(random.Random(seed)) for seed in range(NUM_RUNS)) / NUM_RUNS


def correlated(chance: random.Random, num_values: int, correlation: float) -> list[float]:
    """Values about 10 whose neighbours are correlated, with a standard deviation of 1."""
    value = chance.gauss(0, 1)
    values = []
    for _ in range(num_values):
        value = correlation * value + math.sqrt(1 - correlation**2) * chance.gauss(0, 1)
        values.append(10 + value)
    return values


def read_late(chance: random.Random, energies_j: list[float]) -> list[float]:
    """Return what a counter tells that moves every 100 ms: each reading lacks up to 30 J."""
    lacking_j = [chance.uniform(0, COUNTER_S * POWER_W) for _ in range(len(energies_j) + 1)]
    return [
        energy_j + lacking_j[step] - lacking_j[step + 1] for step, energy_j in enumerate(energies_j)
    ]


# ------------------------------------------------------------------ one series


def test_a_few_steps_give_the_interval_of_their_batches() -> None:
    one, two, eight = (
        batch_means(values).estimate()
        for values in ([7.0], [9.0, 11.0], [1.0, 3.0, 2.0, 2.0, 5.0, 3.0, 4.0, 4.0])
    )
    assert one is not None
    assert one.interval() == Estimate(mean=7, low=None, high=None, num_steps=1)
    assert two == MeanEstimate(mean=10, variance=1, degrees_of_freedom=1, num_steps=2)
    assert two.interval().high == pytest.approx(10 + 12.706, abs=1e-3)
    assert eight is not None
    assert (eight.degrees_of_freedom, eight.mean) == (3, 3)
    assert eight.variance == pytest.approx(statistics.variance([2, 2, 4, 4]) / 4)


@pytest.mark.parametrize("num_values", [1024, 1025, 20_003])
def test_a_long_series_is_kept_in_thirty_batches_at_the_most(num_values: int) -> None:
    series = batch_means([float(step % 7) for step in range(num_values)])
    estimate = series.estimate()
    assert estimate is not None
    assert estimate.mean == pytest.approx(statistics.fmean(step % 7 for step in range(num_values)))
    assert 9 <= estimate.degrees_of_freedom <= 29
    assert estimate.num_steps == num_values


@pytest.mark.parametrize(
    ("num_values", "correlation", "least"),
    [(20, 0.0, 0.92), (100, 0.5, 0.87), (1000, 0.8, 0.89)],
)
def test_intervals_hold_the_truth(num_values: int, correlation: float, least: float) -> None:
    def draw(chance: random.Random) -> bool:
        estimate = batch_means(correlated(chance, num_values, correlation)).estimate()
        assert estimate is not None
        return holds(estimate.interval(), 10.0)

    assert coverage(draw) >= least


def test_a_late_counter_does_not_widen_the_interval_of_a_long_run() -> None:
    chance = random.Random(3)
    energies_j = read_late(chance, [100 + chance.gauss(0, 1) for _ in range(2000)])
    estimate = batch_means(energies_j).estimate()
    assert estimate is not None
    assert estimate.variance is not None
    as_if_independent = statistics.variance(energies_j) / len(energies_j)
    assert estimate.variance < as_if_independent / 10


# ------------------------------------------------------------------ pairs


def test_pairs_that_differ_alike_are_sure_whatever_drifts() -> None:
    pairs = PairedMeans()
    for drift in (0.0, 5.0, 1.0, 20.0):
        pairs.add(90 + drift, 100 + drift, num_steps=3)
    difference = pairs.difference()
    assert difference is not None
    assert difference.mean == pytest.approx(-10)
    assert difference.variance == pytest.approx(0, abs=1e-20)
    assert difference.num_steps == 12
    assert difference.degrees_of_freedom == 3


def test_the_ratio_of_pairs_is_that_of_their_means_with_cochrans_error() -> None:
    a, b = [90.0, 94.0, 85.0], [100.0, 101.0, 96.0]
    pairs = PairedMeans()
    for each in zip(a, b, strict=True):
        pairs.add(*each, num_steps=1)
    ratio = pairs.ratio()
    assert ratio is not None
    expected = sum(a) / sum(b)
    assert ratio.mean == pytest.approx(expected)
    left = [x - expected * y for x, y in zip(a, b, strict=True)]
    error = math.sqrt(sum(each**2 for each in left) / 2 / 3) / statistics.fmean(b)
    assert ratio.high == pytest.approx(expected + quantile_of_t(2) * error)


def test_a_ratio_to_predicted_work_varies_as_its_residuals_over_the_mean_work() -> None:
    series = WorkedMeans()
    for measured_s, predicted_s in ((2.2, 1.0), (5.8, 3.0)):
        series.add(measured_s, predicted_s)
    ratio = series.ratio()
    assert ratio is not None
    # Residuals of 0.2 and -0.2 s, over a mean of 2 s.
    assert (ratio.mean, ratio.variance) == pytest.approx((2.0, 0.01))
    assert (ratio.degrees_of_freedom, ratio.num_steps) == (1, 2)


@pytest.mark.parametrize("block", [1, 5])
def test_interleaved_savings_hold_under_drift_and_a_late_counter(block: int) -> None:
    num_pairs = 20

    def draw(chance: random.Random) -> bool:
        kinds = ([False] * block + [True] * 2 * block + [False] * block) * (num_pairs // 2)
        drift = chance.uniform(-0.05, 0.05)
        energies_j = [
            (100 if is_baseline else 88)
            * (1 + drift * step / len(kinds))
            * (1 + chance.gauss(0, 0.01))
            for step, is_baseline in enumerate(kinds)
        ]
        read_j = read_late(chance, energies_j)
        pairs = PairedMeans()
        for start in range(0, len(kinds), 2 * block):
            ends = start, start + block, start + 2 * block
            halves = [statistics.fmean(read_j[ends[i] : ends[i + 1]]) for i in (0, 1)]
            if kinds[start]:
                halves.reverse()
            pairs.add(*halves, num_steps=block)
        return holds(pairs.ratio(), 0.88)

    assert coverage(draw) >= 0.93


# ------------------------------------------------------------------ figures made of means


def known(mean: float, variance: float | None, degrees_of_freedom: float = 9) -> MeanEstimate:
    return MeanEstimate(
        mean=mean, variance=variance, degrees_of_freedom=degrees_of_freedom, num_steps=20
    )


def test_errors_of_independent_means_add_in_squares() -> None:
    difference = combined([(1, known(10, 4.0)), (-2, known(3, 4.0))])
    assert difference.mean == 4
    assert difference.variance == 20
    assert difference.degrees_of_freedom == pytest.approx(400 / (16 / 9 + 256 / 9))


def test_what_has_no_error_makes_no_interval_and_nothing_is_a_share_of_nothing() -> None:
    assert combined([(1, known(10, 4.0)), (1, known(3, None, 0))]).interval().low is None
    ratio = ratio_of(known(9, 1.0), known(10, None, 0))
    assert ratio == Estimate(mean=0.9, low=None, high=None, num_steps=20)
    assert ratio_of(known(9, 1.0), known(0, 1.0)) is None


def test_the_interval_of_a_ratio_is_symmetric_in_its_logarithm() -> None:
    """Two relative errors of 10 %, each with 9 degrees of freedom."""
    ratio = ratio_of(known(10, 1.0), known(20, 4.0))
    assert ratio is not None
    factor = math.exp(quantile_of_t(18) * math.sqrt(0.02))
    assert (ratio.low, ratio.high) == pytest.approx((0.5 / factor, 0.5 * factor))
