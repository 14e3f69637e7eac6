"""Runs that others recorded on real GPUs, each predicted from every second one of its workload.

"Measured" is by the authors of the recordings; all else is predicted.
"""

from __future__ import annotations

import argparse
import os
import time
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
from flyball_server.cli.replay import read_recording
from flyball_server.replay.fit_rule import FitRule, parse_fit
from flyball_server.replay.recorded_runs import RecordingError
from flyball_server.replay.replayed_runs import Replay, replay
from flyball_wire.command import CommandError
from measured_process import BenchmarkError

# By the file's name: mean absolute errors of time and energy, %.
LIMITS = {
    "gpt3-xl+a100": (0.06, 0.25),
    "bert-huge-uncased+a100": (0.25, 0.25),
    "wide-resnet101_8+a40": (0.5, 0.25),
}
LEAST_COVERED, MOST_WIDTHS = 0.8, 4.0
# Error of time with the tail of one run, as a share of that without a tail.
MAX_OF_TAILLESS = 0.2


@dataclass(frozen=True, kw_only=True)
class WorkloadFigure:
    """One workload's held-out runs.

    Attributes:
        name: of its file, without the suffix.
        time_percent, energy_percent: mean absolute errors.
        largest_time_percent, largest_energy_percent: of a single run.
        unchanged_time_percent, unchanged_energy_percent: errors of "as the first run".
        tailless_time_percent: mean absolute error of time without a tail.
        baseline_tail_time_percent: the same with the tail of one run, that at the highest clocks,
            as `--tail-ms` could have it.
        times_covered, energies_covered: runs within their 90 % intervals.
        time_width_percent, energy_width_percent: mean widths of the intervals.
        num_named: runs, fitted ones included, that the output names as unsure.
        replay_s: reading not counted, s.
    """

    name: str
    num_runs: int
    num_held_out: int
    time_percent: float
    energy_percent: float
    largest_time_percent: float
    largest_energy_percent: float
    unchanged_time_percent: float
    unchanged_energy_percent: float
    tailless_time_percent: float
    baseline_tail_time_percent: float
    times_covered: int
    energies_covered: int
    time_width_percent: float
    energy_width_percent: float
    num_named: int
    replay_s: float


def measure(arguments: argparse.Namespace) -> Report:
    """Replay every recording of the folder."""
    folder: Path = arguments.recordings
    paths = sorted(folder.glob("*.json"))
    if not paths:
        raise BenchmarkError(
            f"{folder}: no recorded runs; --recordings, or FLYBALL_SHARED_DATA, names the folder"
        )
    figures = [_figure(path, arguments.fit) for path in paths]
    return Report(
        figures={"fit": arguments.fit.text, "workloads": figures},
        text=_text(figures),
        limits=_limits(figures),
    )


def _figure(path: Path, rule: FitRule) -> WorkloadFigure:
    show_progress(path.stem)
    try:
        recording = read_recording(path)
        began_s = time.perf_counter()
        replayed = replay(recording, rule.chosen([run.name for run in recording.runs]))
        replay_s = time.perf_counter() - began_s
    except (CommandError, RecordingError) as error:
        raise BenchmarkError(str(error)) from None
    errors, unchanged = replayed.absolute_errors, replayed.unchanged
    times_covered, energies_covered = replayed.covered
    return WorkloadFigure(
        name=path.stem,
        num_runs=len(recording.runs),
        num_held_out=len(replayed.held_out),
        time_percent=errors.mean_time,
        energy_percent=errors.mean_energy,
        largest_time_percent=errors.largest_time,
        largest_energy_percent=errors.largest_energy,
        unchanged_time_percent=unchanged.mean_time,
        unchanged_energy_percent=unchanged.mean_energy,
        tailless_time_percent=_time_error_percent(replayed, 0.0),
        baseline_tail_time_percent=_time_error_percent(replayed, _baseline_tail_s(replayed)),
        times_covered=times_covered,
        energies_covered=energies_covered,
        time_width_percent=_mean_width(replayed, is_energy=False),
        energy_width_percent=_mean_width(replayed, is_energy=True),
        num_named=sum(bool(run.notes) for run in replayed.runs),
        replay_s=replay_s,
    )


