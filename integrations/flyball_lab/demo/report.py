"""Printed output of the demo: the table of baseline and plan, the plan, and further reading."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from flyball_lab.demo.child_process import ChildProcess, DemoFailedError, Interruption
from flyball_lab.demo.run_folder import RunFolder, tail
from flyball_lab.demo.verdict import (
    Comparison,
    DemoResult,
    Measurement,
    Prediction,
    error_percent,
)
from flyball_wire.messages import PlanView


def result_table(comparison: Comparison) -> Table:
    """Baseline, plan and saving: measured and predicted side by side, all emulated."""
    baseline, plan = comparison.measured_baseline, comparison.measured_plan
    predicted_baseline = comparison.predicted_baseline
    predicted_plan = comparison.predicted_plan
    table = Table(title="One iteration, all 4 stages (emulated A100; nothing here is a real GPU)")
    table.add_column("")
    for quantity in ("time, s", "energy, J"):
        for origin in ("measured", "predicted"):
            table.add_column(f"{quantity}\n{origin}\n(emulated)", justify="right", no_wrap=True)
    table.add_column("steps", justify="right")
    for name, measured, predicted in (
        ("baseline", baseline, predicted_baseline),
        ("plan", plan, predicted_plan),
    ):
        table.add_row(
            name,
            _with_error(measured.iteration_time_s, predicted.iteration_time_s, digits=3),
            f"{predicted.iteration_time_s:.3f}",
            _with_error(measured.energy_j, predicted.energy_j, digits=0),
            f"{predicted.energy_j:.0f}",
            str(measured.num_steps),
        )
    table.add_section()
    table.add_row(
        "saved",
        _saving(baseline.iteration_time_s, plan.iteration_time_s),
        _saving(predicted_baseline.iteration_time_s, predicted_plan.iteration_time_s),
        _saving(baseline.energy_j, plan.energy_j),
        _saving(predicted_baseline.energy_j, predicted_plan.energy_j),
        "",
    )
    return table


def print_report(
    console: Console,
    comparison: Comparison,
    losses: Sequence[float],
    *,
    plan_lines: Sequence[str],
    where_to_look: Sequence[str],
) -> None:
    """The whole report."""
    num_overruns = comparison.measured_baseline.num_overruns + comparison.measured_plan.num_overruns
    console.print(result_table(comparison))
    console.print(
        "Baseline: every instruction at its highest clock. Median time and mean energy of the"
        " steps given; the first step of each phase is its warm-up and left out."
        f" Loss {losses[0]:.2f} -> {losses[-1]:.2f} in {len(losses)} steps."
        f" Instructions that outlasted their emulated time (overruns): {num_overruns}.",
        highlight=False,
    )
    console.print("\nThe plan: kind and microbatch, MHz, ms waited; [ ] = on the critical path")
    for line in plan_lines:
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    console.print()
    for line in where_to_look:
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def result_document(result: DemoResult, *, failed: str | None) -> dict[str, Any]:
    """The result as JSON-ready data, for `--json`; null where a phase was not measured."""
    comparison = result.comparison
    return {
        "emulated": True,
        "succeeded": failed is None,
        "failed_condition": failed,
        "plan_version": None if result.plan is None else result.plan.version,
        "first_planned_step": None if result.plan is None else result.plan.first_step,
        "measured": {
            "baseline": _document(result.measured_baseline),
            "plan": _document(result.measured_plan),
        },
        "predicted": {
            "baseline": comparison and _document(comparison.predicted_baseline),
            "plan": comparison and _document(comparison.predicted_plan),
        },
        "losses": list(result.losses),
    }


def _document(figures: Measurement | Prediction | None) -> dict[str, Any] | None:
    return None if figures is None else dict(vars(figures))


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
    """One line a stage. The plan and its profile stay in the folder as files.

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
