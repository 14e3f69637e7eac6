"""`flyball frontier`: the whole time-energy frontier of a pipeline, offline."""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict
from pathlib import Path

from flyball_pipeline.errors import PipelineError
from flyball_profiles.clock_transitions import ClockTransitions
from flyball_server.cli import pipeline_arguments
from flyball_server.cli.plots.plot_file import PLOT_SUFFIXES, check_plot_path, write_frontier_plot
from flyball_server.cli.progress_line import ProgressLine
from flyball_server.planning import planner
from flyball_server.planning.documents.plan_text import lateness, reserve_lines
from flyball_server.planning.frontier_curve import DEFAULT_NUM_POINTS, make_frontier
from flyball_server.planning.planner import PlanRequest
from flyball_wire.command.command import Command
from flyball_wire.read_models import Frontier

NUM_TABLE_ROWS = 20
NUM_COMPARED_ROWS = 6


def _configure(parser: argparse.ArgumentParser) -> None:
    pipeline_arguments.add_pipeline_arguments(parser, is_frontier=True)
    output = parser.add_argument_group("output")
    output.add_argument(
        "--points",
        metavar="N",
        type=int,
        default=DEFAULT_NUM_POINTS,
        help=f"number of plans (default: {DEFAULT_NUM_POINTS})",
    )
    output.add_argument(
        "--plot", metavar="FILE", type=Path, help=f"draw the frontier: {', '.join(PLOT_SUFFIXES)}"
    )
    output.add_argument("--json", action="store_true", help="print the points as JSON only")


def _run(arguments: argparse.Namespace) -> int:
    if arguments.plot:
        check_plot_path(arguments.plot)
    with ProgressLine("reading the profile") as progress:
        curve, solve_s = _solved(arguments, progress)
    if arguments.plot:
        write_frontier_plot(curve, arguments.plot)
    if arguments.json:
        print(json.dumps({**asdict(curve), "solve_s": solve_s}))
    else:
        print(_text(curve))
    return 0


def _solved(arguments: argparse.Namespace, progress: ProgressLine) -> tuple[Frontier, float]:
    """Return the frontier and the solving time in s."""

    def report(num_plans: int) -> None:
        progress.show(f"planned {num_plans}, about {arguments.points} wanted")

    try:
        request, _ = pipeline_arguments.request_of(arguments)
        progress.show("solving the bounds")
        began_s = time.perf_counter()
        if isinstance(request, PlanRequest):
            request = planner.with_named_schedule(request)
        curve = make_frontier(request, arguments.points, report)
    except PipelineError as error:
        raise pipeline_arguments.refused(error, arguments) from None
    return curve, time.perf_counter() - began_s


def _text(curve: Frontier) -> str:
    """Return a table of at most NUM_TABLE_ROWS points, and the plans for comparison."""
    baseline = curve.baseline
    lines = [
        f"predicted, one iteration, {lateness(curve.transitions)}; saving against the baseline,"
        " bound at one waiting power",
        *_of_late_changes(curve.transitions),
        *_of_reserve(curve),
        "",
        "              time, s       energy, J   saving, %   gap to the bound, %",
    ]

    def line(name: str, time_s: float, energy_j: float, gap: str = "") -> str:
        saving = round(100 * (1 - energy_j / baseline.energy_j), 2) + 0.0  # no -0.00
        return f"{name:<10}{time_s:11.4f}  {energy_j:14.2f}  {saving:10.2f}  {gap}"

    step = max(1, -(-len(curve.points) // NUM_TABLE_ROWS))
    shown = [*curve.points[:-1:step], curve.points[-1]]
    lines += [
        line("frontier", point.iteration_time_s, point.energy_j, f"{point.gap_percent:.2f}")
        for point in shown
    ]
    if len(shown) < len(curve.points):
        lines.append(f"({len(shown)} of {len(curve.points)} points shown; --json has all)")
    lines.append("")
    lines.append(line("baseline", baseline.iteration_time_s, baseline.energy_j))
    for plan in curve.envpipe:
        lines.append(line("EnvPipe", plan.iteration_time_s, plan.energy_j, plan.name))
    for plans, how in (
        (curve.constant, "one clock per stage"),
        (curve.global_clock, "one clock for all stages"),
    ):
        lines.extend(
            line(plan.name, plan.iteration_time_s, plan.energy_j, how)
            for plan in plans[:: max(1, -(-len(plans) // NUM_COMPARED_ROWS))]
        )
    return "\n".join(lines)


def _of_late_changes(transitions: ClockTransitions | None) -> list[str]:
    if transitions is None:
        return []
    return [
        "times and energies include the delays; only the fastest point's clocks are chosen for them"
    ]


def _of_reserve(curve: Frontier) -> list[str]:
    lines = reserve_lines(curve.reserve)
    if curve.reserve.share:
        share = f"{100 * curve.reserve.share:g} %"
        lines.append(f"bounds are on plans that keep {share} in reserve and are no faster")
    return lines


COMMAND = Command(configure=_configure, run=_run)
