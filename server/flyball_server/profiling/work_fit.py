"""Factors of instructions' times fitted to the work of their microbatches, and the room they need.

Times of a stage's instructions of one kind and chunk follow `t = a + b sum(L) + c sum(L^2)`, where
L are the lengths of a microbatch's sequences. The clock is divided out: a ratio is a measured time
over the planned time at the clock that ran, so a, b and c are in units of planned time, and are
not negative. They are fitted by least squares of relative errors: ratios of every active set of
coefficients, of which there are seven, are solved without bounds; the best of those without a
negative coefficient is the optimum (Lawson and Hanson, Solving Least Squares Problems, 1974,
chapter 23).

An error of such a fit is mostly a microbatch's: what the sums do not say of it makes all of its
instructions longer together, and errors that are shared do not average out along a path.
Deviations are split by an analysis of variance with the microbatch as random effect. What a GPU is
slower than the others of its stage is no error of the work, and is divided out first.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from flyball_pipeline.retiming import StepReserve
from flyball_pipeline.work import WorkCoefficients
from flyball_server.planning.model.array_dag import FloatArray, IndexArray
from flyball_server.profiling.iteration_delays import robust_deviation

FEWEST_MICROBATCHES = 12
"""Number of microbatches of an instruction below which nothing is fitted."""

# How often a GPU's slowness is taken out, and its number of times below which that is not known.
_NUM_OF_SLOWNESS, _FEWEST_OF_SLOWNESS = 2, 4
# Residuals beyond this number of robust deviations are of interrupted instructions.
_MOST_DEVIATIONS = 6.0
# By which share of time errors may make steps longer on average; a reserve covers the rest.
LONGER = 0.001
# Relevant paths where instructions of several microbatches follow each other, and the squared share
# of an independent error that is left on them: found by `benchmarks/varying_steps.py`'s method on
# 13 shapes (decision 53).
_FEWEST_PATHS, _LEAST_OF_INDEPENDENT = 2.0, 1 / 3
# Squares of the shares of a forward and of a backward twice as long in a microbatch.
_OF_TWO_KINDS = 5 / 9
_SCALE = 1e4


@dataclass(frozen=True, kw_only=True)
class WorkTimes:
    """Ratios of measured instructions to their planned times; arrays of shape (num_samples,)."""

    #: Measured time over the planned one at the clock that ran; positive.
    ratio: FloatArray
    #: Place of the instruction: an index of stage, kind and chunk.
    place: IndexArray
    #: Microbatch of a step of a pipeline, by number: its instructions share errors.
    microbatch: IndexArray
    #: Pipeline, by number: with the place it says which GPU ran the instruction.
    pipeline: IndexArray
    #: Sum of the lengths of the microbatch's sequences; 0 where its work is a factor.
    lengths: FloatArray
    #: Sum of their squares.
    squares: FloatArray
    #: Given factor; NaN where there are lengths.
    factor: FloatArray

    def __post_init__(self) -> None:
        if not (self.ratio > 0).all():
            raise ValueError("ratio must be positive")


@dataclass(frozen=True, kw_only=True)
class WorkFit:
    """Fitted factors, and the deviations of measured times from them as shares."""

    #: By place; empty where all work is factors.
    coefficients: tuple[WorkCoefficients, ...]
    #: Number of microbatches that were measured.
    num_microbatches: int
    #: Standard deviation that a microbatch's instructions share.
    shared_error: float
    #: Standard deviation of each instruction for itself.
    own_error: float

    @property
    def error(self) -> float:
        """Return the standard deviation of an instruction's time from its prediction."""
        return math.hypot(self.shared_error, self.own_error)


