"""Gap to the bound of the frontier's fastest plans: the eight published cells, by effort."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
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
from gpt3_cells import A40, A100, NUM_MICROBATCHES, Gpu, add_profiles_argument
from measured_process import FlyballRun, run_flyball

GIVE_UP_S = 300.0
MAX_PROCESS_S = 5.0
MAX_GAP_HIGH_PERCENT = 0.6
MAX_GAP_PERCENT = {A100.name: (0.3, 0.3, 0.3, 0.3), A40.name: (0.6, 0.6, 0.9, 0.9)}
# What a mixed-integer program reached in 120 s at the least number of microbatches.
MIP_SAVING_PERCENT = {A100.name: 15.965, A40.name: 12.356}
MIP_MARGIN_PERCENT = 0.05
MIP_SOLVE_S = 1.0


@dataclass(frozen=True, kw_only=True)
class EffortFigure:
    """A plan of policy frontier, target fastest.

    Attributes:
        process_s: whole process, s.
        solve_s: the planning alone, as the command reports it, s.
        saving_percent: of energy against the baseline, %.
        gap_percent: of the plan's energy above the bound, %.
        slowdown_percent: of the iteration against the baseline, %.
    """

    process_s: float
    solve_s: float
    saving_percent: float
    gap_percent: float
    slowdown_percent: float


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One GPU at one number of microbatches.

    Attributes:
        perseus_saving_percent: published, %.
        artifact_envpipe_saving_percent: of the publication's own EnvPipe plans, %.
        envpipe_saving_percent: envelope with balanced, by this project's planner, %.
        bound_saving_percent: no plan as fast as the baseline saves more, %.
        efforts: figures by effort.
    """

    gpu: str
    num_microbatches: int
    perseus_saving_percent: float
    artifact_envpipe_saving_percent: float
    envpipe_saving_percent: float
    bound_saving_percent: float
    efforts: dict[str, EffortFigure]


def measure(arguments: argparse.Namespace) -> Report:
    """Run every cell at every effort asked for."""
    folder: Path = arguments.profiles
    efforts = ("low", "normal", "high") if arguments.high else ("low", "normal")
    cells = [
        _cell(gpu, index, folder, efforts)
        for gpu in (A100, A40)
        for index in range(len(NUM_MICROBATCHES))
    ]
    return Report(
        figures={"cells": cells},
        text=_text(cells, efforts),
        limits=[limit for cell in cells for limit in _limits(cell)],
    )


def _cell(gpu: Gpu, index: int, folder: Path, efforts: tuple[str, ...]) -> Cell:
    num_microbatches = NUM_MICROBATCHES[index]
    pipeline = gpu.pipeline_arguments(folder, num_microbatches)
    envpipe = run_flyball(
        ["plan", *pipeline, "--policy", "envelope", "--reconfigure", "balanced"],
        give_up_s=GIVE_UP_S,
    )
    runs: dict[str, FlyballRun] = {}
    for effort in efforts:
        show_progress(f"{gpu.name}, {num_microbatches} microbatches, effort {effort}")
        policy = ["--policy", "frontier", "--target", "fastest", "--effort", effort]
        runs[effort] = run_flyball(["plan", *pipeline, *policy], give_up_s=GIVE_UP_S)
    plan = runs["normal"].document
    return Cell(
        gpu=gpu.name,
        num_microbatches=num_microbatches,
        perseus_saving_percent=gpu.perseus_saving_percent[index],
        artifact_envpipe_saving_percent=gpu.envpipe_saving_percent[index],
        envpipe_saving_percent=envpipe.document["saving_percent"],
        bound_saving_percent=100 * (1 - plan["lower_bound_j"] / plan["baseline"]["energy_j"]),
        efforts={effort: _figure(run) for effort, run in runs.items()},
    )


def _figure(run: FlyballRun) -> EffortFigure:
    plan = run.document
    return EffortFigure(
        process_s=run.process.process_s,
        solve_s=run.solve_s,
        saving_percent=plan["saving_percent"],
        gap_percent=plan["gap_percent"],
        slowdown_percent=plan["slowdown_percent"],
    )


def _limits(cell: Cell) -> Iterator[Limit]:
    name = f"{cell.gpu}, {cell.num_microbatches} microbatches"
    index = NUM_MICROBATCHES.index(cell.num_microbatches)
    normal = cell.efforts["normal"]
    yield at_least(
        f"{name}: saving (Perseus), %", normal.saving_percent, cell.perseus_saving_percent
    )
    yield at_most(f"{name}: gap, %", normal.gap_percent, MAX_GAP_PERCENT[cell.gpu][index])
    yield at_most(f"{name}: whole process, s", normal.process_s, MAX_PROCESS_S)
    yield at_most(f"{name}: slowdown, %", normal.slowdown_percent, 0.0)
    if index == 0:
        wanted_percent = MIP_SAVING_PERCENT[cell.gpu] - MIP_MARGIN_PERCENT
        yield at_least(f"{name}: saving (MIP), %", normal.saving_percent, wanted_percent)
        yield at_most(f"{name}: planning, s", normal.solve_s, MIP_SOLVE_S)
    if "high" in cell.efforts:
        high = cell.efforts["high"]
        yield at_most(f"{name}: gap, effort high, %", high.gap_percent, MAX_GAP_HIGH_PERCENT)
        yield at_most(f"{name}: slowdown, effort high, %", high.slowdown_percent, 0.0)


def _text(cells: list[Cell], efforts: tuple[str, ...]) -> str:
    savings = {
        "saving, %": "{gpu} x {num_microbatches}",
        "Perseus": "{perseus_saving_percent:.2f}",
        "EnvPipe": "{artifact_envpipe_saving_percent:.2f}",
        "balanced": "{envpipe_saving_percent:.2f}",
        **{effort: f"{{efforts[{effort}].saving_percent:.3f}}" for effort in efforts},
        "bound": "{bound_saving_percent:.3f}",
    }
    costs = {"gap to the bound, %; whole process (planning), s": "{gpu} x {num_microbatches}"}
    for effort in efforts:
        figure = f"efforts[{effort}]"
        costs[f"{effort}, %"] = f"{{{figure}.gap_percent:.3f}}"
        costs[f"{effort}, s"] = f"{{{figure}.process_s:.2f}} ({{{figure}.solve_s:.2f}})"
    return (
        "gpt3-175b, 8 stages, 1F1B, target fastest; Perseus and EnvPipe as published, balanced is"
        f" --policy envelope --reconfigure balanced\n\n{table_of(cells, savings)}\n\n"
        f"{table_of(cells, costs)}"
    )


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__)
    add_profiles_argument(options)
    options.add_argument(
        "--high", action="store_true", help="effort high too, about half a minute a cell"
    )
    run_benchmark(options, measure)
