"""Runs that others recorded on real GPUs, predicted from other runs of their workload.

"Measured" is by the authors of the recordings; all else is predicted, or simulated.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import numpy as np

from benchmark_report import Limit, Report, at_least, at_most, run_benchmark, show_progress, table
from flyball_server.cli.replay import read_recording
from flyball_server.replay.predicted_saving import PlanSaving, predicted_saving
from flyball_server.replay.recorded_runs import Recording, RecordingError
from flyball_server.replay.replayed_runs import DEFAULT_FIT, Replay, fitted_places, replay
from flyball_server.replay.runs_fit import RecordedWorkload, fit_runs
from flyball_wire.command.command import CommandError
from measured_process import BenchmarkError
from replay_references import REFERENCES, FittedReference, Reference
from simulated_runs import SimulatedPipeline

# By the file's name: mean absolute errors of time and energy, %, every second run held out.
LIMITS = {
    "gpt3-xl+a100": (0.06, 0.25),
    "bert-huge-uncased+a100": (0.2, 0.2),
    "bert-huge-uncased+a40": (0.2, 0.2),
    "wide-resnet101_8+a40": (0.5, 0.25),
}
# Errors of runs left out in turn, by the best reference's: figures within this are no worse.
NO_WORSE = 1.05
LEAST_COVERED, MOST_WIDTHS = 0.85, 5.0
LEAST_SIMULATED, MOST_SIMULATED = 0.85, 0.97
# Fits of other forms whose energies of Flyball's plan lie within its interval.
OTHER_FORMS = tuple(
    Reference(
        name=f"least squares of f^{powers[0]}, f^{powers[1]}",
        is_monotone=False,
        median_tail=True,
        powers=powers,
        has_constant=True,
    )
    for powers in ((1, 2), (1, 3), (2, 3))
)


@dataclass(frozen=True, kw_only=True)
class Errors:
    """Mean absolute errors of time and energy, %."""

    time_percent: float
    energy_percent: float

    @classmethod
    def of_pairs(cls, pairs: Sequence[tuple[float, float]]) -> Errors:
        """Return the means of a run's errors, as shares."""
        times, energies = zip(*pairs, strict=True)
        return cls(
            time_percent=100 * fmean(map(abs, times)),
            energy_percent=100 * fmean(map(abs, energies)),
        )


@dataclass(frozen=True, kw_only=True)
class WorkloadFigure:
    """Figures of one workload.

    Attributes:
        name: name of its file, without the suffix.
        every_second: errors of every second run, predicted from the others.
        unchanged: errors of "as the first run" there.
        references: errors of the references there, by name.
        left_out, references_left_out: errors of runs left out in turn, but for runs that are left
            out of the fit anyway.
        times_covered, energies_covered: held-out runs within their 90 % intervals.
        time_width_percent, energy_width_percent: mean widths of the intervals.
        num_named: runs that the output names as unsure.
        saving_percent, saving_half_width: predicted saving and half of its 90 % interval.
        other_forms_percent: savings of the same plan by other forms, by name.
        replay_s: reading not counted, s.
    """

    name: str
    num_runs: int
    num_held_out: int
    every_second: Errors
    unchanged: Errors
    references: dict[str, Errors]
    left_out: Errors
    references_left_out: dict[str, Errors]
    times_covered: int
    energies_covered: int
    time_width_percent: float
    energy_width_percent: float
    num_named: int
    saving_percent: float
    saving_half_width: float
    other_forms_percent: dict[str, float]
    replay_s: float


@dataclass(frozen=True, kw_only=True)
class Simulated:
    """Predicted savings of simulated pipelines, against a measured run of the plan.

    Attributes:
        num_plans: number of pipelines with a plan.
        covered: plans whose energy is within the 90 % interval, as a share.
        half_width_percent: mean half width of the intervals, points of saving.
        error_percent: mean absolute error.
    """

    num_plans: int
    covered: float
    half_width_percent: float
    error_percent: float


def measure(arguments: argparse.Namespace) -> Report:
    """Replay every recording of the folder, and simulated ones."""
    folder: Path = arguments.recordings
    paths = sorted(folder.glob("*.json"))
    if not paths:
        raise BenchmarkError(
            f"{folder}: no recorded runs; --recordings, or FLYBALL_SHARED_DATA, names the folder"
        )
    figures = [_figure(path, arguments.fit) for path in paths]
    simulated = _simulated(arguments.simulations)
    return Report(
        figures={
            "fit": arguments.fit,
            "workloads": figures,
            "simulated": simulated,
        },
        text=_text(figures, simulated),
        limits=_limits(figures, simulated),
    )


