"""Movements of an energy counter, and its period by them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from measured_process import BenchmarkError

# Between two readings; short beside any counter's period, long beside a call to the driver.
PAUSE_S = 0.0005
MIN_MOVEMENTS = 5
# A period of fewer times what a movement may be seen too late may be that of the readings.
MIN_PERIOD_OVER_LATE = 3


@dataclass(frozen=True, kw_only=True)
class Reading:
    """One look at the counter.

    Attributes:
        before_s: the clock before the call, s.
        after_s: after it, s.
        energy_j: what the counter showed, J.
    """

    before_s: float
    after_s: float
    energy_j: float


@dataclass(frozen=True, kw_only=True)
class CounterFigure:
    """Movement of an energy counter.

    Attributes:
        num_movements: that were seen.
        period_ms: from one movement to the next: median, ms; the 5th percentile; the 95th; the
            longest.
        late_ms: by how much a movement may have been seen too late, median, ms: how far apart the
            reading that saw it and the one before began and ended.
        rise_j: by how much one movement raised it, median, J.
        power_w: the mean from the first to the last movement, W.
    """

    num_movements: int
    period_ms: tuple[float, float, float, float]
    late_ms: float
    rise_j: float
    power_w: float

    @property
    def is_resolved(self) -> bool:
        """True if readings are so frequent that the period is the counter's, not the readings'."""
        return self.period_ms[0] >= MIN_PERIOD_OVER_LATE * self.late_ms

    @classmethod
    def of(cls, readings: Sequence[Reading]) -> CounterFigure:
        """From readings in the order of time.

        Raises:
            BenchmarkError: there are fewer than five movements among them.
        """
        moved = [(old, new) for old, new in pairwise(readings) if new.energy_j != old.energy_j]
        if len(moved) < MIN_MOVEMENTS:
            seconds = readings[-1].after_s - readings[0].before_s if readings else 0.0
            raise BenchmarkError(
                f"the energy counter moved {len(moved)} times in {seconds:.1f} s, and"
                f" {MIN_MOVEMENTS} are needed; give more --seconds"
            )
        moments_s = [new.after_s for _, new in moved]
        periods_ms = sorted(1000 * (later - former) for former, later in pairwise(moments_s))
        last = len(periods_ms) - 1
        first_j, last_j = moved[0][1].energy_j, moved[-1][1].energy_j
        return cls(
            num_movements=len(moved),
            period_ms=(
                statistics.median(periods_ms),
                periods_ms[round(0.05 * last)],
                periods_ms[round(0.95 * last)],
                periods_ms[-1],
            ),
            late_ms=1000 * statistics.median(new.after_s - old.before_s for old, new in moved),
            rise_j=statistics.median(new.energy_j - old.energy_j for old, new in moved),
            power_w=(last_j - first_j) / (moments_s[-1] - moments_s[0]),
        )


def read_counter(read_j: Callable[[], float], seconds: float) -> list[Reading]:
    """Look at the counter for so long, s."""
    readings: list[Reading] = []
    until_s = time.perf_counter() + seconds
    while (before_s := time.perf_counter()) < until_s:
        energy_j = read_j()
        after_s = time.perf_counter()
        readings.append(Reading(before_s=before_s, after_s=after_s, energy_j=energy_j))
        time.sleep(PAUSE_S)
    return readings
