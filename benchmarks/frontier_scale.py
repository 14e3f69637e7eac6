"""Growth of plan time, memory and gap from 8 stages x 12 microbatches to 64 x 256.

Run `python benchmarks/frontier_scale.py [--json] [--plot FILE ...] [--profiles DIR]`; README.md
beside this file says how to read it.
"""

from __future__ import annotations

import argparse
import dataclasses
import resource
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmark_report import Limit, Report, at_least, at_most, run_benchmark, show_progress, table
from flyball_profiles.stage_profile_csv import read_stage_profile, write_stage_profile
from gpt3_cells import A40, A100, Gpu, add_profiles_argument
from made_profiles import tile_profile
from measured_process import BenchmarkError, run_flyball
from scale_plot import PLOT_SUFFIXES, write_scale_plot

SIZES = ((8, 12), (8, 96), (16, 64), (32, 128), (64, 256))  # stages, microbatches
SEED = 20
NUM_POINTS = 50
PLAN_GIVE_UP_S, FRONTIER_GIVE_UP_S = 600.0, 1800.0
MAX_PLAN_S, MAX_MEMORY_BYTES, MAX_GAP_PERCENT = 20.0, 4 * 1024**3, 1.0
MAX_FRONTIER_S = 180.0


@dataclass(frozen=True, kw_only=True)
class PlanFigure:
    """A plan at one size, policy frontier, target fastest.

    Attributes:
        process_s: whole process, s.
        cpu_s: of it, what it had of a core; on a busy machine the figure to compare, s.
        solve_s: the planning alone, as the command reports it, s.
        peak_memory_bytes: of the process.
        saving_percent: of energy against the baseline, %.
        gap_percent: of the plan's energy above the bound, %.
    """

    gpu: str
    num_stages: int
    num_microbatches: int
    process_s: float
    cpu_s: float
    solve_s: float
    peak_memory_bytes: int
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
    """A whole frontier at the largest size.

    Attributes:
        process_s: whole process, s.
        cpu_s: of it, what it had of a core, s.
        solve_s: the planning alone, s.
        peak_memory_bytes: of the process.
        largest_gap_percent: of its plans' energies above their bounds, %.
    """

    gpu: str
    num_plans: int
    process_s: float
    cpu_s: float
    solve_s: float
    peak_memory_bytes: int
    largest_gap_percent: float


def measure(arguments: argparse.Namespace) -> Report:
    """Every size on both GPUs; A100 is held to the limits."""
    plots: list[Path] = arguments.plot
    for path in plots:
        if path.suffix not in PLOT_SUFFIXES:
            raise BenchmarkError(f"--plot: {path} must end in {' or '.join(PLOT_SUFFIXES)}")
    plans: list[PlanFigure] = []
    frontiers: list[FrontierFigure] = []
    with tempfile.TemporaryDirectory() as tiled:
        for gpu in (A100, A40):
            tiled_gpu = dataclasses.replace(gpu, file_name=f"{gpu.table_name}.csv")
            for num_stages, num_microbatches in SIZES:
                _write_tiled(gpu, arguments.profiles, num_stages, Path(tiled))
                if not plans:  # one run that is not counted, that the others find all compiled
                    _plan(tiled_gpu, Path(tiled), num_stages, num_microbatches)
                plans.append(_plan(tiled_gpu, Path(tiled), num_stages, num_microbatches))
            # The file left in the folder is the largest size's.
            frontiers.append(_frontier(tiled_gpu, Path(tiled)))
    for path in plots:
        _plot(plans, path)
    return Report(
        figures={
            "plans": [asdict(figure) for figure in plans],
            "frontiers": [asdict(figure) for figure in frontiers],
        },
        text=_text(plans, frontiers),
        limits=tuple(_limits(plans, frontiers)),
    )


def _write_tiled(gpu: Gpu, folder: Path, num_stages: int, tiled: Path) -> None:
    profile = tile_profile(read_stage_profile(gpu.profile(folder)), num_stages, SEED)
    text = write_stage_profile(profile)
    (tiled / f"{gpu.table_name}.csv").write_text(text, encoding="utf-8")


def _plan(gpu: Gpu, tiled: Path, num_stages: int, num_microbatches: int) -> PlanFigure:
    show_progress(f"{gpu.name}, {num_stages} stages x {num_microbatches} microbatches")
    pipeline = gpu.pipeline_arguments(tiled, num_microbatches)
    policy = ["--policy", "frontier", "--target", "fastest"]
    before_s = _children_cpu_s()
    run = run_flyball(["plan", *pipeline, *policy], give_up_s=PLAN_GIVE_UP_S)
    if run.document["num_stages"] != num_stages:
        raise BenchmarkError(f"{gpu.file_name} has not {num_stages} stages")
    return PlanFigure(
        gpu=gpu.name,
        num_stages=num_stages,
        num_microbatches=num_microbatches,
        process_s=run.process.process_s,
        cpu_s=_children_cpu_s() - before_s,
        solve_s=run.solve_s,
        peak_memory_bytes=run.process.peak_memory_bytes,
        saving_percent=run.document["saving_percent"],
        gap_percent=run.document["gap_percent"],
    )


