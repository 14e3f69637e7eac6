"""Bounds, defaults and texts of a planning request; imports no planner."""

from __future__ import annotations

import decimal

from flyball_server.planning.errors import PlanningError
from flyball_wire.plan_options import MAX_RESERVE, Policy

DEFAULT_RECONFIGURE_GRANULARITY_MHZ = 30
# Beyond these a GPU is another one, or stopped.
MIN_SLOWDOWN, MAX_SLOWDOWN = 0.01, 100.0


def check_reserve(reserve: float, policy: Policy = Policy.FRONTIER) -> None:
    """Check the bounds of a reserve, and that the policy keeps one.

    Raises:
        PlanningError: it is not from 0 to MAX_RESERVE, or would have no effect.
    """
    if not 0 <= reserve <= MAX_RESERVE:
        raise PlanningError(
            f"must be a share from 0 to {MAX_RESERVE:g}, not {reserve:g}", field="reserve"
        )
    if reserve and policy != Policy.FRONTIER:
        raise PlanningError(f"is for policy {Policy.FRONTIER}, not {policy}", field="reserve")


def rounded_up(value: float) -> str:
    """Six digits, so rounded that asking for exactly the printed figure is granted."""
    context = decimal.Context(prec=6, rounding=decimal.ROUND_CEILING)
    return f"{context.create_decimal_from_float(value).normalize():f}"
