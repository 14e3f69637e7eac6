"""Figures, intervals and aligned columns as text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from flyball_wire.messages import JobView
from flyball_wire.read_models import JobOverview
from flyball_wire.savings import Estimate

UNKNOWN = "-"
_COLUMN_GAP = 2


def energy_text(energy_j: float) -> str:
    """Return an energy in a suitable unit: `214.3 kJ`."""
    return _scaled(energy_j, "J")


def power_text(power_w: float) -> str:
    """Return a power in a suitable unit: `53.1 kW`."""
    return _scaled(power_w, "W")


def _scaled(value: float, unit: str) -> str:
    for limit, factor, prefix in ((1e9, 1e-9, "G"), (1e6, 1e-6, "M"), (1e4, 1e-3, "k")):
        if abs(value) >= limit:
            return f"{value * factor:.4g} {prefix}{unit}"
    return f"{value:.4g} {unit}"


def state_text(job: JobView | JobOverview) -> str:
    """Return the trouble that a job's state does not say, or else its state."""
    return str(job.state if job.condition is None else job.condition.name)


def to_do(job: JobView | JobOverview) -> str | None:
    """Return the line for someone who has to act; None: nobody has to."""
    if job.problem is not None or job.condition is None:
        return job.problem
    return job.condition.action


def number_text(value: Estimate | float | None, form: str) -> str:
    """Return the number, or the mean of an estimate; UNKNOWN for None."""
    number = value.mean if isinstance(value, Estimate) else value
    return UNKNOWN if number is None else f"{number:{form}}"


def interval_text(estimate: Estimate | None, form: str) -> str:
    """Return the 95 % confidence interval; empty where there is none."""
    if estimate is None or estimate.low is None or estimate.high is None:
        return ""
    return f"[{estimate.low:{form}}, {estimate.high:{form}}]"


def aligned(
    rows: Sequence[Sequence[str]], aligns: Iterable[str], width: int | None = None
) -> list[str]:
    """Return the rows as lines with aligned columns.

    Args:
        rows: cells.
        aligns: `<` or `>` for each column.
        width: columns of the terminal: the last columns are left out, and the first is cut off,
            where the lines are longer; None: no limit.
    """
    aligns, widths = tuple(aligns), [max(map(len, column)) for column in zip(*rows, strict=True)]
    if width is not None:
        while len(widths) > 1 and sum(widths) + _COLUMN_GAP * (len(widths) - 1) > width:
            widths.pop()
    gap = " " * _COLUMN_GAP
    return [
        gap.join(
            f"{cell:{align}{wide}}" for cell, align, wide in zip(row, aligns, widths, strict=False)
        ).rstrip()[:width]
        for row in rows
    ]
