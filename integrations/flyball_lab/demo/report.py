"""Printed output of the demo: the table of baseline and plan, the plan, and further reading."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from flyball_lab.demo.verdict import DemoResult, Phase, error_percent
from flyball_wire.read_models import TimelineOfPlan

# Width that the table with its frame needs.
_ROOMY = 80


def result_table(phases: Sequence[Phase], width: int) -> Table:
    """Baseline, plan and saving: measured and predicted side by side, all emulated.

    On a screen narrower than `_ROOMY` the table has no frame and takes about 60 columns.
    """
    is_narrow = width < _ROOMY
    table = Table(
        title="One iteration, all 4 stages (emulated A100; nothing here is a real GPU)",
        box=None if is_narrow else box.HEAVY_HEAD,
        pad_edge=not is_narrow,
    )
    space = "\n" if is_narrow else " "
    table.add_column("", no_wrap=True)
    for quantity in ("time, s", "energy, J"):
        for origin in ("measured", "predicted"):
            head = f"{quantity}\n{origin}" if is_narrow else f"{quantity}\n{origin}\n(emulated)"
            table.add_column(head, justify="right", no_wrap=True)
    table.add_column("steps", justify="right")
    figures: list[tuple[float, float, float, float]] = []
    for phase in phases:
        time_s, energy_j = phase.measured.iteration_time_s, phase.measured.energy_j
        figures.append((time_s, phase.predicted_time_s, energy_j, phase.predicted_energy_j))
        table.add_row(
            phase.name,
            f"{time_s:.3f}{space}({phase.slower_percent:+.1f} %)",
            f"{phase.predicted_time_s:.3f}",
            f"{energy_j:.0f}{space}({error_percent(energy_j, phase.predicted_energy_j):+.1f} %)",
            f"{phase.predicted_energy_j:.0f}",
            str(phase.measured.num_steps),
        )
    table.add_section()
    # Adding 0.0 turns a rounded -0.0 into 0.0.
    savings = (round(-error_percent(b, a), 1) + 0.0 for a, b in zip(*figures, strict=True))
    table.add_row("saved", *(f"{saving:.1f} %" for saving in savings), "")
    return table


def plan_lines(timeline: TimelineOfPlan, width: int) -> list[str]:
    """Return the plan's instructions by stage, each whole, in lines of at most `width` columns."""
    critical = set(timeline.critical_path)
    rows: list[list[str]] = []
    for number, row in enumerate(timeline.rows):
        ends_s = [0.0, *(a + b for a, b in zip(row.start_s, row.duration_s, strict=True))]
        waits_ms = [1e3 * (start - end) for start, end in zip(row.start_s, ends_s, strict=False)]
        names = zip(row.kinds, row.microbatches, row.clock_mhz, waits_ms, strict=True)
        units = [
            f"{kind[0].upper()}{i} {mhz} {round(ms, 1) + 0.0:.1f}" for kind, i, mhz, ms in names
        ]
        rows.append(
            [f"[{u}]" if (number, i) in critical else f" {u} " for i, u in enumerate(units)]
        )
    wide = max(len(unit) for units in rows for unit in units)
    lines: list[str] = []
    for number, units in enumerate(rows):
        head = f"Stage {number} | "
        num_beside = max(1, (width - len(head) + 1) // (wide + 1))
        for first in range(0, len(units), num_beside):
            cells = (f"{unit:<{wide}}" for unit in units[first : first + num_beside])
            lines.append((head + " ".join(cells)).rstrip())
            head = " " * len(head)
    return lines


def print_report(console: Console, result: DemoResult, further_lines: Sequence[str]) -> None:
    """Print table, plan and further lines."""
    num_overruns = sum(phase.measured.num_overruns for phase in result.phases)
    losses = result.losses
    console.print(result_table(result.phases, console.width))
    console.print(
        "Baseline: every instruction at its highest clock. Median time and mean energy of the"
        " steps given; the first step of each phase is its warm-up and left out."
        f" Loss {losses[0]:.2f} -> {losses[-1]:.2f} in {len(losses)} steps."
        f" Instructions that outlasted their emulated time (overruns): {num_overruns}.",
        highlight=False,
    )
    console.print("\nThe plan: kind and microbatch, MHz, ms waited; [ ] = on the critical path")
    for line in (*plan_lines(result.timeline, console.width), "", *further_lines):
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def result_document(
    result: DemoResult, *, failed: str | None, unjudged: str | None
) -> dict[str, Any]:
    """Return the result as JSON-ready data."""
    return {
        "emulated": True,
        "succeeded": failed is None,
        "failed_condition": failed,
        "unjudged_time": unjudged,
        "plan_version": result.plan.version,
        "first_planned_step": result.plan.first_step,
        "measured": {phase.name: asdict(phase.measured) for phase in result.phases},
        "predicted": {
            phase.name: {
                "iteration_time_s": phase.predicted_time_s,
                "energy_j": phase.predicted_energy_j,
            }
            for phase in result.phases
        },
        "losses": list(result.losses),
    }