def fit_work(times: WorkTimes, num_places: int) -> WorkFit | None:
    """Return the factors that fit the measured times.

    Given factors are kept as they are. Where all work is factors, what all places' times have in
    common with them does not count as an error, since it changes no step's plan; beside lengths it
    does.

    Args:
        times: measured times.
        num_places: number of places.

    Returns:
        None where a place has too few microbatches.
    """
    has_lengths = np.isnan(times.factor)
    counts = np.bincount(times.place, minlength=num_places)
    fitted = np.bincount(times.place[has_lengths], minlength=num_places)
    fewest = min(counts.min(), fitted.min()) if has_lengths.any() else counts.min()
    if fewest < FEWEST_MICROBATCHES:
        return None
    slowness = np.ones_like(times.ratio)
    coefficients, residuals = _residuals(times, slowness, num_places)
    for _ in range(_NUM_OF_SLOWNESS):
        more, _ = _slowness(times, residuals)
        slowness = slowness * more
        coefficients, residuals = _residuals(times, slowness, num_places)
    _, num_slowness = _slowness(times, residuals)
    if not has_lengths.any():
        residuals -= np.median(residuals)
    kept = np.abs(residuals) <= _MOST_DEVIATIONS * max(robust_deviation(residuals), 1e-9)
    num_fitted = num_slowness + sum(
        sum(value > 0 for value in coefficient) for coefficient in coefficients
    )
    shared, own = _deviations(residuals[kept], times.microbatch[kept], num_fitted)
    return WorkFit(
        coefficients=tuple(coefficients),
        num_microbatches=len(np.unique(times.microbatch)),
        shared_error=shared,
        own_error=own,
    )


def _residuals(
    times: WorkTimes, slowness: FloatArray, num_places: int
) -> tuple[list[WorkCoefficients], FloatArray]:
    """Return coefficients of the times without ranks' slowness, and logarithms of what is left."""
    ratio = times.ratio / slowness
    coefficients, predicted = _fits(times, ratio, num_places)
    return coefficients, np.log(ratio / predicted)


def _fits(
    times: WorkTimes, ratio: FloatArray, num_places: int
) -> tuple[list[WorkCoefficients], FloatArray]:
    """Return the coefficients by place, none where all work is factors, and predicted ratios."""
    has_lengths = np.isnan(times.factor)
    predicted = np.where(has_lengths, 1.0, times.factor)
    coefficients: list[WorkCoefficients] = []
    for place in range(num_places) if has_lengths.any() else ():
        of_place = (times.place == place) & has_lengths
        found = _fit(ratio[of_place], times.lengths[of_place], times.squares[of_place])
        coefficients.append(found)
        a, b, c = found
        of_lengths = a + b * times.lengths[of_place] + c * times.squares[of_place]
        predicted[of_place] = np.maximum(of_lengths, 1e-9)
    return coefficients, predicted


