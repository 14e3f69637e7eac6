"""The time that an emulated GPU lives in: wall time with precise sleeping, or a test's own."""

from __future__ import annotations

import time
from typing import Protocol

# A sleeping thread is woken this late at the worst on an idle core; slept again, not spun.
_LAST_PART_S = 0.0004


class EmulationClock(Protocol):
    """A monotonic clock and a way to wait for one of its moments."""

    def now_s(self) -> float:
        """Seconds since some fixed moment; never falls."""
        ...

    def sleep_until(self, deadline_s: float) -> None:
        """Return when `now_s()` is at least `deadline_s`; at once if it already is."""
        ...


class WallClock:
    """Real time. Two or three sleeps per wait, none of them busy, since cores are shared."""

    def now_s(self) -> float:
        """Seconds of the system's monotonic clock."""
        return time.monotonic()

    def sleep_until(self, deadline_s: float) -> None:
        """Sleep most of the way, then the rest, so that timer slack adds up once at most."""
        while (left_s := deadline_s - time.monotonic()) > 0:
            time.sleep(left_s - _LAST_PART_S if left_s > 2 * _LAST_PART_S else left_s)
