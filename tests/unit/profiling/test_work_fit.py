"""Coefficients of work fitted to measured times, their errors, and the reserve for them."""

from __future__ import annotations

import math
from statistics import NormalDist, fmean

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flyball_pipeline.retiming import StepReserve
from flyball_server.planning.model.array_dag import FloatArray
from flyball_server.profiling.work_fit import (
    FEWEST_MICROBATCHES,
    LONGER,
    WorkFit,
    WorkTimes,
    fit_work,
    work_reserve,
)

TRUE = ((0.2, 1e-4, 3e-8), (0.0, 2e-4, 5e-8))
"""Coefficients of forward and backward."""


def drawn_times(
    num_microbatches: int = 200,
    *,
    shared: float = 0.0,
    own: float = 0.0,
    seed: int = 1,
    is_given: bool = False,
    num_pipelines: int = 1,
    coefficients: tuple[tuple[float, float, float], ...] = TRUE,
) -> WorkTimes:
    """Times of instructions that run each microbatch once, with errors of these deviations."""
    rng = np.random.default_rng(seed)
    num_places = len(coefficients)
    lengths = rng.lognormal(8, 0.6, num_microbatches)
    squares = lengths**2 * rng.uniform(0.2, 1.0, num_microbatches)
    place = np.tile(np.arange(num_places), num_microbatches)
    microbatch = np.repeat(np.arange(num_microbatches), num_places)
    of_lengths, of_squares = lengths[microbatch], squares[microbatch]
    a, b, c = np.array(coefficients).T[:, place]
    ratio = a + b * of_lengths + c * of_squares
    factor = ratio.copy() if is_given else np.full(len(ratio), np.nan)
    errors = np.repeat(rng.normal(0, shared, num_microbatches), num_places)
    ratio = ratio * np.exp(errors + rng.normal(0, own, len(ratio)))
    return WorkTimes(
        ratio=ratio,
        place=place,
        microbatch=microbatch,
        pipeline=microbatch % num_pipelines,
        lengths=of_lengths,
        squares=of_squares,
        factor=factor,
    )


def times_of_one_place(ratio: FloatArray, lengths: FloatArray, squares: FloatArray) -> WorkTimes:
    """Times of an instruction of one stage, one microbatch each."""
    zeros = np.zeros(len(ratio), dtype=np.int64)
    return WorkTimes(
        ratio=ratio,
        place=zeros,
        microbatch=np.arange(len(ratio)),
        pipeline=zeros,
        lengths=lengths,
        squares=squares,
        factor=np.full(len(ratio), np.nan),
    )


@given(
    coefficients=st.tuples(st.floats(-1, 1), st.floats(-1e-4, 2e-4), st.floats(-2e-8, 3e-8)),
    seed=st.integers(0, 1000),
)
def test_coefficients_are_the_optimum_without_negative_ones(
    coefficients: tuple[float, float, float], seed: int
) -> None:
    """Karush-Kuhn-Tucker: at 0 the error grows, elsewhere it is level."""
    rng = np.random.default_rng(seed)
    lengths = rng.lognormal(8, 0.6, 40)
    columns = np.stack([np.ones(40), lengths, lengths**2 * rng.uniform(0.2, 1, 40)], axis=1)
    ratio = np.maximum(columns @ np.array(coefficients), 0.5) * rng.uniform(0.9, 1.1, 40)
    fit = fit_work(times_of_one_place(ratio, lengths, columns[:, 2]), 1)
    assert fit is not None
    found = np.array(fit.coefficients[0])
    weighted = columns / columns.mean(axis=0) / ratio[:, None]
    scaled = found * columns.mean(axis=0)
    residuals = weighted @ scaled - 1
    if is_clipped(residuals):
        return  # fitted without the farthest
    slope = weighted.T @ residuals
    assert (found >= 0).all()
    assert (slope > -1e-6).all()
    assert np.abs(slope * scaled).max() < 1e-6


def is_clipped(residuals: FloatArray) -> bool:
    """Return whether a residual is far from the others."""
    deviations = np.abs(residuals - np.median(residuals))
    return bool((deviations > 4 * 1.4826 * np.median(deviations)).any())


def test_equal_sums_of_lengths_are_told_by_their_squares_alone() -> None:
    """Packed sequences: the sums say no more than a constant does."""
    rng = np.random.default_rng(3)
    squares = rng.uniform(1e6, 1.6e7, 60)
    fit = fit_work(times_of_one_place(0.6 + 4e-8 * squares, np.full(60, 4096.0), squares), 1)
    assert fit is not None
    (found,) = fit.coefficients
    assert [found.factor((4096.0, each)) for each in (2e6, 1e7)] == pytest.approx([0.68, 1.0])


def test_interrupted_instructions_do_not_count() -> None:
    times = drawn_times(100, own=0.01)
    times.ratio[[5, 50, 121]] *= 30
    fit = fit_work(times, 2)
    assert fit is not None
    assert fit.error < 0.015
    factors = [found.factor((4000.0, 1e7)) for found in fit.coefficients]
    assert factors == pytest.approx([0.9, 1.3], rel=0.02)


