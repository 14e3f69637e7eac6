"""The energy counter of an emulated GPU: exact inside, and shown as coarsely as NVML's."""

from __future__ import annotations

import math

from flyball_profiles.stage_profile import OperatingPoint


class EnergyMeter:
    """Energy over emulated time, from the instructions that run and the power between them.

    An instruction's energy accrues evenly over its profiled time; whatever is not covered by
    one, overruns included, is billed at the blocking power. All moments are emulated seconds
    and must not fall from call to call.

    Args:
        blocking_power_w: W of the GPU while it waits in communication.
        counter_period_s: the shown counter moves at multiples of this, s.
    """

    def __init__(self, *, blocking_power_w: float, counter_period_s: float) -> None:
        self._blocking_power_w = blocking_power_w
        self._counter_period_s = counter_period_s
        self._since_s = 0.0
        self._energy_j = 0.0
        self._running: OperatingPoint | None = None
        self._shown_at_s = 0.0
        self._shown_j = 0.0

    def begin(self, point: OperatingPoint, now_s: float) -> None:
        """From now on this instruction runs."""
        self._settle(now_s)
        self._running = point

    def end(self, now_s: float) -> None:
        """From now on nothing runs."""
        self._settle(now_s)
        self._running = None

    def exact_j(self, now_s: float) -> float:
        """The true energy up to now, J."""
        # Not negative: moments computed in floating point may fall by a rounding error.
        passed_s = max(0.0, now_s - self._since_s)
        point = self._running
        if point is None:
            return self._energy_j + self._blocking_power_w * passed_s
        busy_s = min(passed_s, point.time_s)
        return (
            self._energy_j
            + point.energy_j * busy_s / point.time_s
            + self._blocking_power_w * (passed_s - busy_s)
        )

    def shown_j(self, now_s: float) -> float:
        """The energy as of the last multiple of the counter's period, J."""
        moved_at_s = math.floor(now_s / self._counter_period_s) * self._counter_period_s
        # Before every change of what runs this is called, so no multiple lies before _since_s
        # that has not been shown.
        if moved_at_s > self._shown_at_s:
            self._shown_j = self.exact_j(max(moved_at_s, self._since_s))
            self._shown_at_s = moved_at_s
        return self._shown_j

    def _settle(self, now_s: float) -> None:
        self.shown_j(now_s)
        self._energy_j = self.exact_j(now_s)
        self._since_s = now_s
