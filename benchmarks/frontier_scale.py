"""Growth of plan time, memory and gap from 8 stages x 12 microbatches to 64 x 256."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from benchmark_report import (
    Limit,
    Report,
    at_least,
    at_most,
    run_benchmark,
    show_progress,
    table_of,
)
from flyball_profiles.stage_profile_csv import read_stage_profile, write_stage_profile
from gpt3_cells import A40, A100, Gpu, add_profiles_argument
from made_profiles import tile_profile
from measured_process import BenchmarkError, FlyballRun, children_cpu_s, run_flyball

SIZES = ((8, 12), (8, 96), (16, 64), (32, 128), (64, 256))  # stages, microbatches
SEED = 20
NUM_POINTS = 50
PLAN_GIVE_UP_S, FRONTIER_GIVE_UP_S = 600.0, 1800.0
MAX_PLAN_S, MAX_MEMORY_MIB, MAX_GAP_PERCENT = 20.0, 4096, 1.0
MAX_FRONTIER_S = 180.0


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Cost of a command's process.

    Attributes:
        process_s: whole process, s.
        cpu_s: of it, what it had of a core; on a busy machine the figure to compare, s.
        solve_s: the planning alone, as the command reports it, s.
        peak_memory_bytes: of the process.
    """

    process_s: float
    cpu_s: float
    solve_s: float
    peak_memory_bytes: int

    @property
    def mib(self) -> float:
        """Its memory, MiB."""
        return self.peak_memory_bytes / 1024**2


@dataclass(frozen=True, kw_only=True)
class PlanFigure:
    """A plan at one size, policy frontier, target fastest.

    Attributes:
        saving_percent: of energy against the baseline, %.
        gap_percent: of the plan's energy above the bound, %.
    """

    gpu: str
    num_stages: int
    num_microbatches: int
    cost: Cost
    saving_percent: float
    gap_percent: float

    @property
    def size(self) -> str:
        """For people."""
        return f"{self.num_stages}x{self.num_microbatches}"

    @property
    def num_instructions(self) -> int:
        """A forward and a backward of every microbatch on every stage."""
        return 2 * self.num_stages * self.num_microbatches


@dataclass(frozen=True, kw_only=True)
class FrontierFigure:
    """A whole frontier at the largest size; the gap is of its plans' energies to their bounds."""

    gpu: str
    num_plans: int
    cost: Cost
    largest_gap_percent: float


def measure(arguments: argparse.Namespace) -> Report:
    """Every size on both GPUs; A100 is held to the limits."""
    plans: list[PlanFigure] = []
    frontiers: list[FrontierFigure] = []
    with tempfile.TemporaryDirectory() as tiled:
        for gpu in (A100, A40):
            tiled_gpu = replace(gpu, file_name=f"{gpu.table_name}.csv")
            for num_stages, num_microbatches in SIZES:
                _write_tiled(gpu, arguments.profiles, num_stages, Path(tiled))
                if not plans:  # one run that is not counted, that the others find all compiled
                    _plan(tiled_gpu, Path(tiled), num_stages, num_microbatches)
                plans.append(_plan(tiled_gpu, Path(tiled), num_stages, num_microbatches))
            # The file left in the folder is the largest size's.
            frontiers.append(_frontier(tiled_gpu, Path(tiled)))
    return Report(
        figures={"plans": plans, "frontiers": frontiers},
        text=_text(plans, frontiers),
        limits=list(_limits(plans, frontiers)),
    )


def _write_tiled(gpu: Gpu, folder: Path, num_stages: int, tiled: Path) -> None:
    profile = tile_profile(read_stage_profile(gpu.profile(folder)), num_stages, SEED)
    text = write_stage_profile(profile)
    (tiled / f"{gpu.table_name}.csv").write_text(text, encoding="utf-8")