@pytest.mark.parametrize("is_given", [False, True])
@pytest.mark.parametrize(("shared", "own"), [(0.03, 0.01), (0.0, 0.03), (0.02, 0.0)])
def test_errors_are_told_apart_by_microbatch(shared: float, own: float, is_given: bool) -> None:
    found = [
        fit
        for seed in range(20)
        if (fit := fit_work(drawn_times(shared=shared, own=own, seed=seed, is_given=is_given), 2))
    ]
    assert bool(found[0].coefficients) is not is_given
    squares = [(fit.shared_error**2, fit.own_error**2) for fit in found]
    means = [math.sqrt(fmean(each)) for each in zip(*squares, strict=True)]
    assert means == pytest.approx([shared, own], rel=0.1, abs=0.006)


@pytest.mark.parametrize("is_given", [False, True])
@pytest.mark.parametrize(("shared", "own"), [(0.02, 0.0), (0.01, 0.01)])
def test_a_slow_gpu_is_no_error_of_work(shared: float, own: float, is_given: bool) -> None:
    """One of four pipelines, and the backwards of another: coefficients are the others'."""
    found: list[WorkFit] = []
    for seed in range(20):
        times = drawn_times(
            96, shared=shared, own=own, seed=seed, is_given=is_given, num_pipelines=4
        )
        times.ratio[times.pipeline == 2] *= 1.3
        if not is_given:
            times.ratio[(times.pipeline == 1) & (times.place == 1)] *= 1.1
        fit = fit_work(times, 2)
        assert fit is not None
        found.append(fit)
    squares = [(fit.shared_error**2, fit.own_error**2) for fit in found]
    means = [math.sqrt(fmean(each)) for each in zip(*squares, strict=True)]
    assert means == pytest.approx([shared, own], rel=0.12, abs=0.006)
    if not is_given:
        factors = [[each.factor((4000.0, 1e7)) for each in fit.coefficients] for fit in found]
        # The median of four is between two: 1.1 times for one of them counts by half at most.
        forward, backward = (fmean(each) for each in zip(*factors, strict=True))
        assert forward == pytest.approx(0.9, rel=0.01)
        assert 1.3 * 0.99 < backward < 1.3 * 1.06


def test_few_microbatches_are_not_fitted() -> None:
    assert fit_work(drawn_times(FEWEST_MICROBATCHES - 1), 2) is None
    assert fit_work(drawn_times(FEWEST_MICROBATCHES), 2) is not None
    assert fit_work(drawn_times(100), 3) is None


def fit_with(shared: float = 0.0, own: float = 0.0) -> WorkFit:
    """A fit with these errors."""
    return WorkFit(coefficients=(), num_microbatches=100, shared_error=shared, own_error=own)


def test_a_reserve_leaves_a_thousandth_of_time() -> None:
    """By quantiles of a normal distribution: two paths are longer than the reserve by 0.1 %."""
    share = work_reserve(
        fit_with(shared=0.02), num_pipelines=4, num_microbatches=8, num_stages=2
    ).of_step
    normal = NormalDist(0, 0.02)
    errors = [normal.inv_cdf((number + 0.5) / 20_000) for number in range(20_000)]
    over = fmean(max(0.0, error - share) for error in errors)
    assert 2 * over == pytest.approx(LONGER, rel=0.02)


def test_shared_errors_need_more_than_independent_ones() -> None:
    shape = {"num_pipelines": 4, "num_microbatches": 8, "num_stages": 2}
    shared, own = (
        work_reserve(each, **shape).of_step for each in (fit_with(shared=0.02), fit_with(own=0.02))
    )
    assert shared > 1.9 * own > 0
    # As benchmarks/varying_steps.py chooses by trial: 2.6 and 8.1 %, 1.5 and 5.2 %.
    assert shared == pytest.approx(0.031, abs=0.001)
    assert own == pytest.approx(0.015, abs=0.001)


def test_many_ranks_of_one_microbatch_need_more() -> None:
    fit = fit_with(shared=0.02)
    few, many = (
        work_reserve(fit, num_pipelines=number, num_microbatches=1, num_stages=1).of_step
        for number in (2, 32)
    )
    assert many > 1.5 * few
    # Ranks of one stage may meet at every microbatch.
    assert many == work_reserve(fit, num_pipelines=32, num_microbatches=8, num_stages=1).of_step


def test_exact_times_and_a_single_gpu_need_none() -> None:
    assert work_reserve(
        fit_with(), num_pipelines=4, num_microbatches=8, num_stages=2
    ) == StepReserve(0.0, 0.0)
    assert work_reserve(
        fit_with(shared=0.1), num_pipelines=1, num_microbatches=8, num_stages=1
    ) == StepReserve(0.0, 0.0)
