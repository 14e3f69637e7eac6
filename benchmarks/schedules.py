"""Every schedule at 16 stages x 128 microbatches: how long generating and planning it takes.

Ratios are to 1F1B in the same run.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass

from benchmark_report import Report, at_most, figures_of, run_benchmark, show_progress, table_of
from flyball_pipeline.schedules.explicit import EXPLICIT
from flyball_pipeline.schedules.table import SCHEDULES
from flyball_pipeline.schedules.whole_step import STEP
from flyball_profiles.examples import load_example_profile
from flyball_server.planning.model.pipeline_model import build_model
from flyball_server.planning.planner import PlanRequest, make_plan
from flyball_server.planning.scheduling import ScheduleContext, schedule_for
from flyball_wire.plan_options import PlanOptions
from gpt3_cells import A100
from made_profiles import ASSUMPTION, derive_parts, tile_profile
from measured_process import BenchmarkError

NUM_STAGES, NUM_MICROBATCHES, NUM_CHUNKS, SEED = 16, 128, 2, 1
MAX_GAP_PERCENT = 1.0
REFERENCE = "1f1b"


@dataclass(frozen=True, kw_only=True)
class ScheduleFigure:
    """One schedule.

    Attributes:
        order_ms: generating the order alone, ms.
        dag_ms: its dependency DAG joined with the profile, ms.
        plan_s: everything, from the request to the plan, s.
        baseline_time_s, time_s: predicted iteration time at the highest clocks and of the plan.
        saving_percent: predicted, against the same schedule's baseline.
    """

    schedule: str
    num_instructions: int
    order_ms: float
    dag_ms: float
    plan_s: float
    baseline_time_s: float
    time_s: float
    saving_percent: float
    gap_percent: float


def measure(_: argparse.Namespace) -> Report:
    """Generate and plan each schedule once."""
    figures = [_figure(name) for name in SCHEDULES if name not in {EXPLICIT, STEP}]
    reference_s = next(figure.plan_s for figure in figures if figure.schedule == REFERENCE)
    rows = [{**figures_of(figure), "ratio": figure.plan_s / reference_s} for figure in figures]
    columns = {
        "schedule": "{schedule}",
        "instructions": "{num_instructions}",
        "order, ms": "{order_ms:.0f}",
        "DAG, ms": "{dag_ms:.0f}",
        "plan, s": "{plan_s:.1f}",
        "to 1f1b's": "{ratio:.1f}",
        "baseline, s": "{baseline_time_s:.3f}",
        "saving, %": "{saving_percent:.2f}",
        "gap, %": "{gap_percent:.3f}",
    }
    return Report(
        figures={
            "num_stages": NUM_STAGES,
            "num_microbatches": NUM_MICROBATCHES,
            "num_chunks": NUM_CHUNKS,
            "profile": ASSUMPTION,
            "schedules": figures,
        },
        text=f"{NUM_STAGES} stages x {NUM_MICROBATCHES} microbatches, policy frontier, predicted"
        f"\n{ASSUMPTION}\n\n{table_of(rows, columns)}",
        limits=[
            at_most(f"gap of {figure.schedule}, %", figure.gap_percent, MAX_GAP_PERCENT)
            for figure in figures
        ],
    )


def _figure(name: str) -> ScheduleFigure:
    show_progress(name)
    profile = derive_parts(tile_profile(load_example_profile(), NUM_STAGES, SEED), NUM_CHUNKS)
    began_s = time.perf_counter()
    schedule = schedule_for(
        name, ScheduleContext(profile=profile, num_microbatches=NUM_MICROBATCHES)
    )
    generated_s = time.perf_counter()
    build_model(profile, schedule, (A100.blocking_power_w,))
    built_s = time.perf_counter()
    plan = make_plan(
        PlanRequest(
            profile=profile,
            num_microbatches=NUM_MICROBATCHES,
            options=PlanOptions(blocking_power_w=(A100.blocking_power_w,), schedule=name),
        )
    ).plan
    gap_percent = plan.predicted.gap_percent
    if gap_percent is None:  # policy frontier always knows it
        raise BenchmarkError(f"{name}: no bound")
    return ScheduleFigure(
        schedule=name,
        num_instructions=sum(len(stage) for stage in plan.stages),
        order_ms=1e3 * (generated_s - began_s),
        dag_ms=1e3 * (built_s - generated_s),
        plan_s=time.perf_counter() - built_s,
        baseline_time_s=plan.predicted.baseline_iteration_time_s,
        time_s=plan.iteration_time_s,
        saving_percent=plan.predicted.saving_percent,
        gap_percent=gap_percent,
    )


if __name__ == "__main__":
    run_benchmark(argparse.ArgumentParser(description=__doc__), measure)
