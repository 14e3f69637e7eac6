"""Every schedule at 16 stages x 128 microbatches: how long generating and planning it takes.

Run `python benchmarks/schedules.py [--json]`; README.md beside this file says how to read it.
Ratios are to 1F1B in the same run.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import asdict, dataclass

from benchmark_report import Report, at_most, run_benchmark, show_progress, table
from flyball_profiles.examples import load_example_profile
from flyball_server.planning.model.pipeline_model import build_model
from flyball_server.planning.planner import PlanRequest, make_plan
from flyball_server.planning.schedules import SCHEDULES, make_schedule
from flyball_server.planning.schedules._base import ScheduleContext
from flyball_server.planning.schedules.explicit import EXPLICIT
from flyball_wire.plan_options import PlanOptions
from made_profiles import ASSUMPTION, derive_parts, tile_profile
from measured_process import BenchmarkError

NUM_STAGES, NUM_MICROBATCHES, NUM_CHUNKS, SEED = 16, 128, 2, 1
BLOCKING_POWER_W = 83.64
MAX_GAP_PERCENT = 1.0
REFERENCE = "1f1b"


@dataclass(frozen=True, kw_only=True)
class ScheduleFigure:
    """One schedule.

    Attributes:
        generate_s: the order alone, s.
        model_s: its dependency DAG joined with the profile, s.
        plan_s: everything, from the request to the plan, s.
        baseline_time_s, time_s: predicted iteration time at the highest clocks and of the plan.
        saving_percent: predicted, against the same schedule's baseline.
    """

    schedule: str
    num_instructions: int
    generate_s: float
    model_s: float
    plan_s: float
    baseline_time_s: float
    time_s: float
    saving_percent: float
    gap_percent: float


def measure(_: argparse.Namespace) -> Report:
    """Generate and plan each schedule once."""
    names = [name for name in SCHEDULES if name != EXPLICIT]
    figures = [_figure(name) for name in names]
    reference = next(figure for figure in figures if figure.schedule == REFERENCE)
    rows = [
        (
            figure.schedule,
            str(figure.num_instructions),
            f"{1e3 * figure.generate_s:.0f}",
            f"{1e3 * figure.model_s:.0f}",
            f"{figure.plan_s:.1f}",
            f"{figure.plan_s / reference.plan_s:.1f}",
            f"{figure.baseline_time_s:.3f}",
            f"{figure.saving_percent:.2f}",
            f"{figure.gap_percent:.3f}",
        )
        for figure in figures
    ]
    header = (
        *("schedule", "instructions", "order, ms", "DAG, ms", "plan, s", "to 1f1b's"),
        *("baseline, s", "saving, %", "gap, %"),
    )
    return Report(
        figures={
            "num_stages": NUM_STAGES,
            "num_microbatches": NUM_MICROBATCHES,
            "num_chunks": NUM_CHUNKS,
            "profile": ASSUMPTION,
            "schedules": [asdict(figure) for figure in figures],
        },
        text=f"{NUM_STAGES} stages x {NUM_MICROBATCHES} microbatches, policy frontier, predicted"
        f"\n{ASSUMPTION}\n\n{table(header, rows)}",
        limits=tuple(
            at_most(f"gap of {figure.schedule}, %", figure.gap_percent, MAX_GAP_PERCENT)
            for figure in figures
        ),
    )


def _figure(name: str) -> ScheduleFigure:
    show_progress(name)
    profile = derive_parts(tile_profile(load_example_profile(), NUM_STAGES, SEED), NUM_CHUNKS)
    began_s = time.perf_counter()
    schedule = make_schedule(
        name, ScheduleContext(profile=profile, num_microbatches=NUM_MICROBATCHES)
    )
    generated_s = time.perf_counter()
    build_model(profile, schedule, (BLOCKING_POWER_W,))
    built_s = time.perf_counter()
    plan = make_plan(
        PlanRequest(
            profile=profile,
            num_microbatches=NUM_MICROBATCHES,
            options=PlanOptions(blocking_power_w=(BLOCKING_POWER_W,), schedule=name),
        )
    ).plan
    gap_percent = plan.gap_percent
    if gap_percent is None:  # policy frontier always knows it
        raise BenchmarkError(f"{name}: no bound")
    return ScheduleFigure(
        schedule=name,
        num_instructions=sum(len(stage) for stage in plan.stages),
        generate_s=generated_s - began_s,
        model_s=built_s - generated_s,
        plan_s=time.perf_counter() - built_s,
        baseline_time_s=plan.baseline_iteration_time_s,
        time_s=plan.iteration_time_s,
        saving_percent=plan.saving_percent,
        gap_percent=gap_percent,
    )


if __name__ == "__main__":
    sys.exit(run_benchmark(argparse.ArgumentParser(description=__doc__), measure))
