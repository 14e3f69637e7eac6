"""Time of a whole frontier beside lowtime 0.3.0, and the quality of both.

lowtime, the public solver for pipeline frontiers, is installed from PyPI into an environment of its
own; its plans are judged by this project's model: measured points, and the energy of the whole
iteration.
"""

from __future__ import annotations

import argparse
import bisect
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmark_report import Report, at_least, at_most, run_benchmark, show_progress, table_of
from flyball_pipeline.paths import earliest_finish_s
from flyball_profiles.stage_profile import OperatingPoint
from flyball_profiles.stage_profile_csv import read_stage_profile
from flyball_server.planning.model.pipeline_model import Assignment, PipelineModel
from flyball_server.planning.model.simulator import iteration_energy_j
from flyball_server.planning.planner import PlanRequest, model_of_request
from flyball_wire.plan_options import PlanOptions
from gpt3_cells import A100, add_profiles_argument
from measured_process import BenchmarkError, FlyballRun, run_flyball, run_script
from peer_environments import peer_python

REQUIREMENT = "lowtime==0.3.0"
SMALL, LARGE = 12, 96
NUM_POINTS, NUM_RUNS, GIVE_UP_S = 100, 5, 120.0
UNIT_TIME_S, FULL_RUN_BOUND_S = 0.001, 600.0
# Beyond lowtime's bound, for starting, fitting and the iteration under way.
GRACE_S = 240.0
MIN_TIMES_FASTER = 100.0


@dataclass(frozen=True, kw_only=True)
class Speed:
    """A solver at one size.

    Attributes:
        solve_s: from the profile to the last plan, s; lowtime's is its fit and its iterations.
        iterations_s: lowtime's iterations alone, s.
        process_s: the whole process, s.
        done_percent: of the way from the slowest to the fastest iteration time, %.
    """

    solver: str
    num_microbatches: int
    num_plans: int
    solve_s: float
    iterations_s: float | None = None
    process_s: float
    done_percent: float = 100.0


@dataclass(frozen=True, kw_only=True)
class Quality:
    """The fastest plans at `SMALL` microbatches, on the measured points, baseline's deadline.

    Attributes:
        flyball_saving_percent: ours, effort normal, %.
        lowtime_saving_percent: lowtime's, clocks not slower than planned, %; None: no plan of
            it is as fast.
        own_saving_percent: likewise with the clocks that lowtime itself assigns, %.
        last_saving_percent, last_slowdown_percent: lowtime's last plan with its own clocks,
            whatever its time, against the baseline, %.
        num_plans: lowtime's, of either rounding, in the span of our frontier.
        num_better: of these, plans with less energy than our plan that is next faster.
        num_below_bound: of these, plans below the bound that our point next slower has; must be
            none.
    """

    flyball_saving_percent: float
    lowtime_saving_percent: float | None
    own_saving_percent: float | None
    last_saving_percent: float
    last_slowdown_percent: float
    num_plans: int
    num_better: int
    num_below_bound: int


def measure(arguments: argparse.Namespace) -> Report:
    """Both solvers in the same run."""
    folder: Path = arguments.profiles
    model = _model(folder, SMALL)
    frontier, small = _frontier(folder, SMALL)
    _, large = _frontier(folder, LARGE)
    show_progress(f"lowtime, {SMALL} microbatches, to its end")
    peer, full = _lowtime(model, SMALL, FULL_RUN_BOUND_S)
    if not peer["is_finished"]:
        raise BenchmarkError(f"lowtime had not finished {SMALL} microbatches in its bound")
    show_progress(f"lowtime, {LARGE} microbatches, at most {arguments.lowtime_bound_s:g} s")
    _, bounded = _lowtime(_model(folder, LARGE), LARGE, arguments.lowtime_bound_s)
    quality = _quality(folder, model, peer["plans"], frontier)
    at_small, at_large = _times_faster(small, full), _times_faster(large, full)
    lowtimes = max(quality.lowtime_saving_percent or 0.0, quality.own_saving_percent or 0.0)
    speeds = [small, large, full, bounded]
    faster = "times faster than lowtime's full run at"
    return Report(
        figures={
            "speeds": speeds,
            "times_faster": {"small": at_small, "large_against_small": at_large},
            "quality": quality,
        },
        text=_text(speeds, at_small, at_large, quality),
        limits=[
            at_least(f"plans at {SMALL} microbatches", small.num_plans, NUM_POINTS),
            at_least(f"plans at {LARGE} microbatches", large.num_plans, NUM_POINTS),
            at_least(f"{SMALL}: {faster} {SMALL}", at_small["full_run"], MIN_TIMES_FASTER),
            at_least(f"{LARGE}: {faster} {SMALL}", at_large["full_run"], 1.0),
            at_least(f"saving at {SMALL} (lowtime), %", quality.flyball_saving_percent, lowtimes),
            at_most("lowtime plans below our bound", quality.num_below_bound, 0),
        ],
    )


