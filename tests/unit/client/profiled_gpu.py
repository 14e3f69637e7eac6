"""A GPU whose time, power and clock a test scripts, and the instruction that runs on it."""

from __future__ import annotations

import math
from collections.abc import Callable

from flyball_client.gpu._base import ClockLimit, GpuPermissionError

RESET = "reset"


class ScriptedGpu:
    """Not emulated; time passes only while its instruction runs, or where a test moves it.

    Args:
        time_s: of one instruction, from (clock in MHz, moment in s).
        power_w: from (clock in MHz, moment in s).
        clocks_mhz: that it supports.
        counter_period_s: between movements of the energy counter; infinite: it never moves.
    """

    def __init__(
        self,
        time_s: Callable[[int, float], float],
        power_w: Callable[[int, float], float],
        *,
        clocks_mhz: tuple[int, ...] = (1400, 1200, 900),
        counter_period_s: float = 0.1,
    ) -> None:
        self.told: list[int | str] = []
        self.held_mhz: int | None = None
        self.moment_s = 50.0
        self.num_runs = 0
        self.num_counter_readings = 0
        self.refuses_locks = False
        self._time_s = time_s
        self._power_w = power_w
        self._clocks_mhz = clocks_mhz
        self._counter_period_s = counter_period_s
        self._energy_j = 1000.0
        self._shown_j = 1000.0

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
                self._shown_j = self._energy_j + power_w * (moved_at_s - self.moment_s)
        self._energy_j += power_w * seconds
        self.moment_s = until_s

    @property
    def name(self) -> str:
        """The product's name."""
        return "scripted GPU"

    @property
    def uuid(self) -> str:
        """The GPU's UUID."""
        return "GPU-scripted"

    @property
    def is_emulated(self) -> bool:
        """False."""
        return False

    @property
    def address(self) -> None:
        """None: it is in this process only."""
        return None

    def supported_sm_clocks_mhz(self) -> tuple[int, ...]:
        """Return what the test gave."""
        return self._clocks_mhz

    def lock_sm_clock_mhz(self, sm_clock_mhz: int) -> None:
        """Note the clock, or refuse."""
        if self.refuses_locks:
            raise GpuPermissionError("run as root")
        self.told.append(sm_clock_mhz)

    def reset_sm_clock(self) -> None:
        """Note it."""
        self.told.append(RESET)

    def sm_clock_mhz(self) -> int:
        """The clock last told, or what it is held at below that."""
        last = self.told[-1] if self.told else RESET
        asked_mhz = last if isinstance(last, int) else self._clocks_mhz[0]
        return asked_mhz if self.held_mhz is None else min(asked_mhz, self.held_mhz)

    def clock_limits(self) -> ClockLimit:
        """Power, where the test holds the clock down."""
        return ClockLimit.NONE if self.held_mhz is None else ClockLimit.POWER

    def total_energy_j(self) -> float:
        """Return what the counter shows, J."""
        self.num_counter_readings += 1
        return self._shown_j

    def close(self) -> None:
        """Give the clock back."""
        self.reset_sm_clock()
