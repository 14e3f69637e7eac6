"""Our bound beside lowtime's frontier, on a profile that is exactly exponential.

There lowtime's fitted curves are the truth, and both solve the same problem: the bound, which
mixes clocks freely, and lowtime's cost must agree. What is left has two causes, so three cases
keep them apart: measured times on lowtime's own grid of units, where both solve the same problem
but for rounding errors, and times off its grid, in two units: there lowtime counts every duration
down to a whole unit, and our bound follows the chords between the points, not the curve.

Run `python benchmarks/frontier_agreement.py [--json]`; README.md beside this file says more.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass

from benchmark_report import Limit, Report, at_least, at_most, run_benchmark, show_progress, table
from flyball_profiles.stage_profile import InstructionKind, OperatingPoint, StageProfile
from flyball_server.planning.frontier.solver import DeadlineSolver
from flyball_server.planning.model.pipeline_model import PipelineModel
from flyball_server.planning.planner import PlanRequest, model_of_request
from flyball_wire.plan_options import PlanOptions
from lowtime_peer import LowtimeRun, run_lowtime
from measured_process import BenchmarkError

NUM_MICROBATCHES = 6
BLOCKING_POWER_W = 80.0
# Per stage, how long its instructions take beside those of stage 0.
STAGE_WEIGHTS = (1.0, 0.9, 1.05, 1.15)
# Shortest and longest forward and backward of stage 0, s.
TIME_SPANS_S = {InstructionKind.FORWARD: (0.040, 0.062), InstructionKind.BACKWARD: (0.080, 0.120)}
# Cost beyond waiting is AMPLITUDE_W * shortest * exp(-DECAY * (t / shortest - 1)) + constant.
AMPLITUDE_W, DECAY, CONSTANT_W = 250.0, 2.0, 150.0
TOP_CLOCK_MHZ = 1980
COARSE_UNIT_S, FINE_UNIT_S = 0.001, 0.00025
# Keeps a time that is a whole number of units from being rounded down to the unit before.
NUDGE_S = 1e-8
OFF_GRID_STEP_S = 0.00037
BOUND_S = 240.0
MAX_DIFFERENCE_PERCENT = 0.5
MIN_COMPARED = 20


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """One case.

    Attributes:
        unit_time_s: lowtime's unit, s.
        num_points: of stage 0's forward and backward, sampled from its curves.
        lowtime_s: its iterations, s.
        num_compared: iteration times compared, every one of lowtime's up to the least-energy
            time.
        lowest_percent: lowtime's energy above our bound, the least over these times, %.
        highest_percent: likewise the greatest, %.
    """

    name: str
    unit_time_s: float
    num_points: int
    lowtime_s: float
    num_compared: int
    lowest_percent: float
    highest_percent: float

    @property
    def largest_percent(self) -> float:
        """The largest difference, either way, %."""
        return max(abs(self.lowest_percent), abs(self.highest_percent))


def measure(arguments: argparse.Namespace) -> Report:
    """All three cases."""
    del arguments
    on_grid = _profile(COARSE_UNIT_S)
    off_grid = _profile(OFF_GRID_STEP_S)
    cases = [
        _case("on the grid", on_grid, COARSE_UNIT_S),
        _case("off the grid", off_grid, COARSE_UNIT_S),
        _case("off the grid", off_grid, FINE_UNIT_S),
    ]
    return Report(
        figures={
            "cases": [{**asdict(case), "largest_percent": case.largest_percent} for case in cases]
        },
        text=_text(cases),
        limits=tuple(limit for case in cases for limit in _limits(case)),
    )


def _limits(case: Agreement) -> Iterator[Limit]:
    name = f"{case.name}, unit {case.unit_time_s:g} s"
    yield at_least(f"{name}: iteration times compared", case.num_compared, MIN_COMPARED)
    yield at_most(f"{name}: largest difference, %", case.largest_percent, MAX_DIFFERENCE_PERCENT)


def _case(name: str, profile: StageProfile, unit_time_s: float) -> Agreement:
    show_progress(f"{name}, unit {unit_time_s:g} s")
    model = model_of_request(
        PlanRequest(
            profile=profile,
            num_microbatches=NUM_MICROBATCHES,
            options=PlanOptions(blocking_power_w=(BLOCKING_POWER_W,)),
        )
    )
    run = run_lowtime(model, unit_time_s=unit_time_s, bound_s=BOUND_S)
    if not run.is_finished:
        raise BenchmarkError(f"lowtime had not finished within {BOUND_S:g} s")
    above_percent = _above_bound_percent(model, run)
    return Agreement(
        name=name,
        unit_time_s=unit_time_s,
        num_points=sum(len(profile.points[0, kind]) for kind in TIME_SPANS_S),
        lowtime_s=run.run_s,
        num_compared=len(above_percent),
        lowest_percent=min(above_percent),
        highest_percent=max(above_percent),
    )


def _above_bound_percent(model: PipelineModel, run: LowtimeRun) -> list[float]:
    """Lowtime's energy above our bound at each of its times, by its own count of both."""
    solver = DeadlineSolver(model)
    least_energy_s = solver.least_energy_time_s()
    waiting_power_w = sum(model.stage_blocking_power_w)
    above: list[float] = []
    for plan in run.plans:
        time_s = plan.time_units * run.unit_time_s
        # Its own count of the times may be a nudge faster than the fastest plan is.
        deadline_s = time_s + 2 * NUDGE_S * model.dag.num_nodes
        if solver.fastest_time_s <= deadline_s <= least_energy_s:
            energy_j = plan.cost_j + waiting_power_w * time_s
            above.append(100 * (energy_j / solver.relax(deadline_s).lower_bound_j - 1))
    return above