def _times_faster(ours: Speed, lowtime: Speed) -> dict[str, float]:
    """Our planning beside lowtime's full run, beside its iterations alone; whole processes."""
    return {
        "full_run": lowtime.solve_s / ours.solve_s,
        "iterations": (lowtime.iterations_s or 0.0) / ours.solve_s,
        "process": lowtime.process_s / ours.process_s,
    }


def _model(folder: Path, num_microbatches: int) -> PipelineModel:
    return model_of_request(
        PlanRequest(
            profile=read_stage_profile(A100.profile(folder)),
            num_microbatches=num_microbatches,
            options=PlanOptions(blocking_power_w=(A100.blocking_power_w,)),
        )
    )


def _frontier(folder: Path, num_microbatches: int) -> tuple[FlyballRun, Speed]:
    """The median of several runs; one before them, that they find all compiled, is not counted."""
    pipeline = A100.pipeline_arguments(folder, num_microbatches)
    runs: list[FlyballRun] = []
    for run in range(NUM_RUNS + 1):
        show_progress(f"flyball frontier, {num_microbatches} microbatches, run {run}")
        arguments = ["frontier", *pipeline, "--points", str(NUM_POINTS)]
        runs.append(run_flyball(arguments, give_up_s=GIVE_UP_S))
    counted = runs[1:]
    return counted[-1], Speed(
        solver="flyball frontier",
        num_microbatches=num_microbatches,
        num_plans=min(len(run.document["points"]) for run in counted),
        solve_s=statistics.median(run.solve_s for run in counted),
        process_s=statistics.median(run.process.process_s for run in counted),
    )


# ---------------------------------------------------------------------- lowtime

LowtimePlan = dict[str, Any]
"""Durations in units of UNIT_TIME_S and lowtime's clocks, by node; see lowtime_driver.py."""


def _lowtime(
    model: PipelineModel, num_microbatches: int, bound_s: float
) -> tuple[dict[str, Any], Speed]:
    """Solve the model with lowtime, which is told to stop after `bound_s`."""
    found, process = run_script(
        "lowtime_driver.py",
        problem=_problem(model, bound_s),
        give_up_s=bound_s + GRACE_S,
        python=peer_python(
            "lowtime-0.3.0", REQUIREMENT, check="import lowtime.cost_model, lowtime.solver"
        ),
    )
    # The iteration times with every instruction at its shortest and at its longest, in units.
    shortest, longest = (
        round(max(earliest_finish_s(model.dag, durations))) for durations in found["unit_bounds"]
    )
    done = longest - found["plans"][-1]["time_units"] if found["plans"] else 0
    return found, Speed(
        solver="lowtime",
        num_microbatches=num_microbatches,
        num_plans=len(found["plans"]),
        solve_s=found["fit_s"] + found["run_s"],
        iterations_s=found["run_s"],
        process_s=process.process_s,
        done_percent=100.0 if found["is_finished"] else 100 * done / (longest - shortest),
    )


def _problem(model: PipelineModel, bound_s: float) -> dict[str, Any]:
    """Return what the driver is given: each distinct curve once, and our DAG."""
    curves: list[dict[str, Any]] = []
    index: dict[int, int] = {}
    for stage, points in zip(model.dag.stage, model.points, strict=True):
        if id(points) not in index:
            index[id(points)] = len(curves)
            curves.append(
                {
                    "points": [(p.time_s, p.energy_j, p.frequency_mhz) for p in points],
                    "blocking_power_w": model.stage_blocking_power_w[stage],
                }
            )
    return {
        "unit_time_s": UNIT_TIME_S,
        "bound_s": bound_s,
        "curves": curves,
        "curve_of_node": [index[id(points)] for points in model.points],
        "edges": [
            (before, node)
            for node in range(model.dag.num_nodes)
            for before in model.dag.predecessors(node)
        ],
    }


def _own_clocks(model: PipelineModel, plan: LowtimePlan) -> Assignment:
    """The clocks that lowtime assigns: up to a unit slower than planned, as it rounds time down."""
    return [
        next(choice for choice, point in enumerate(points) if point.frequency_mhz == mhz)
        for points, mhz in zip(model.points, plan["frequency_mhz"], strict=True)
    ]


def _not_slower_clocks(model: PipelineModel, plan: LowtimePlan) -> Assignment:
    """As Perseus says: the slowest efficient measured clock not slower than planned."""
    chosen: dict[tuple[int, int], int] = {}
    assignment: Assignment = []
    for points, units in zip(model.points, plan["duration_units"], strict=True):
        key = (id(points), units)
        if key not in chosen:
            chosen[key] = _slowest_within(points, units * UNIT_TIME_S)
        assignment.append(chosen[key])
    return assignment


