"""Governor of a rank that can set no clock."""

from __future__ import annotations

from flyball_client.governor._base import ClockReport
from flyball_client.gpu._base import ClockCall


class NoGovernor:
    """ClockGovernor that is over from the beginning; the reason is logged by its maker."""

    @property
    def is_over(self) -> bool:
        """True."""
        return True

    def start(self, *, strict: bool = False) -> None:
        """Do nothing."""

    def on_step_begin(self) -> None:
        """Do nothing."""

    def set_mhz(self, sm_clock_mhz: int) -> None:
        """Do nothing."""

    def set_mhz_later(self, sm_clock_mhz: int, delay_s: float) -> None:
        """Do nothing."""

    def on_instruction_end(self, upcoming_mhz: int | None = None) -> None:
        """Do nothing."""

    def pause(self) -> None:
        """Do nothing."""

    def give_up(self, error: Exception) -> None:
        """Do nothing."""

    def report(self) -> ClockReport:
        """Return no counts."""
        return ClockReport()

    def last_call(self) -> ClockCall | None:
        """Return None: no clock is set."""
        return None

    def close(self) -> None:
        """Do nothing."""
