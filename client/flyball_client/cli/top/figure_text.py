"""Figures and moments as text for `flyball top`."""

from __future__ import annotations

from datetime import datetime

from flyball_client.cli.top.lines import drawable
from flyball_wire.closed_loop import Estimate

UNKNOWN = "-"
_TARGET_UNITS = {"slowdown": ("%", 100.0), "deadline": ("s", 1.0), "power": ("W", 1.0)}


def time_text(time_s: float | None) -> str:
    """Seconds, without the unit."""
    return UNKNOWN if time_s is None else f"{time_s:.4f}"


def joules_text(energy_j: float | None) -> str:
    """Joules, without the unit."""
    return UNKNOWN if energy_j is None else f"{energy_j:.1f}"


def watts_text(power_w: float | None) -> str:
    """Watts, without the unit."""
    return UNKNOWN if power_w is None else f"{power_w:.1f}"


def percent_text(percent: float | None, form: str = ".2f") -> str:
    """Percent, without the sign; never -0.00."""
    if percent is None:
        return UNKNOWN
    decimals = int(form[-2])
    return f"{round(percent, decimals) + 0.0:{form}}"


def power_text(power_w: float) -> str:
    """A power in the unit that suits it: `5.31 kW`."""
    if power_w >= 1e6:
        return f"{power_w * 1e-6:.4g} MW"
    return f"{power_w * 1e-3:.4g} kW" if power_w >= 1e4 else f"{power_w:.4g} W"


def target_text(target: str) -> str:
    """A target as the API names it, `deadline:2.8837280000000014`: `deadline 2.88373 s`."""
    name, _, figure = target.partition(":")
    try:
        unit, factor = _TARGET_UNITS[name]
        value = factor * float(figure)
    except (KeyError, ValueError):
        return drawable(target)
    return f"{name} {float(f'{value:.6g}'):.15g} {unit}"


def interval_text(estimate: Estimate | None, form: str) -> str:
    """The 95 % confidence interval; nothing where it is not known."""
    if estimate is None or estimate.low is None or estimate.high is None:
        return ""
    return f"[{estimate.low:{form}}, {estimate.high:{form}}]"


def estimate_text(estimate: Estimate | None, form: str, unit: str = "") -> str:
    """The mean, and its interval where that is known."""
    if estimate is None:
        return UNKNOWN
    interval = interval_text(estimate, form)
    return f"{estimate.mean:{form}}{unit} {interval}".rstrip()


def moment_of(text: str) -> datetime | None:
    """A moment that the planner sent; None: it is none."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return None if moment.tzinfo is None else moment


def moment_text(moment: datetime | str, now: datetime) -> str:
    """The time of day in the zone of `now`, with the date where that is not today's."""
    if isinstance(moment, str):
        parsed = moment_of(moment)
        if parsed is None:
            return drawable(moment)
        moment = parsed
    here = moment.astimezone(now.tzinfo)
    return f"{here:%H:%M:%S}" if here.date() == now.date() else f"{here:%Y-%m-%d %H:%M}"


def age_text(moment: datetime | str, now: datetime) -> str:
    """Return how long ago it was: `12 s`, `5 min`, `3 h`, `2 d`."""
    then = moment_of(moment) if isinstance(moment, str) else moment
    if then is None:
        return UNKNOWN
    age_s = max(0.0, (now - then).total_seconds())
    for limit_s, unit_s, unit in ((120, 1, "s"), (7200, 60, "min"), (172_800, 3600, "h")):
        if age_s < limit_s:
            return f"{age_s / unit_s:.0f} {unit}"
    return f"{age_s / 86_400:.0f} d"