def _profile(step_s: float) -> StageProfile:
    """Points every `step_s` along exact exponentials, in each (stage, kind)."""
    return StageProfile(
        points={
            (stage, kind): _points(low_s * weight, high_s * weight, step_s)
            for stage, weight in enumerate(STAGE_WEIGHTS)
            for kind, (low_s, high_s) in TIME_SPANS_S.items()
        },
        num_ranks_per_stage=(1,) * len(STAGE_WEIGHTS),
    )


def _points(low_s: float, high_s: float, step_s: float) -> tuple[OperatingPoint, ...]:
    """Time, and the energy that costs `AMPLITUDE_W` and so on beyond waiting for as long."""
    first, last = math.ceil(low_s / step_s), math.floor(high_s / step_s)
    shortest_s = first * step_s
    points: list[OperatingPoint] = []
    for number in range(first, last + 1):
        time_s = number * step_s + NUDGE_S
        falling = math.exp(-DECAY * (time_s / shortest_s - 1))
        cost_j = shortest_s * (AMPLITUDE_W * falling + CONSTANT_W)
        points.append(
            OperatingPoint(
                frequency_mhz=TOP_CLOCK_MHZ - (number - first),
                time_s=time_s,
                energy_j=cost_j + BLOCKING_POWER_W * time_s,
            )
        )
    return tuple(points)


def _text(cases: list[Agreement]) -> str:
    rows = table(
        [
            "times measured",
            "unit, s",
            "points",
            "lowtime, s",
            "compared",
            "lowest, %",
            "highest, %",
        ],
        [
            [
                case.name,
                f"{case.unit_time_s:g}",
                str(case.num_points),
                f"{case.lowtime_s:.1f}",
                str(case.num_compared),
                f"{case.lowest_percent:+.5f}",
                f"{case.highest_percent:+.5f}",
            ]
            for case in cases
        ],
    )
    return (
        f"{len(STAGE_WEIGHTS)} stages x {NUM_MICROBATCHES} microbatches, 1F1B, exactly"
        f" exponential; lowtime's energy above our bound at its own times\n\n{rows}\n\n"
        "on the grid the two problems are the same; off it lowtime counts every duration down to a"
        " whole unit,\nwhich moves its curves by up to a unit, and fits them to the points so moved"
    )


def main() -> int:
    """Print the figures; 0 where all are within their limits, else 1."""
    return run_benchmark(argparse.ArgumentParser(description=__doc__), measure)


if __name__ == "__main__":
    sys.exit(main())
