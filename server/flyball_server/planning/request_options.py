"""Defaults and bounds of a planning request; loads no planner."""

from __future__ import annotations

from enum import StrEnum

from flyball_server.planning.errors import PlanningError


class Effort(StrEnum):
    """Effort of the search; more is slower and nearer to the bound."""

    LOW = "low"
    NORMAL = "normal"
    HIGH = "high"


DEFAULT_POLICY = "frontier"
DEFAULT_RECONFIGURE = "balanced"
DEFAULT_SCHEDULE = "1f1b"
DEFAULT_TARGET = "fastest"
DEFAULT_RECONFIGURE_GRANULARITY_MHZ = 30
MAX_RESERVE = 0.5
# Beyond these a GPU is not slow or fast but another one, or stopped.
MIN_SLOWDOWN, MAX_SLOWDOWN = 0.01, 100.0


def check_reserve(reserve: float) -> None:
    """Let a reserve pass that can be planned with.

    Raises:
        PlanningError: it is none.
    """
    if not 0 <= reserve <= MAX_RESERVE:
        raise PlanningError(
            f"must be a share from 0 to {MAX_RESERVE:g}, not {reserve:g}", field="reserve"
        )