def _slowest_within(points: tuple[OperatingPoint, ...], limit_s: float) -> int:
    """Of points that no other beats in time and energy, slower means less energy."""
    choices = range(len(points))
    within = [choice for choice in choices if points[choice].time_s <= limit_s]
    if not within:
        return min(choices, key=lambda choice: points[choice].time_s)
    return min(within, key=lambda choice: points[choice].energy_j)


def _quality(
    folder: Path, model: PipelineModel, plans: list[LowtimePlan], ours: FlyballRun
) -> Quality:
    pipeline = A100.pipeline_arguments(folder, SMALL)
    fastest = run_flyball(["plan", *pipeline, "--policy", "frontier"], give_up_s=GIVE_UP_S)
    baseline = fastest.document["baseline"]
    baseline_s, baseline_j = baseline["iteration_time_s"], baseline["energy_j"]

    def judged(
        rounding: Callable[[PipelineModel, LowtimePlan], Assignment],
    ) -> list[tuple[float, float]]:
        """Time in s and energy in J of every plan on the measured points."""
        found: list[tuple[float, float]] = []
        for plan in plans:
            assignment = rounding(model, plan)
            time_s = max(earliest_finish_s(model.dag, model.durations_s(assignment)))
            found.append((time_s, iteration_energy_j(model, assignment, time_s)))
        return found

    def best_saving_percent(judged: list[tuple[float, float]]) -> float | None:
        energies_j = [energy_j for time_s, energy_j in judged if time_s <= baseline_s]
        return 100 * (1 - min(energies_j) / baseline_j) if energies_j else None

    strict, own = judged(_not_slower_clocks), judged(_own_clocks)
    points = ours.document["points"]
    times_s = [point["iteration_time_s"] for point in points]
    num_plans = better = below = 0
    for time_s, energy_j in [*strict, *own]:
        if times_s[0] <= time_s <= times_s[-1]:
            num_plans += 1
            better += energy_j < points[bisect.bisect_right(times_s, time_s) - 1]["energy_j"]
            # The bound falls with time: at a later deadline it holds for this plan too.
            below += energy_j < points[bisect.bisect_left(times_s, time_s)]["lower_bound_j"]
    return Quality(
        flyball_saving_percent=fastest.document["saving_percent"],
        lowtime_saving_percent=best_saving_percent(strict),
        own_saving_percent=best_saving_percent(own),
        last_saving_percent=100 * (1 - own[-1][1] / baseline_j),
        last_slowdown_percent=100 * (own[-1][0] / baseline_s - 1),
        num_plans=num_plans,
        num_better=better,
        num_below_bound=below,
    )


def _text(
    speeds: list[Speed], at_small: dict[str, float], at_large: dict[str, float], quality: Quality
) -> str:
    columns = {
        f"{A100.name}, microbatches": "{solver}, {num_microbatches}",
        "plans": "{num_plans}",
        "solving, s": "{solve_s:.3f}",
        "whole process, s": "{process_s:.3f}",
        "how far, %": "{done_percent:.1f}",
    }
    faster = (
        "{full_run:.1f} than its full run, {iterations:.1f} than its iterations alone,"
        " {process:.1f} as whole processes"
    )
    savings = {
        "": "at {num_microbatches}, measured points",
        "flyball, %": "{flyball_saving_percent:.3f}",
        "lowtime, clocks not slower, %": "{lowtime_saving_percent:.3f}",
        "its own clocks, %": "{own_saving_percent:.3f}",
        "its last plan, %": "{last_saving_percent:.3f}",
        "at time, %": "{last_slowdown_percent:+.3f}",
        "plans within our span": "{num_plans}",
        "better than our next faster": "{num_better}",
        "below our bound": "{num_below_bound}",
    }
    row = {"num_microbatches": SMALL, **vars(quality)}
    return (
        f"gpt3-175b, 8 stages, 1F1B; flyball: median of {NUM_RUNS} runs; lowtime: unit"
        f" {UNIT_TIME_S:g} s, solving is its fit and its iterations\n\n{table_of(speeds, columns)}"
        f"\n\ntimes faster at {SMALL}: {faster.format_map(at_small)}\n"
        f"times faster at {LARGE} than lowtime at {SMALL}: {faster.format_map(at_large)}\n\n"
        f"saving of the fastest plan no slower than the baseline\n{table_of([row], savings)}"
    )


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__)
    add_profiles_argument(options)
    options.add_argument(
        "--lowtime-bound-s",
        metavar="S",
        type=float,
        default=60.0,
        help=f"after so long lowtime is stopped at {LARGE} microbatches (default 60)",
    )
    run_benchmark(options, measure)
