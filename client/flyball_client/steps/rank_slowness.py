"""By how much a rank is slower than its plan assumes, as its last steps show."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

from flyball_client.steps.step_plans import PlanKey, StepPlan

# Counted from this share on, in the median of so many steps.
_SLOW, _NUM_STEPS = 1.02, 5
# More would take half a millisecond between two steps.
_MAX_INSTRUCTIONS = 2048


class Slowness(NamedTuple):
    """A rank's slowness.

    Times at the highest clock say how slow its GPU is; they move deadlines. Times at lower clocks
    say how far the plan's curve is off, too, and what else counts as computation there; they only
    raise this pipeline's clocks. If they moved deadlines, a light pipeline would claim to be the
    slowest.
    """

    #: Time of instructions at the highest clock over what the plan assumes, at least 1.
    at_highest: float = 1.0
    #: Share by which those below it took longer still.
    below: float = 0.0


class RankSlowness:
    """Ratios of measured to planned times of a rank's last steps on one plan."""

    def __init__(self) -> None:
        self._plan: PlanKey | None = None
        self._highest: deque[float] = deque(maxlen=_NUM_STEPS)
        self._lower: deque[float] = deque(maxlen=_NUM_STEPS)

    def add(
        self, plan: PlanKey, step: StepPlan, times_s: Sequence[float], highest_mhz: int
    ) -> None:
        """Add a step that ran as planned; `times_s` are those of its instructions, s."""
        if len(times_s) != len(step.clocks_mhz) or len(times_s) > _MAX_INSTRUCTIONS:
            return
        if plan != self._plan:
            # Another plan assumes other times.
            self._plan = plan
            self._highest.clear()
            self._lower.clear()
        highest_s, lower_s = step.settled_s(times_s, highest_mhz)
        for took_s, planned_s, ratios in (
            (highest_s, step.highest_s, self._highest),
            (lower_s, step.lower_s, self._lower),
        ):
            if planned_s > 0:
                # What was planned contains the slowness that was known before.
                ratios.append(took_s / planned_s * step.slowness)

    def of(self, plan: PlanKey) -> Slowness:
        """Return the slowness relative to this plan."""
        if plan != self._plan:
            return Slowness()
        highest, lower = _median(self._highest), _median(self._lower)
        return Slowness(highest, max(0.0, round(lower / highest - 1, 2)))


def _median(ratios: Sequence[float]) -> float:
    if len(ratios) < _NUM_STEPS or max(ratios) < _SLOW:
        return 1.0
    found = median(ratios)
    return round(found, 2) if found >= _SLOW else 1.0
