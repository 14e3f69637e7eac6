"""`flyball plan`: one plan from a stage profile, offline."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING

from flyball_server.cli import offline_inputs, pipeline_arguments
from flyball_server.cli.plots.clock_colors import (
    add_color_argument,
    color_system,
    pipeline_blocks,
    row_colors,
)
from flyball_server.cli.progress_line import ProgressLine
from flyball_server.planning import planner
from flyball_server.planning.documents.plan_document import data_parallel_document, plan_document
from flyball_server.planning.documents.plan_text import lateness, plan_rows
from flyball_server.planning.errors import PlanningError
from flyball_server.planning.frontier.targets import TARGET_FORMS
from flyball_server.planning.model.data_parallel import (
    DataParallelRequest,
    SolvedDataParallelPlan,
    make_data_parallel_plan,
    simulate_jointly,
)
from flyball_server.planning.model.simulator import simulate
from flyball_server.planning.plan import DataParallelPlan, FrequencyPlan, PlanPrediction
from flyball_server.planning.planner import SolvedPlan
from flyball_server.planning.schedule_choice import REFERENCE
from flyball_wire.closed_loop import ComparedPlan
from flyball_wire.command import Command
from flyball_wire.plan_options import DEFAULT_TARGET, Policy

if TYPE_CHECKING:
    from rich.color import ColorSystem


# A plan that saves less than this beyond one clock per stage is hardly worth its changes.
WORTH_POINTS = 0.5

_COMPARED: dict[str, str] = {
    Policy.CONSTANT: "one clock per stage",
    Policy.GLOBAL: "one clock for all stages",
}


def _configure(parser: argparse.ArgumentParser) -> None:
    pipeline_arguments.add_pipeline_arguments(parser)
    pipeline_arguments.add_policy_arguments(parser, Policy)
    parser.add_argument(
        "--target",
        default=DEFAULT_TARGET,
        help=f"{', '.join(TARGET_FORMS)} (default {DEFAULT_TARGET})".replace("%", "%%"),
    )
    parser.add_argument(
        "-o", "--output", metavar="PLAN.json", type=Path, help="write the plan here"
    )
    add_color_argument(parser)
    parser.add_argument("--json", action="store_true", help="print the plan as JSON, alone")


def _run(arguments: argparse.Namespace) -> int:
    system = color_system(arguments.color)
    with ProgressLine("reading the profile") as progress:
        document, text = _planned(arguments, progress, system)
    if arguments.output:
        offline_inputs.write_text(arguments.output, document + "\n")
    print(document if arguments.json else text)
    return 0


def _planned(
    arguments: argparse.Namespace, progress: ProgressLine, system: ColorSystem | None
) -> tuple[str, str]:
    """Return the plan as a document and, unless JSON is requested, as text."""
    try:
        request = pipeline_arguments.request_of(arguments)
        began_s = time.perf_counter()
        if isinstance(request, DataParallelRequest):
            pipelines = make_data_parallel_plan(request, progress.show)
            solve_s = time.perf_counter() - began_s
            document = data_parallel_document(pipelines.plan, solve_s=solve_s)
            text = "" if arguments.json else _data_parallel_text(pipelines, system)
        else:
            solved = planner.make_plan(request, progress.show)
            document = plan_document(solved.plan, solve_s=time.perf_counter() - began_s)
            text = "" if arguments.json else _text(solved, system)
    except PlanningError as error:
        raise pipeline_arguments.refused(error) from None
    return json.dumps(document), text


def _text(solved: SolvedPlan, system: ColorSystem | None) -> str:
    plan, model, assignment = solved.plan, solved.model, solved.assignment
    paint, legend = row_colors(system, [model], [assignment])
    rows = plan_rows(model, assignment, simulate(model, assignment), paint)
    summary = _summary(plan, f"{plan.num_stages} stages")
    return "\n".join([summary, *legend, *rows, *_considered_rows(plan)])


def _considered_rows(plan: FrequencyPlan) -> list[str]:
    """Return the orders considered by `auto`, with the chosen one marked."""
    if not plan.considered:
        return []
    rows = ["", "schedule            time, s     energy, J      bound, J   (predicted)"]
    for entry in plan.considered:
        mark = "*" if entry.schedule == plan.schedule else " "
        figures = [
            f"{value:{width}.{digits}f}" if value is not None else " " * (width - 1) + "-"
            for value, width, digits in (
                (entry.iteration_time_s, 9, 4),
                (entry.energy_j, 14, 2),
                (entry.lower_bound_j, 14, 2),
            )
        ]
        what = entry.why_not if entry.why_not else "".join(figures)
        rows.append(f"{mark} {entry.schedule:16s} {what}")
    reference = next((entry for entry in plan.considered if entry.schedule == REFERENCE), None)
    if plan.schedule != REFERENCE and reference and reference.energy_j:
        less_percent = 100 * (1 - plan.energy_j / reference.energy_j)
        rows.append(
            f"{plan.schedule} needs {less_percent:.2f} % less energy than {REFERENCE}'s plan"
        )
    return rows


def _data_parallel_text(solved: SolvedDataParallelPlan, system: ColorSystem | None) -> str:
    plan, models, assignments = solved.plan, solved.models, solved.assignments
    paint, legend = row_colors(system, models, assignments)
    simulation = simulate_jointly(models, assignments, solved.joint)
    blocks = pipeline_blocks(models, assignments, simulation, paint)
    shape = f"{len(plan.pipelines)} pipelines of {plan.num_stages} stages"
    return "\n".join([_summary(plan, shape), *legend, blocks])


def _summary(plan: FrequencyPlan | DataParallelPlan, shape: str) -> str:
    summary = (
        f"{plan.policy}, {plan.reconfigure}, {plan.schedule}: {shape},"
        f" {plan.num_microbatches} microbatches, target {plan.target}\n"
        "             time, s     energy, J   (predicted, one iteration,"
        f" {lateness(plan.transitions)})\n"
        f"baseline  {plan.baseline_iteration_time_s:10.4f}  {plan.baseline_energy_j:12.2f}\n"
    )
    for compared in plan.compared:
        summary += (
            f"{compared.name:10s}{compared.iteration_time_s:10.4f}  {compared.energy_j:12.2f}"
            f"   {_against_baseline(plan, compared)}: {_COMPARED.get(compared.name, '')}\n"
        )
    summary += (
        f"plan      {plan.iteration_time_s:10.4f}  {plan.energy_j:12.2f}"
        f"   {_against_baseline(plan, plan)}\n"
    )
    if plan.lower_bound_j is not None and plan.gap_percent is not None:
        kept = f" that keeps {100 * plan.reserve:g} % in reserve" if plan.reserve else ""
        gap_percent = round(plan.gap_percent, 2) + 0.0  # a solver's tolerance is no -0.00 %
        summary += (
            f"bound                 {plan.lower_bound_j:12.2f}"
            f"   no plan this fast{kept} needs less; gap {gap_percent:.2f} %\n"
        )
    return summary + _choice_without_delays(plan) + _worth_of_changes(plan)


def _choice_without_delays(plan: FrequencyPlan | DataParallelPlan) -> str:
    if plan.transitions is None or not plan.num_switches:
        return ""
    return (
        f"{plan.num_switches} clock changes an iteration; the clocks were chosen as if they changed"
        " at once, time and energy count the delays\n"
    )


def _against_baseline(plan: PlanPrediction, compared: PlanPrediction | ComparedPlan) -> str:
    saved = 100 * (1 - compared.energy_j / plan.baseline_energy_j)
    longer = 100 * (compared.iteration_time_s / plan.baseline_iteration_time_s - 1)
    # Sums in another order differ by rounding, which is no -0.00 %.
    return f"saves {round(saved, 2) + 0.0:.2f} %, {round(longer, 2) + 0.0:+.2f} % time"


def _worth_of_changes(plan: PlanPrediction) -> str:
    """Return a line where changing clocks saves little more than one clock per stage."""
    constant = next((one for one in plan.compared if one.name == Policy.CONSTANT), None)
    if constant is None:
        return ""
    points = 100 * (constant.energy_j - plan.energy_j) / plan.baseline_energy_j
    if points >= WORTH_POINTS:
        return ""
    return (
        f"Changing clocks saves only {max(0.0, points):.2f} points more than one clock per stage:"
        f" --policy {Policy.CONSTANT} is nearly as good.\n"
    )


COMMAND = Command(configure=_configure, run=_run)
