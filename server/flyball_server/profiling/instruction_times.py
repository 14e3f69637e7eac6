"""Times of a stage's instructions at every clock, from the probes' means and their scatter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from flyball_server.profiling.mixed_model import FloatArray, MixedModel, VarianceComponent
from flyball_server.profiling.stage_points import StagePoints, StepTable

# Of the window of clocks on a log scale: over so much a curve stays much the same. Where power
# begins to limit a GPU differs from class to class, so their own curves bend sooner.
_COMMON_LENGTH, _OWN_LENGTH = 0.5, 0.2


@dataclass(frozen=True, kw_only=True)
class CurvePrior:
    """Spread of curves about their mean, as standard deviations of a relative quantity.

    Attributes:
        level: level of all curves together.
        offset: offset of one class's curve from the common one, as at the highest clock; 0: none.
        shape: shape of the common curve about its level: guess and spread.
        own_shape: of one class's curve from the common one and the offset, smooth: guess and
            spread.
        roughness: deviation of one point from its smooth curve: guess and spread.
    """

    level: float
    offset: float
    shape: tuple[float, float]
    own_shape: tuple[float, float]
    roughness: tuple[float, float]

    def components(
        self, num_classes: int, clocks_mhz: Sequence[int]
    ) -> tuple[VarianceComponent, ...]:
        """Covariance of the values at all points, class after class, each in falling clocks."""
        num_clocks = len(clocks_mhz)
        same_class, every_class = np.eye(num_classes), np.ones((num_classes, num_classes))
        flat = np.ones((num_clocks, num_clocks))
        common = _smooth(clocks_mhz, _COMMON_LENGTH)
        own = _less_highest(_smooth(clocks_mhz, _OWN_LENGTH))
        return tuple(
            VarianceComponent(
                covariance=np.kron(of_class, of_clock).astype(np.float64),
                guess=guess,
                spread=spread,
            )
            for of_class, of_clock, (guess, spread) in (
                (every_class, flat, (self.level, 0.0)),
                (same_class, flat, (self.offset, 0.0)),
                (every_class, common, self.shape),
                (same_class, own, self.own_shape),
                (same_class, np.eye(num_clocks), self.roughness),
            )
            if guess
        )


def _smooth(clocks_mhz: Sequence[int], length: float) -> FloatArray:
    """Matern 5/2 covariance of a smooth curve's values at these clocks, on a log scale."""
    position = np.log(np.array(clocks_mhz, dtype=np.float64))
    position /= position[0] - position[-1]
    distance = np.abs(position[:, None] - position[None, :]) * (np.sqrt(5.0) / length)
    smooth: FloatArray = (1 + distance + distance**2 / 3) * np.exp(-distance)
    return smooth


def _less_highest(smooth: FloatArray) -> FloatArray:
    """Return the covariance of the same curves less what they are at the highest clock."""
    at_highest = smooth[:, :1]
    difference: FloatArray = smooth - at_highest - at_highest.T + smooth[0, 0]
    return difference


# Of the logarithm of the time. Classes differ by their work, so by any factor; what they share is
# how it changes over the clock, at most in inverse proportion.
TIME_PRIOR = CurvePrior(
    level=10.0,
    offset=3.0,
    shape=(0.3, 1.0),
    own_shape=(0.03, 1.0),
    roughness=(0.002, 0.8),
)
# Prior of the scatter: number of instructions and their scatter (share). A handful of probes
# alone does not determine it.
_PRIOR_COUNT, _PRIOR_SCATTER = 4.0, 0.02
# Rows from which the scatter between steps is estimated by itself.
_ENOUGH_ROWS = 10


@dataclass(frozen=True, kw_only=True)
class StageTimes:
    """Times at the points of a stage.

    Attributes:
        mean_s: shape (num_points,).
        error_s: standard errors; same shape.
        num_probes: instructions that were measured at each point; same shape.
        scatter: per class, of one instruction, as a share.
    """

    mean_s: FloatArray
    error_s: FloatArray
    num_probes: FloatArray
    scatter: FloatArray


def estimate_times(points: StagePoints, table: StepTable) -> StageTimes:
    """Posterior of the times, given the steps; unprobed points are interpolated.

    The logarithms of the probed points' mean times are the readings, each with the standard
    error that the scatter of single instructions gives it.
    """
    num_probes = table.counts.sum(axis=0)
    sums = (table.counts * table.mean_s).sum(axis=0)
    grand_s = np.divide(sums, num_probes, out=np.zeros_like(sums), where=num_probes > 0)
    scatter = _scatter(points, table, grand_s)
    probed = np.flatnonzero(num_probes)
    per_point = np.repeat(scatter, len(points.clocks_mhz))[probed]
    readings = np.log(grand_s[probed])
    model = MixedModel(
        readings=readings,
        design=np.eye(points.num_points)[probed],
        prior_mean=np.full(points.num_points, float(readings.mean())),
        prior=TIME_PRIOR.components(len(points.classes), points.clocks_mhz),
        noise=[
            VarianceComponent(
                covariance=np.diag(per_point**2 / num_probes[probed]), guess=1.0, spread=0.0
            )
        ],
    )
    posterior = model.fitted().posterior()
    mean_s = np.exp(posterior.mean)
    return StageTimes(
        mean_s=mean_s,
        error_s=mean_s * np.sqrt(np.diag(posterior.covariance)),
        num_probes=num_probes,
        scatter=scatter,
    )


def _scatter(points: StagePoints, table: StepTable, grand_s: FloatArray) -> FloatArray:
    """Per class, the standard deviation of one instruction's time as a share.

    The larger one of what single instructions show and what the steps' means show: where a
    whole step is slow or fast together, more instructions of it add no information.
    """
    relative = np.divide(
        table.mean_s - grand_s, grand_s, out=np.zeros_like(table.mean_s), where=table.counts > 0
    )
    between = table.counts * relative**2
    within = np.divide(
        np.maximum(table.counts - 1, 0) * table.variance_s2,
        grand_s**2,
        out=np.zeros_like(between),
        where=table.counts > 0,
    )
    shape = (len(table.step), len(points.classes), len(points.clocks_mhz))
    counts = table.counts.reshape(shape)
    between, within = between.reshape(shape).sum((0, 2)), within.reshape(shape).sum((0, 2))
    num_points = (counts.sum(0) > 0).sum(1)
    num_rows = (counts > 0).sum((0, 2))
    prior = _PRIOR_COUNT * _PRIOR_SCATTER**2
    single = (between + within + prior) / (
        np.maximum(counts.sum((0, 2)) - num_points, 0) + _PRIOR_COUNT
    )
    stepwise = (between + prior) / (np.maximum(num_rows - num_points, 0) + _PRIOR_COUNT)
    has_rows = num_rows - num_points >= _ENOUGH_ROWS
    scatter: FloatArray = np.sqrt(np.maximum(single, np.where(has_rows, stepwise, 0.0)))
    return scatter
