"""Printed output of the demo: the table of baseline and plan, the plan, and further reading."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table

from flyball_lab.demo.child_process import ChildProcess, DemoFailedError, Interruption
from flyball_lab.demo.run_folder import RunFolder, tail
from flyball_lab.demo.verdict import DemoResult, Phase, error_percent
from flyball_wire.messages import PlanView


def result_table(phases: Sequence[Phase]) -> Table:
    """Baseline, plan and saving: measured and predicted side by side, all emulated."""
    table = Table(title="One iteration, all 4 stages (emulated A100; nothing here is a real GPU)")
    table.add_column("")
    for quantity in ("time, s", "energy, J"):
        for origin in ("measured", "predicted"):
            table.add_column(f"{quantity}\n{origin}\n(emulated)", justify="right", no_wrap=True)
    table.add_column("steps", justify="right")
    for name, measured, predicted in phases:
        table.add_row(
            name,
            _with_error(measured.iteration_time_s, predicted.iteration_time_s, digits=3),
            f"{predicted.iteration_time_s:.3f}",
            _with_error(measured.energy_j, predicted.energy_j, digits=0),
            f"{predicted.energy_j:.0f}",
            str(measured.num_steps),
        )
    table.add_section()
    (_, *baseline), (_, *plan) = phases
    savings = [
        _saving(getattr(before, figure), getattr(after, figure))
        for figure in ("iteration_time_s", "energy_j")
        for before, after in zip(baseline, plan, strict=True)
    ]
    table.add_row("saved", *savings, "")
    return table


def print_report(
    console: Console,
    phases: Sequence[Phase],
    losses: Sequence[float],
    *,
    plan_lines: Sequence[str],
    further_lines: Sequence[str],
) -> None:
    """Print table, plan and further lines."""
    num_overruns = sum(phase.measured.num_overruns for phase in phases)
    console.print(result_table(phases))
    console.print(
        "Baseline: every instruction at its highest clock. Median time and mean energy of the"
        " steps given; the first step of each phase is its warm-up and left out."
        f" Loss {losses[0]:.2f} -> {losses[-1]:.2f} in {len(losses)} steps."
        f" Instructions that outlasted their emulated time (overruns): {num_overruns}.",
        highlight=False,
    )
    console.print("\nThe plan: kind and microbatch, MHz, ms waited; [ ] = on the critical path")
    for line in (*plan_lines, "", *further_lines):
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def result_document(result: DemoResult, *, failed: str | None) -> dict[str, Any]:
    """Return the result as JSON-ready data; null where a phase was not measured."""
    plan = result.plan
    measured = {"baseline": result.measured_baseline, "plan": result.measured_plan}
    predicted = {phase.name: phase.predicted._asdict() for phase in result.phases or ()}
    return {
        "emulated": True,
        "succeeded": failed is None,
        "failed_condition": failed,
        "plan_version": plan and plan.version,
        "first_planned_step": plan and plan.first_step,
        "measured": {name: figures and asdict(figures) for name, figures in measured.items()},
        "predicted": {name: predicted.get(name) for name in measured},
        "losses": list(result.losses),
    }


def _with_error(measured: float, predicted: float, *, digits: int) -> str:
    return f"{measured:.{digits}f} ({error_percent(measured, predicted):+.1f} %)"


def _saving(baseline: float, plan: float) -> str:
    # Adding 0.0 turns a rounded -0.0 into 0.0.
    return f"{round(-error_percent(plan, baseline), 1) + 0.0:.1f} %"


_TIMEOUT_S = 60.0


def terminal_plan(
    plan: PlanView,
    folder: RunFolder,
    environment: Mapping[str, str],
    interruption: Interruption,
) -> list[str]:
    """Return one line a stage; the plan stays in the folder as a file.

    Raises:
        DemoFailedError: `flyball simulate` failed.
        KeyboardInterrupt: a signal came meanwhile.
    """
    folder.plan_json.write_text(json.dumps(plan.plan))
    log = folder.path / "simulate.log"
    arguments = ["-m", "flyball_client", "simulate"]
    with ChildProcess(
        [*arguments, str(folder.profile_csv), str(folder.plan_json)],
        environment=environment,
        log=log,
    ) as simulate:
        status = simulate.wait(interruption, timeout_s=_TIMEOUT_S)
    if status != 0:
        raise DemoFailedError("flyball simulate failed on the demo's plan", log_tail=tail(log))
    return [line for line in log.read_text().splitlines() if line.startswith("Stage ")]
