"""How the instructions of an emulated GPU differ from their profile: noise, and a slower pace."""

from __future__ import annotations

import math
import random
from dataclasses import replace

from flyball_profiles.stage_profile import OperatingPoint

_MAX_NOISE = 0.3
# Of a normal draw; one in 16 000 lies beyond.
_MAX_SIGMAS = 4.0


class InstructionVariation:
    """Draws for each instruction by how much its time and its energy differ.

    Noise is log-normal with a mean of 1, so no draw is negative, and cut off at four sigmas: at a
    `noise` of 0.02 draws lie between 0.92 and 1.08, at 0.29 between 0.31 and 3.0.

    Args:
        noise: standard deviation of each draw, relative, at least 0 and below 0.3; 0: nothing is
            drawn.
        seed: of the draws.

    Raises:
        ValueError: the noise is out of its range.
    """

    def __init__(self, *, noise: float, seed: int) -> None:
        if not 0 <= noise < _MAX_NOISE:
            raise ValueError(f"noise must be at least 0 and below {_MAX_NOISE:g}, not {noise}")
        # A log-normal of mean 1 and variance noise^2.
        self._variance = math.log1p(noise * noise)
        self._generator = random.Random(seed)
        self._slowdown = 1.0
        self._time_factor = 1.0
        self._energy_factor = 1.0

    def set_pace(self, slowdown: float) -> None:
        """From the next draw on, times and energies are so many times those of the profile.

        Raises:
            ValueError: it is not positive and finite.
        """
        if not (math.isfinite(slowdown) and slowdown > 0):
            raise ValueError(f"slowdown must be positive and finite, not {slowdown}")
        self._slowdown = slowdown

    def draw(self) -> None:
        """Another instruction begins."""
        slowdown = self._slowdown
        self._time_factor = slowdown * self._noise()
        self._energy_factor = slowdown * self._noise()

    def apply(self, point: OperatingPoint) -> OperatingPoint:
        """The point as that instruction has it, at whichever clock."""
        if self._time_factor == 1.0 and self._energy_factor == 1.0:
            return point
        return replace(
            point,
            time_s=point.time_s * self._time_factor,
            energy_j=point.energy_j * self._energy_factor,
        )

    def _noise(self) -> float:
        if not self._variance:
            return 1.0
        sigmas = self._generator.gauss(0.0, 1.0)
        within = max(-_MAX_SIGMAS, min(_MAX_SIGMAS, sigmas))
        return math.exp(math.sqrt(self._variance) * within - self._variance / 2)
