"""What polling may take of a core: earned as time goes by, paid for after each window."""

from __future__ import annotations

import time

# How much of it may be saved up, in time.
SAVED_NS = 300_000_000


class PollingCredit:
    """Counts this process's CPU time against the share that polling may take of one core.

    Args:
        share: of one core, on average; 0: nothing.
    """

    def __init__(self, share: float) -> None:
        self._share = share
        self._left_ns = 0.0
        self._earned_ns = time.monotonic_ns()
        self._begun_ns = self._ended_ns = time.process_time_ns()

    @property
    def left_ns(self) -> float:
        """CPU time that may be taken, ns; below 0 where more was."""
        return self._left_ns

    def earn(self) -> None:
        """Add what the time since the last call is worth."""
        now_ns = time.monotonic_ns()
        earned_ns = self._share * (now_ns - self._earned_ns)
        self._earned_ns = now_ns
        self._left_ns = min(self._left_ns + earned_ns, self._share * SAVED_NS)

    def begin(self) -> None:
        """What this process takes from now on is polling's, sleeping and waking included."""
        self._begun_ns = time.process_time_ns()

    def is_used_up(self) -> bool:
        """Whether what was taken since the begin is all there was."""
        return time.process_time_ns() - self._begun_ns >= self._left_ns

    def end(self) -> None:
        """What this process takes from now on is not polling's."""
        self._ended_ns = time.process_time_ns()

    def pay(self) -> int:
        """Take off what came between begin and end; how much that is, ns."""
        taken_ns = self._ended_ns - self._begun_ns
        self._begun_ns = self._ended_ns
        self._left_ns -= taken_ns
        return taken_ns