def _figure(path: Path, rule: str) -> WorkloadFigure:
    show_progress(path.stem)
    try:
        recording = read_recording(path)
        began_s = time.perf_counter()
        fitted = fitted_places(rule, [run.name for run in recording.runs])
        replayed = replay(recording, fitted)
        replay_s = time.perf_counter() - began_s
        saving = predicted_saving(recording)
    except (CommandError, RecordingError) as error:
        raise BenchmarkError(str(error)) from None
    held_out = [place for place in range(len(recording.runs)) if place not in fitted]
    left_out, references_left_out = _left_out(recording)
    times_covered, energies_covered = replayed.covered
    if saving.predicted is None:
        raise BenchmarkError(f"{path}: no plan within the recorded runs")
    errors, unchanged = replayed.mean_absolute_error_percent, replayed.unchanged
    return WorkloadFigure(
        name=path.stem,
        num_runs=len(recording.runs),
        num_held_out=len(held_out),
        every_second=Errors(time_percent=errors.time, energy_percent=errors.energy),
        unchanged=Errors(time_percent=unchanged.time, energy_percent=unchanged.energy),
        references={
            each.name: _reference_errors(each, recording, fitted, held_out) for each in REFERENCES
        },
        left_out=left_out,
        references_left_out=references_left_out,
        times_covered=times_covered,
        energies_covered=energies_covered,
        time_width_percent=_mean_width(replayed, is_energy=False),
        energy_width_percent=_mean_width(replayed, is_energy=True),
        num_named=sum(bool(run.notes) for run in replayed.runs),
        saving_percent=saving.predicted.saving_percent,
        saving_half_width=_half_width(saving.predicted),
        other_forms_percent=_other_forms(recording, saving.predicted),
        replay_s=replay_s,
    )


def _reference_errors(
    reference: Reference, recording: Recording, fitted: Sequence[int], held_out: Sequence[int]
) -> Errors:
    fit = FittedReference(reference, recording, [recording.runs[place] for place in fitted])
    return Errors.of_pairs(
        [
            (time_s / run.time_s - 1, energy_j / run.energy_j - 1)
            for run in (recording.runs[place] for place in held_out)
            for time_s, energy_j in (fit.predict(run.clocks_mhz),)
        ]
    )


def _left_out(recording: Recording) -> tuple[Errors, dict[str, Errors]]:
    workload = RecordedWorkload.of_recording(recording)
    alike = np.flatnonzero(fit_runs(workload, recording.runs).is_alike).tolist()
    pairs: list[tuple[float, float]] = []
    of_references: dict[str, list[Errors]] = {each.name: [] for each in REFERENCES}
    for place in alike:
        run = recording.runs[place]
        rest = [other for other in range(len(recording.runs)) if other != place]
        predicted = fit_runs(workload, [recording.runs[other] for other in rest]).predict(
            run.clocks_mhz
        )
        pairs.append(
            (predicted.iteration_time_s / run.time_s - 1, predicted.energy_j / run.energy_j - 1)
        )
        for each in REFERENCES:
            of_references[each.name].append(_reference_errors(each, recording, rest, [place]))
    return Errors.of_pairs(pairs), {
        name: Errors(
            time_percent=fmean(each.time_percent for each in of_runs),
            energy_percent=fmean(each.energy_percent for each in of_runs),
        )
        for name, of_runs in of_references.items()
    }


def _other_forms(recording: Recording, plan: PlanSaving) -> dict[str, float]:
    """Savings of a plan by other forms, fitted on the runs that it is fitted on, %."""
    fit = fit_runs(RecordedWorkload.of_recording(recording), recording.runs)
    alike = [run for run, is_alike in zip(fit.fitted, fit.is_alike, strict=True) if is_alike]
    baseline = recording.runs[0]
    time_s = baseline.time_s * (1 + plan.slowdown_percent / 100)
    energies_j = {
        form.name: FittedReference(form, recording, alike).energy_j(plan.clocks_mhz, time_s)
        for form in OTHER_FORMS
    }
    return {name: 100 * (1 - j / baseline.energy_j) for name, j in energies_j.items()}


def _half_width(plan: PlanSaving) -> float:
    """Return half the width of a saving's interval, points."""
    return plan.saving_percent_interval[1] - plan.saving_percent


def _mean_width(replayed: Replay, *, is_energy: bool) -> float:
    return 200 * fmean(
        (run.predicted_j_interval[1] - run.predicted_j) / run.measured_j
        if is_energy
        else (run.predicted_s_interval[1] - run.predicted_s) / run.measured_s
        for run in replayed.held_out
    )