def _frontier(gpu: Gpu, tiled: Path) -> FrontierFigure:
    num_stages, num_microbatches = SIZES[-1]
    show_progress(f"{gpu.name}, {num_stages} x {num_microbatches}, the whole frontier")
    pipeline = gpu.pipeline_arguments(tiled, num_microbatches)
    before_s = _children_cpu_s()
    run = run_flyball(
        ["frontier", *pipeline, "--points", str(NUM_POINTS)], give_up_s=FRONTIER_GIVE_UP_S
    )
    points = run.document["points"]
    return FrontierFigure(
        gpu=gpu.name,
        num_plans=len(points),
        process_s=run.process.process_s,
        cpu_s=_children_cpu_s() - before_s,
        solve_s=run.solve_s,
        peak_memory_bytes=run.process.peak_memory_bytes,
        largest_gap_percent=max(point["gap_percent"] for point in points),
    )


def _children_cpu_s() -> float:
    """User and system time of all processes that were started and waited for, s."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _limits(plans: list[PlanFigure], frontiers: list[FrontierFigure]) -> Iterator[Limit]:
    for plan in plans:
        if plan.gpu == A100.name:
            name = f"{plan.gpu}, {plan.size}"
            yield at_most(f"{name}: whole process, s", plan.process_s, MAX_PLAN_S)
            yield at_most(f"{name}: memory, bytes", plan.peak_memory_bytes, MAX_MEMORY_BYTES)
            yield at_most(f"{name}: gap, %", plan.gap_percent, MAX_GAP_PERCENT)
    for frontier in frontiers:
        if frontier.gpu == A100.name:
            name = f"{frontier.gpu}, frontier"
            yield at_least(f"{name}: plans", frontier.num_plans, NUM_POINTS)
            yield at_most(f"{name}: whole process, s", frontier.process_s, MAX_FRONTIER_S)
            yield at_most(f"{name}: memory, bytes", frontier.peak_memory_bytes, MAX_MEMORY_BYTES)


def _text(plans: list[PlanFigure], frontiers: list[FrontierFigure]) -> str:
    sizes = table(
        [
            "target fastest",
            "instructions",
            "process, s",
            "CPU, s",
            "planning, s",
            "MiB",
            "saving, %",
            "gap, %",
        ],
        [
            [
                f"{plan.gpu}, {plan.size}",
                str(plan.num_instructions),
                f"{plan.process_s:.2f}",
                f"{plan.cpu_s:.2f}",
                f"{plan.solve_s:.2f}",
                f"{plan.peak_memory_bytes / 1024**2:.0f}",
                f"{plan.saving_percent:.2f}",
                f"{plan.gap_percent:.3f}",
            ]
            for plan in plans
        ],
    )
    whole = table(
        [
            f"frontier, {SIZES[-1][0]}x{SIZES[-1][1]}",
            "plans",
            "process, s",
            "CPU, s",
            "MiB",
            "largest gap, %",
        ],
        [
            [
                frontier.gpu,
                str(frontier.num_plans),
                f"{frontier.process_s:.1f}",
                f"{frontier.cpu_s:.1f}",
                f"{frontier.peak_memory_bytes / 1024**2:.0f}",
                f"{frontier.largest_gap_percent:.3f}",
            ]
            for frontier in frontiers
        ],
    )
    return (
        "gpt3-175b tiled to more stages with seeded noise, 1F1B, effort normal; limits are for"
        f" {A100.name}\n\n{sizes}\n\n{whole}"
    )


def _plot(plans: list[PlanFigure], path: Path) -> None:
    write_scale_plot(
        {
            gpu.name: [
                (plan.size, plan.num_instructions, plan.process_s)
                for plan in plans
                if plan.gpu == gpu.name
            ]
            for gpu in (A100, A40)
        },
        MAX_PLAN_S,
        path,
    )


def main() -> int:
    """Print the figures; 0 where all are within their limits, else 1."""
    parser = argparse.ArgumentParser(description=__doc__)
    add_profiles_argument(parser)
    parser.add_argument(
        "--plot",
        metavar="FILE",
        type=Path,
        action="append",
        default=[],
        help=f"draw plan time over size: {', '.join(PLOT_SUFFIXES)}; may be given twice",
    )
    return run_benchmark(parser, measure)


if __name__ == "__main__":
    sys.exit(main())