def _plan(gpu: Gpu, tiled: Path, num_stages: int, num_microbatches: int) -> PlanFigure:
    show_progress(f"{gpu.name}, {num_stages} stages x {num_microbatches} microbatches")
    pipeline = gpu.pipeline_arguments(tiled, num_microbatches)
    run, cost = _run(["plan", *pipeline, "--policy", "frontier"], PLAN_GIVE_UP_S)
    if run.document["num_stages"] != num_stages:
        raise BenchmarkError(f"{gpu.file_name} has not {num_stages} stages")
    return PlanFigure(
        gpu=gpu.name,
        num_stages=num_stages,
        num_microbatches=num_microbatches,
        cost=cost,
        saving_percent=run.document["saving_percent"],
        gap_percent=run.document["gap_percent"],
    )


def _frontier(gpu: Gpu, tiled: Path) -> FrontierFigure:
    num_stages, num_microbatches = SIZES[-1]
    show_progress(f"{gpu.name}, {num_stages} x {num_microbatches}, the whole frontier")
    pipeline = gpu.pipeline_arguments(tiled, num_microbatches)
    run, cost = _run(["frontier", *pipeline, "--points", str(NUM_POINTS)], FRONTIER_GIVE_UP_S)
    points = run.document["points"]
    return FrontierFigure(
        gpu=gpu.name,
        num_plans=len(points),
        cost=cost,
        largest_gap_percent=max(point["gap_percent"] for point in points),
    )


def _run(command: list[str], give_up_s: float) -> tuple[FlyballRun, Cost]:
    before_s = children_cpu_s()
    run = run_flyball(command, give_up_s=give_up_s)
    return run, Cost(
        process_s=run.process.process_s,
        cpu_s=children_cpu_s() - before_s,
        solve_s=run.solve_s,
        peak_memory_bytes=run.process.peak_memory_bytes,
    )


def _limits(plans: list[PlanFigure], frontiers: list[FrontierFigure]) -> Iterator[Limit]:
    for plan in plans:
        if plan.gpu == A100.name:
            name = f"{plan.gpu}, {plan.size}"
            yield at_most(f"{name}: whole process, s", plan.cost.process_s, MAX_PLAN_S)
            yield at_most(f"{name}: memory, MiB", plan.cost.mib, MAX_MEMORY_MIB)
            yield at_most(f"{name}: gap, %", plan.gap_percent, MAX_GAP_PERCENT)
    for frontier in frontiers:
        if frontier.gpu == A100.name:
            name = f"{frontier.gpu}, frontier"
            yield at_least(f"{name}: plans", frontier.num_plans, NUM_POINTS)
            yield at_most(f"{name}: whole process, s", frontier.cost.process_s, MAX_FRONTIER_S)
            yield at_most(f"{name}: memory, MiB", frontier.cost.mib, MAX_MEMORY_MIB)


def _text(plans: list[PlanFigure], frontiers: list[FrontierFigure]) -> str:
    sizes = {
        "target fastest": "{gpu}, {size}",
        "instructions": "{num_instructions}",
        "process, s": "{cost.process_s:.2f}",
        "CPU, s": "{cost.cpu_s:.2f}",
        "planning, s": "{cost.solve_s:.2f}",
        "MiB": "{cost.mib:.0f}",
        "saving, %": "{saving_percent:.2f}",
        "gap, %": "{gap_percent:.3f}",
    }
    whole = {
        f"frontier, {SIZES[-1][0]}x{SIZES[-1][1]}": "{gpu}",
        "plans": "{num_plans}",
        "process, s": "{cost.process_s:.1f}",
        "CPU, s": "{cost.cpu_s:.1f}",
        "MiB": "{cost.mib:.0f}",
        "largest gap, %": "{largest_gap_percent:.3f}",
    }
    return (
        "gpt3-175b tiled to more stages with seeded noise, 1F1B, effort normal; limits are for"
        f" {A100.name}\n\n{table_of(plans, sizes)}\n\n{table_of(frontiers, whole)}"
    )


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__)
    add_profiles_argument(options)
    run_benchmark(options, measure)
