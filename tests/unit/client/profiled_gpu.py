"""A GPU whose time, power and clock a test scripts, and the instruction that runs on it."""

from __future__ import annotations

import math
from collections.abc import Callable

from tests.unit.client.recording_gpu import RESET, RecordingGpu

from flyball_client.gpu._base import ClockLimit

__all__ = ["RESET", "ScriptedGpu"]


class ScriptedGpu(RecordingGpu):
    """Not emulated; time passes only while its instruction runs, or where a test moves it.

    Args:
        time_s: Time of one instruction in s, from (clock in MHz, moment in s).
        power_w: Power in W, from (clock in MHz, moment in s).
        counter_period_s: Time between movements of the energy counter; infinite: it never moves.
    """

    def __init__(
        self,
        time_s: Callable[[int, float], float],
        power_w: Callable[[int, float], float],
        *,
        counter_period_s: float = 0.1,
    ) -> None:
        super().__init__()
        self.held_mhz: int | None = None
        self.moment_s = 50.0
        self.num_runs = 0
        self._time_s = time_s
        self._power_w = power_w
        self._counter_period_s = counter_period_s
        self._exact_j = 1000.0
        self.energy_j = 1000.0

    def now_s(self) -> float:
        """The moment, s."""
        return self.moment_s

    def run_once(self) -> None:
        """The instruction."""
        self.num_runs += 1
        self.pass_time(self._time_s(self.sm_clock_mhz(), self.moment_s))

    def pass_time(self, seconds: float) -> None:
        """Let the GPU draw its power; the counter moves at multiples of its period."""
        power_w = self._power_w(self.sm_clock_mhz(), self.moment_s)
        period_s = self._counter_period_s
        until_s = self.moment_s + seconds
        if math.isfinite(period_s):
            moved_at_s = math.floor(until_s / period_s) * period_s
            if moved_at_s > self.moment_s:
                self.energy_j = self._exact_j + power_w * (moved_at_s - self.moment_s)
        self._exact_j += power_w * seconds
        self.moment_s = until_s

    def sm_clock_mhz(self) -> int:
        """The clock last told, or what it is held at below that."""
        asked_mhz = super().sm_clock_mhz()
        return asked_mhz if self.held_mhz is None else min(asked_mhz, self.held_mhz)

    def clock_limits(self) -> ClockLimit:
        """Power, where the test holds the clock down."""
        return ClockLimit.NONE if self.held_mhz is None else ClockLimit.POWER
