"""Prior over a stage's curves of time and energy by clock, before they are measured.

All instructions of a stage run on the same kind of GPU, so their curves have one common shape;
each class departs from it by an amount of its own, by a smooth curve of its own, and point by
point by what no curve explains. How large the departures are is found from the measurements,
so that a rough truth is not smoothed away.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from flyball_server.profiling.mixed_model import FloatArray, VarianceComponent

# Of the window of clocks on a log scale: over so much a curve stays much the same. Where power
# begins to limit a GPU differs from class to class, so their own curves bend sooner.
_COMMON_LENGTH, _OWN_LENGTH = 0.5, 0.2


@dataclass(frozen=True, kw_only=True)
class CurvePrior:
    """Spread of curves about their mean, as standard deviations of a relative quantity.

    Attributes:
        level: of all curves together.
        offset: of one class's curve from the common one, as at the highest clock.
        shape: of the common curve about its level: guess and spread.
        own_shape: of one class's curve from the common one and the offset, smooth: guess and
            spread.
        roughness: of one point from its smooth curve: guess and spread.
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
        )


def _smooth(clocks_mhz: Sequence[int], length: float) -> FloatArray:
    """Matern 5/2 covariance of a smooth curve's values at these clocks, on a log scale."""
    position = np.log(np.array(clocks_mhz, dtype=np.float64))
    position /= position[0] - position[-1]
    distance = np.abs(position[:, None] - position[None, :]) * (np.sqrt(5.0) / length)
    smooth: FloatArray = (1 + distance + distance**2 / 3) * np.exp(-distance)
    return smooth


def _less_highest(smooth: FloatArray) -> FloatArray:
    """The covariance of the same curves less what they are at the highest clock."""
    at_highest = smooth[:, :1]
    difference: FloatArray = smooth - at_highest - at_highest.T + smooth[0, 0]
    return difference
