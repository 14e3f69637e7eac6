"""HiGHS and the interior point, in turn on the same pipelines: one deadline, and one after another.

Which of them solves a pipeline's relaxed problem is decided by its number of instructions
(`MAX_HIGHS_INSTRUCTIONS`); see docs/decisions/0004.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from benchmark_report import Report, at_least, run_benchmark, table_of
from flyball_profiles.examples import load_example_profile
from flyball_server.planning.frontier.curves import model_curves
from flyball_server.planning.frontier.event_network import build_network
from flyball_server.planning.frontier.highs_relaxation import HighsRelaxation
from flyball_server.planning.frontier.interior_point import InteriorPointRelaxation
from flyball_server.planning.frontier.relaxation import Relaxation
from flyball_server.planning.frontier.solver import DeadlineSolver
from flyball_server.planning.planner import PlanRequest, model_of_request
from flyball_wire.plan_options import PlanOptions

SHAPES = ((2, 4), (8, 12), (8, 48), (8, 96))
NUM_DEADLINES, NUM_RUNS = 20, 3
SOLVERS = (HighsRelaxation, InteriorPointRelaxation)


@dataclass(frozen=True, kw_only=True)
class Compared:
    """Times of the interior point over HiGHS's, medians: first deadline, and all one by one."""

    num_stages: int
    num_microbatches: int
    first: float
    sweep: float


def measure(_: argparse.Namespace) -> Report:
    """Solve each pipeline by both, in turn."""
    compared = [_compare(*shape) for shape in SHAPES]
    columns = {
        "stages x microbatches": "{num_stages} x {num_microbatches}",
        "one deadline": "{first:.1f}",
        f"{NUM_DEADLINES} deadlines": "{sweep:.1f}",
    }
    title = "time of the interior point over that of HiGHS\n"
    return Report(
        figures={"compared": compared},
        text=title + table_of(compared, columns),
        limits=[
            at_least(f"{each.num_stages} x {each.num_microbatches}, sweep", each.sweep, 1.0)
            for each in compared
        ],
    )


def _compare(num_stages: int, num_microbatches: int) -> Compared:
    request = PlanRequest(
        profile=load_example_profile().select_stages(tuple(range(num_stages))),
        num_microbatches=num_microbatches,
        options=PlanOptions(blocking_power_w=(70.0,)),
    )
    model = model_of_request(request)
    solver, network = DeadlineSolver(model), build_network(model, model_curves(model))
    fastest_s, slowest_s = solver.fastest_time_s * 1.0001, solver.slowest_time_s
    deadlines_s = np.linspace(fastest_s, slowest_s, NUM_DEADLINES).tolist()
    runs = [[_times_s(kind(network), deadlines_s) for kind in SOLVERS] for _ in range(NUM_RUNS)]
    highs_s, interior_s = np.median(np.array(runs), axis=0).tolist()
    return Compared(
        num_stages=num_stages,
        num_microbatches=num_microbatches,
        first=interior_s[0] / highs_s[0],
        sweep=interior_s[1] / highs_s[1],
    )


def _times_s(relaxation: Relaxation, deadlines_s: Sequence[float]) -> tuple[float, float]:
    """Return the time in s of the first solve, and of all."""
    began_s = time.perf_counter()
    relaxation.solve(deadlines_s[0])
    first_s = time.perf_counter() - began_s
    for deadline_s in deadlines_s[1:]:
        relaxation.solve(deadline_s)
    return first_s, time.perf_counter() - began_s


if __name__ == "__main__":
    run_benchmark(argparse.ArgumentParser(description=__doc__), measure)
