"""The virtual time of one emulated rank: it passes only where the rank computes or waits."""

from __future__ import annotations


class RankClock:
    """An EmulationClock that a rank moves itself, so that minutes of training take no time.

    Ranks share nothing but messages, and a message carries the moment it was sent. A clock a
    rank is therefore enough: what a rank does, and when, does not depend on which rank's turn
    came first on this machine.
    """

    def __init__(self) -> None:
        self._now_s = 0.0

    def now_s(self) -> float:
        """Virtual seconds since the run began."""
        return self._now_s

    def sleep_until(self, deadline_s: float) -> None:
        """Be at that moment; at a later one stay there."""
        self._now_s = max(self._now_s, deadline_s)