def _slowness(times: WorkTimes, residuals: FloatArray) -> tuple[FloatArray, int]:
    """Return how much slower each instruction's GPU is than the median one of its place.

    The second is the number of fitted values.
    """
    key = times.place * (1 + int(times.pipeline.max())) + times.pipeline
    _, first, gpu, counts = np.unique(
        key, return_index=True, return_inverse=True, return_counts=True
    )
    of_gpus = residuals[np.lexsort((residuals, gpu))]
    begins = np.cumsum(counts) - counts
    medians = (of_gpus[begins + (counts - 1) // 2] + of_gpus[begins + counts // 2]) / 2
    place, is_known = times.place[first], counts >= _FEWEST_OF_SLOWNESS
    slower, num_fitted = np.zeros(len(counts)), 0
    for each in np.unique(place[is_known]):
        alike = is_known & (place == each)
        slower[alike] = medians[alike] - np.median(medians[alike])
        num_fitted += int(alike.sum()) - 1
    return np.exp(slower)[gpu], num_fitted


def _fit(ratio: FloatArray, lengths: FloatArray, squares: FloatArray) -> WorkCoefficients:
    """Return the coefficients of one place, fitted a second time without interrupted runs."""
    columns = np.stack([np.ones_like(lengths), lengths, squares], axis=1)
    scale = np.maximum(columns.mean(axis=0), np.finfo(float).tiny)
    columns = columns / scale
    found = _not_negative(columns, ratio)
    residuals = ratio / np.maximum(columns @ found, 1e-9) - 1
    kept = np.abs(residuals - np.median(residuals)) <= _MOST_DEVIATIONS * max(
        robust_deviation(residuals), 1e-9
    )
    if not kept.all():
        found = _not_negative(columns[kept], ratio[kept])
    return WorkCoefficients(*(float(value) for value in found / scale))


def _not_negative(columns: FloatArray, ratio: FloatArray) -> FloatArray:
    """Return the coefficients, none of them negative, of the least squared relative error."""
    weighted = columns / ratio[:, None]
    best = np.zeros(columns.shape[1])
    least = float(len(ratio))
    for size in range(1, columns.shape[1] + 1):
        for active in itertools.combinations(range(columns.shape[1]), size):
            solved, *_ = np.linalg.lstsq(weighted[:, active], np.ones(len(ratio)), rcond=1e-10)
            error = float(((weighted[:, active] @ solved - 1) ** 2).sum())
            # Of equal ones, that with fewer coefficients.
            if (solved >= 0).all() and error < least * (1 - 1e-9) - 1e-18:
                least, best = error, np.zeros(columns.shape[1])
                best[list(active)] = solved
    return best


def _deviations(
    residuals: FloatArray, microbatch: IndexArray, num_fitted: int
) -> tuple[float, float]:
    """Return the standard deviations that microbatches share, and of single instructions.

    One-way analysis of variance with random effects. The fit has taken `num_fitted` degrees of
    freedom, which count as the microbatches'.
    """
    _, group = np.unique(microbatch, return_inverse=True)
    counts = np.bincount(group)
    num_groups, num_samples = len(counts), len(residuals)
    means = np.bincount(group, weights=residuals) / counts
    within = float(((residuals - means[group]) ** 2).sum())
    between = float((counts * means**2).sum())
    of_groups = between / max(1.0, num_groups - num_fitted / max(1.0, num_samples / num_groups))
    if num_samples == num_groups:
        return math.sqrt(of_groups), 0.0
    of_each = within / (num_samples - num_groups)
    # Mean size of a group in the expected mean square (Searle, Variance Components, 1992, 3.6).
    size = (num_samples - float((counts**2).sum()) / num_samples) / max(1, num_groups - 1)
    shared = max(0.0, of_groups - of_each) / max(size, 1.0)
    return math.sqrt(shared), math.sqrt(of_each)


def work_reserve(
    fit: WorkFit, *, num_pipelines: int, num_microbatches: int, num_stages: int
) -> StepReserve:
    """Return the room that a step's plan leaves for errors of its predicted times.

    The longest of K paths, whose times have errors of deviation d, is later than a reserve R by at
    most `K d (phi(x) - x (1 - Phi(x)))` on average, with `x = R / d`. The reserve is the least for
    which this is 0.1 % of the step (`LONGER`). Errors that a microbatch's instructions share stay
    whole on the path that it dominates; independent ones average out:

        d^2 = shared^2 + max(1/3, 5/9 / M) own^2        K = max(2, P / M^2)

    for P pipelines with M microbatches between two meetings. Where there is one stage, ranks may
    meet at every microbatch, so M counts as 1.

    Args:
        fit: fit with its errors.
        num_pipelines: number of pipelines that meet.
        num_microbatches: number of microbatches of a step.
        num_stages: number of stages.
    """
    if num_stages == 1:
        if num_pipelines == 1:
            return StepReserve()
        num_microbatches = 1
    own_left = max(_LEAST_OF_INDEPENDENT, _OF_TWO_KINDS / num_microbatches)
    deviation = math.sqrt(fit.shared_error**2 + own_left * fit.own_error**2)
    num_paths = max(_FEWEST_PATHS, num_pipelines / num_microbatches**2)
    share = _reserve(deviation, num_paths)
    return StepReserve(of_step=math.ceil(_SCALE * share) / _SCALE)


def _reserve(deviation: float, num_paths: float) -> float:
    """Return the least reserve for paths whose times have errors of this deviation."""
    normal = NormalDist()
    low, high = 0.0, 10.0

    def longer(x: float) -> float:
        return num_paths * deviation * (normal.pdf(x) - x * (1 - normal.cdf(x)))

    if longer(0.0) <= LONGER:
        return 0.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if longer(middle) > LONGER else (low, middle)
    return high * deviation
