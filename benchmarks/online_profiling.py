"""Online profiling on emulated jobs: how well it finds the truth, how soon, and at which cost.

Everything is emulated: 2 % of independent noise on every
instruction's time and energy, energy counters that move every 100 ms.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from statistics import fmean

from benchmark_report import Limit, Report, at_most, run_benchmark, show_progress, table_of
from flyball_profiles.stage_profile_csv import parse_stage_profile
from flyball_server.profiling.moves import Finished
from measured_process import BenchmarkError

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.unit.profiling.emulated_training import Truth, profile_online
from tests.unit.profiling.true_profiles import (
    a100_truth,
    found_errors,
    plan_excess_percent,
    setup_of,
    truth_of,
    with_forty_clocks,
)

NUM_MICROBATCHES = (24, 96)
A40_BLOCKING_POWER_W = 70.38
A40_PROFILE = "gpt3-175b+a40_bf16.csv"
MAX_STEPS, MAX_TIME_PERCENT, MAX_ENERGY_PERCENT = 200, 2.0, 3.0
MAX_PLAN_PERCENT, MAX_SLOWDOWN_PERCENT = 1.0, 10.0


@dataclass(frozen=True, kw_only=True)
class RunFigure:
    """One job profiled.

    Attributes:
        time_percent, energy_percent: largest error of a probed point.
        covered_percent: of the probed points' energies, those within 1.96 standard errors.
        plan_percent: energy of the plan made from it above that of the plan made from the truth.
        slowdown_percent: of the slowest step against the measured baseline.
        extra_time_s, extra_energy_j: what probing added, measured.
        decide_s: all decisions together, the emulation included, s.
    """

    cell: str
    seed: int
    num_steps: int
    num_versions: int
    time_percent: float
    energy_percent: float
    covered_percent: float
    plan_percent: float
    slowdown_percent: float
    extra_time_s: float
    extra_energy_j: float
    decide_s: float


def measure(arguments: argparse.Namespace) -> Report:
    """Profile every cell's job once a seed."""
    figures = [
        _figure(cell, truth, seed)
        for cell, truth in _cells(arguments.profiles)
        for seed in range(arguments.seeds)
    ]
    cells = list(dict.fromkeys(figure.cell for figure in figures))
    by_cell = {cell: [each for each in figures if each.cell == cell] for cell in cells}
    return Report(
        figures={"runs": figures},
        text=_text(by_cell),
        limits=[limit for cell, runs in by_cell.items() for limit in _limits(cell, runs)],
    )


def _cells(profiles: Path | None) -> Iterable[tuple[str, Truth]]:
    for num_microbatches in NUM_MICROBATCHES:
        yield f"A100, {num_microbatches} microbatches", a100_truth(num_microbatches)
    if profiles is not None:
        path = profiles / A40_PROFILE
        try:
            profile = parse_stage_profile(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise BenchmarkError(f"{path}: {error.strerror}; --profiles names its folder") from None
        for num_microbatches in NUM_MICROBATCHES:
            yield (
                f"A40, {num_microbatches} microbatches",
                truth_of(with_forty_clocks(profile), num_microbatches, A40_BLOCKING_POWER_W),
            )


def _figure(cell: str, truth: Truth, seed: int) -> RunFigure:
    show_progress(f"{cell}, seed {seed}")
    setup = setup_of(truth)
    began_s = time.perf_counter()
    run = profile_online(setup, truth, seed=seed)
    decide_s = time.perf_counter() - began_s
    if not isinstance(run.last, Finished):
        raise BenchmarkError(f"{cell}, seed {seed}: {run.last}")
    result, errors = run.last.result, found_errors(truth, run.last.result)
    return RunFigure(
        cell=cell,
        seed=seed,
        num_steps=result.num_steps,
        num_versions=len(run.versions),
        time_percent=errors.time_percent,
        energy_percent=errors.energy_percent,
        covered_percent=errors.covered_percent,
        plan_percent=plan_excess_percent(truth, run.last),
        slowdown_percent=100 * (result.largest_slowdown or 0.0),
        extra_time_s=result.extra_time_s or 0.0,
        extra_energy_j=result.extra_energy_j or 0.0,
        decide_s=decide_s,
    )


def _text(by_cell: dict[str, list[RunFigure]]) -> str:
    columns = {
        "emulated; the worst of all seeds": "{cell}",
        "steps": "{num_steps}",
        "versions": "{num_versions}",
        "time error": "{time_percent:.2f} %",
        "energy error": "{energy_percent:.2f} %",
        "covered, mean": "{covered_percent:.0f} %",
        "plan": "{plan_percent:+.2f} %",
        "slowest step": "{slowdown_percent:.2f} %",
        "added time": "{extra_time_s:.0f} s",
        "energy, J": "{extra_energy_j:+.0f}",
        "took": "{decide_s:.1f} s",
    }
    rows: list[dict[str, object]] = []
    for cell, runs in by_cell.items():
        names = [field.name for field in fields(RunFigure) if field.name != "cell"]
        worst: dict[str, object] = {name: max(getattr(run, name) for run in runs) for name in names}
        covered = fmean(run.covered_percent for run in runs)
        rows.append({**worst, "cell": cell, "covered_percent": covered})
    return table_of(rows, columns)


def _limits(cell: str, runs: list[RunFigure]) -> list[Limit]:
    return [
        at_most(f"{cell}: {name}", max(getattr(run, field) for run in runs), bound)
        for name, field, bound in (
            ("steps", "num_steps", MAX_STEPS),
            ("time error, %", "time_percent", MAX_TIME_PERCENT),
            ("energy error, %", "energy_percent", MAX_ENERGY_PERCENT),
            ("plan's energy above the truth's plan, %", "plan_percent", MAX_PLAN_PERCENT),
            ("largest slowdown, %", "slowdown_percent", MAX_SLOWDOWN_PERCENT),
        )
    ]


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--seeds", type=int, default=20, help="runs of each job (default 20)")
    options.add_argument(
        "--profiles", type=Path, help="folder of published stage profiles, for A40"
    )
    run_benchmark(options, measure)