def _baseline_tail_s(replayed: Replay) -> float:
    """Return the tail of the fitted run at the highest clocks, s."""
    fitted = replayed.fit.fitted
    sums_mhz = [sum(map(sum, run.clocks_mhz)) for run in fitted]
    return float(replayed.fit.tails_s[sums_mhz.index(max(sums_mhz))])


def _time_error_percent(replayed: Replay, tail_s: float) -> float:
    """Return the mean absolute error of time with another tail than the fit's, %."""
    errors = [
        abs(
            (each.predicted.iteration_time_s - replayed.fit.tail_s + tail_s)
            / each.run.iterations.mean_s
            - 1
        )
        for each in replayed.held_out
    ]
    return 100 * sum(errors) / max(1, len(errors))


def _mean_width(replayed: Replay, *, is_energy: bool) -> float:
    widths = [
        2 * run.energy_half_width_j / run.run.energy_j
        if is_energy
        else 2 * run.time_half_width_s / run.run.iterations.mean_s
        for run in replayed.held_out
    ]
    return 100 * sum(widths) / max(1, len(widths))


def _text(figures: list[WorkloadFigure]) -> str:
    columns = {
        "predicted against measured (by others)": "{name}",
        "held out": "{num_held_out} of {num_runs}",
        "time error": "{time_percent:.3f} %",
        "largest": "{largest_time_percent:.2f} %",
        "as first": "{unchanged_time_percent:.2f} %",
        "no tail": "{tailless_time_percent:.2f} %",
        "one tail": "{baseline_tail_time_percent:.3f} %",
        "energy error": "{energy_percent:.3f} %",
        "largest of energy": "{largest_energy_percent:.2f} %",
        "energy as first": "{unchanged_energy_percent:.2f} %",
        "times in": "{times_covered}",
        "energies in": "{energies_covered}",
        "named": "{num_named}",
        "took": "{replay_s:.1f} s",
    }
    return table_of(figures, columns)


def _limits(figures: list[WorkloadFigure]) -> list[Limit]:
    limits: list[Limit] = []
    for each in figures:
        if each.name in LIMITS:
            time_percent, energy_percent = LIMITS[each.name]
            limits += [
                at_most(f"{each.name}: time error, %", each.time_percent, time_percent),
                at_most(f"{each.name}: energy error, %", each.energy_percent, energy_percent),
            ]
    limits += [
        at_most(
            f"{each.name}: time error with the baseline's tail, by that without a tail",
            each.baseline_tail_time_percent / each.tailless_time_percent,
            MAX_OF_TAILLESS,
        )
        for each in figures
    ]
    held_out = sum(each.num_held_out for each in figures)
    for name, covered, width, error in (
        ("time", "times_covered", "time_width_percent", "time_percent"),
        ("energy", "energies_covered", "energy_width_percent", "energy_percent"),
    ):
        inside = sum(getattr(each, covered) for each in figures)
        widths, errors = (
            sum(each.num_held_out * getattr(each, field) for each in figures)
            for field in (width, error)
        )
        limits += [
            at_least(f"{name}: share within the 90 % interval", inside / held_out, LEAST_COVERED),
            at_most(f"{name}: interval's width by the mean error", widths / errors, MOST_WIDTHS),
        ]
    return limits


if __name__ == "__main__":
    shared = os.environ.get("FLYBALL_SHARED_DATA", ".")
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument(
        "--recordings",
        metavar="DIR",
        type=Path,
        default=Path(shared) / "perseus-sosp24" / "recorded_runs",
        help="folder of recorded runs (default: the one below FLYBALL_SHARED_DATA)",
    )
    options.add_argument(
        "--fit", type=parse_fit, default="every-second", help="runs to fit (default: %(default)s)"
    )
    run_benchmark(options, measure)
