"""`flyball frontier`: the whole time-energy frontier of a pipeline, offline."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

from flyball_client.command import Command, CommandError
from flyball_server import offline_inputs, pipeline_arguments
from flyball_server.frontier_plot import PLOT_SUFFIXES, write_frontier_plot
from flyball_server.planning.errors import PlanningError
from flyball_server.planning.frontier_curve import (
    DEFAULT_NUM_POINTS,
    FrontierCurve,
    frontier_document,
    make_frontier,
)
from flyball_server.planning.warm_up import warm_up

PROGRESS_AFTER_S = 1.0
NUM_TABLE_ROWS = 20


def _configure(parser: argparse.ArgumentParser) -> None:
    pipeline_arguments.add_pipeline_arguments(parser)
    parser.add_argument(
        "--points",
        metavar="N",
        type=int,
        default=DEFAULT_NUM_POINTS,
        help=f"how many plans (default {DEFAULT_NUM_POINTS})",
    )
    parser.add_argument(
        "--plot", metavar="FILE", type=Path, help=f"draw it: {', '.join(PLOT_SUFFIXES)}"
    )
    parser.add_argument("--json", action="store_true", help="print the points as JSON, alone")


def _run(arguments: argparse.Namespace) -> int:
    if arguments.plot and arguments.plot.suffix not in PLOT_SUFFIXES:
        raise CommandError(f"--plot: {arguments.plot} must end in {' or '.join(PLOT_SUFFIXES)}")
    profile = offline_inputs.read_profile(arguments.profile)
    warm_up()  # loading compiled code is starting the program, not solving
    progress = _Progress(arguments.points)
    began_s = time.perf_counter()
    try:
        request = pipeline_arguments.pipeline_request(arguments, profile)
        curve = make_frontier(request, arguments.points, progress.show)
    except PlanningError as error:
        raise pipeline_arguments.refused(error) from None
    finally:
        progress.clear()
    solve_s = time.perf_counter() - began_s
    if arguments.plot:
        write_frontier_plot(curve, arguments.plot)
    print(json.dumps(frontier_document(curve, solve_s=solve_s)) if arguments.json else _text(curve))
    return 0


class _Progress:
    """A line on stderr that counts plans, where someone looks and it takes over a second."""

    def __init__(self, num_points: int) -> None:
        self._num_points = num_points
        self._shown_s = time.monotonic() + PROGRESS_AFTER_S - 0.1
        self._is_shown = False

    def show(self, num_plans: int) -> None:
        now_s = time.monotonic()
        if now_s - self._shown_s < 0.1 or not sys.stderr.isatty():
            return
        self._shown_s, self._is_shown = now_s, True
        print(f"\rplanned {num_plans}, about {self._num_points} wanted", end="", file=sys.stderr)

    def clear(self) -> None:
        if self._is_shown:
            print("\r" + " " * 60 + "\r", end="", file=sys.stderr)


def _text(curve: FrontierCurve) -> str:
    """A table of at most NUM_TABLE_ROWS of the points, and the plans to compare them with."""
    baseline = curve.baseline
    lines = [
        "predicted, one iteration; saving against the baseline",
        "",
        "              time, s       energy, J   saving, %   gap to the bound, %",
    ]

    def line(name: str, time_s: float, energy_j: float, gap: str = "") -> str:
        saving = 100 * (1 - energy_j / baseline.energy_j)
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
    return "\n".join(lines)


COMMAND = Command(
    summary="the whole time-energy frontier of a pipeline, offline", configure=_configure, run=_run
)