def _simulated(num_simulations: int) -> Simulated:
    """Predict the saving of pipelines whose truth is known, and measure a run of each plan."""
    errors: list[float] = []
    half_widths: list[float] = []
    for seed in range(num_simulations):
        show_progress(f"simulation {seed + 1} of {num_simulations}")
        draws = np.random.default_rng(seed)
        pipeline = SimulatedPipeline.drawn(draws)
        recording = pipeline.recording(draws)
        plan = predicted_saving(recording).predicted
        if plan is not None:
            measured = pipeline.run_of(plan.clocks_mhz, draws)
            saved = 100 * (1 - measured.energy_j / recording.runs[0].energy_j)
            errors.append(plan.saving_percent - saved)
            half_widths.append(_half_width(plan))
    inside = [abs(error) <= width for error, width in zip(errors, half_widths, strict=True)]
    return Simulated(
        num_plans=len(errors),
        covered=fmean(inside),
        half_width_percent=fmean(half_widths),
        error_percent=fmean(map(abs, errors)),
    )


def _text(figures: Sequence[WorkloadFigure], simulated: Simulated) -> str:
    def both(errors: Errors) -> str:
        return f"{errors.time_percent:.3f} / {errors.energy_percent:.3f} %"

    names = [each.name for each in REFERENCES]
    header = ("mean absolute error of time / energy", "held out", "Flyball", *names, "as first")
    rows = [
        (
            f"{each.name}: every second run",
            f"{each.num_held_out} of {each.num_runs}",
            both(each.every_second),
            *(both(each.references[name]) for name in names),
            both(each.unchanged),
        )
        for each in figures
    ]
    rows += [
        (
            f"{each.name}: left out in turn",
            "1",
            both(each.left_out),
            *(both(each.references_left_out[name]) for name in names),
            "",
        )
        for each in figures
    ]
    intervals = [
        (
            each.name,
            f"{each.times_covered}, {each.energies_covered} of {each.num_held_out}",
            f"{each.saving_percent:.2f} +-{each.saving_half_width:.2f} %",
            ", ".join(f"{percent:.2f}" for percent in each.other_forms_percent.values()) + " %",
            str(each.num_named),
            f"{each.replay_s:.1f} s",
        )
        for each in figures
    ]
    return "\n\n".join(
        [
            table(header, rows),
            table(
                ("", "within intervals", "predicted saving", "by other forms", "named", "took"),
                intervals,
            ),
            f"{simulated.num_plans} simulated plans: {100 * simulated.covered:.0f} % of the"
            f" measured energies within their 90 % intervals, +-{simulated.half_width_percent:.2f}"
            f" points; mean error {simulated.error_percent:.2f} points",
        ]
    )


def _limits(figures: Sequence[WorkloadFigure], simulated: Simulated) -> list[Limit]:
    limits: list[Limit] = []
    for each in figures:
        errors = each.every_second
        if each.name in LIMITS:
            time_percent, energy_percent = LIMITS[each.name]
            limits += [
                at_most(f"{each.name}: time error, %", errors.time_percent, time_percent),
                at_most(f"{each.name}: energy error, %", errors.energy_percent, energy_percent),
            ]
        best = [
            min(getattr(reference, field) for reference in each.references_left_out.values())
            for field in ("time_percent", "energy_percent")
        ]
        limits += [
            at_most(
                f"{each.name}: {field} error of runs left out, by the best reference's",
                own / of_best,
                NO_WORSE,
            )
            for field, own, of_best in zip(
                ("time", "energy"),
                (each.left_out.time_percent, each.left_out.energy_percent),
                best,
                strict=True,
            )
        ]
        limits += [
            at_most(
                f"{each.name}: saving by {name}, points off",
                abs(percent - each.saving_percent),
                each.saving_half_width,
            )
            for name, percent in each.other_forms_percent.items()
        ]
    held_out = sum(each.num_held_out for each in figures)
    for name in ("time", "energy"):
        covered = {"time": "times_covered", "energy": "energies_covered"}[name]
        inside = sum(getattr(each, covered) for each in figures)
        widths = sum(each.num_held_out * getattr(each, f"{name}_width_percent") for each in figures)
        errors_percent = sum(
            each.num_held_out * getattr(each.every_second, f"{name}_percent") for each in figures
        )
        limits += [
            at_least(f"{name}: share within the 90 % interval", inside / held_out, LEAST_COVERED),
            at_most(
                f"{name}: interval's width by the mean error", widths / errors_percent, MOST_WIDTHS
            ),
        ]
    name = "simulated savings: share within the 90 % interval"
    return [
        *limits,
        at_least(name, simulated.covered, LEAST_SIMULATED),
        at_most(name, simulated.covered, MOST_SIMULATED),
    ]


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
    options.add_argument("--fit", default=DEFAULT_FIT, help="runs to fit (default: %(default)s)")
    options.add_argument(
        "--simulations", type=int, default=100, help="simulated pipelines (default: %(default)s)"
    )
    run_benchmark(options, measure)
