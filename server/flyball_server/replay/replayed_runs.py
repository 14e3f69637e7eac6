"""Replay of a recording: every run predicted from the fitted ones, and the errors."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import NormalDist, fmean

import numpy as np

from flyball_server.planning.model.array_dag import FloatArray
from flyball_server.replay.recorded_runs import PointKey, RecordedRun, Recording, RecordingError
from flyball_server.replay.runs_fit import (
    MIN_FITTED,
    RecordedWorkload,
    RunPrediction,
    RunsFit,
    fit_runs,
)

FIT_FORMS = ("every-second", "spread:5", "names:baseline,perseus-3", "all")
DEFAULT_FIT = "every-second"
CONFIDENCE = 0.9
_NORMAL_QUANTILE = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
# Above this share a run's iterations scatter, or its time lies outside its instructions.
_SCATTER, _OUTSIDE = 0.005, 0.15
# So many runs show how far times are off without those at the ends.
_NUM_ENOUGH = 6


def fitted_places(rule: str, names: Sequence[str]) -> tuple[int, ...]:
    """Return the places of the runs to fit, rising.

    Args:
        rule: `every-second`: the first, third, fifth ... in the file's order; `spread:N`: N, evenly
            spaced from the first to the last; `names:A,B`: those named; `all`.
        names: names of all runs, in the file's order.

    Raises:
        RecordingError: the rule is unknown, names an unknown run, or asks for too many.
    """
    kind, _, value = rule.partition(":")
    if rule in ("every-second", "all"):
        return tuple(range(0, len(names), 1 if rule == "all" else 2))
    if kind == "spread" and value.isdecimal() and len(value) < 6 and int(value) >= 2:
        count, last = int(value), len(names) - 1
        if count > len(names):
            raise RecordingError(f"--fit {rule} of {len(names)} runs; give fewer")
        return tuple(round(place * last / (count - 1)) for place in range(count))
    wanted = [name.strip() for name in value.split(",")]
    if kind != "names" or not all(wanted):
        raise RecordingError(f"--fit: unknown {rule!r}; known: {', '.join(FIT_FORMS)}")
    unknown = next((name for name in wanted if name not in names), None)
    if unknown is not None:
        raise RecordingError(
            f"run {unknown}: --fit names an unknown run; known: {', '.join(names)}"
        )
    return tuple(sorted({names.index(name) for name in wanted}))


@dataclass(frozen=True, kw_only=True)
class Errors:
    """Errors of predictions, found by leaving out each fitted run in turn.

    Intervals are Student's t, with the errors of these runs as the deviation: of times in s, of
    energies as a factor of the deviation that the fit gives, which depends on the plan.

    Attributes:
        time_half_width_s: half the width of a time's interval, s. The runs with the shortest and
            the longest path do not count where others are enough: without them their times are
            extrapolated.
        energy_factor: root mean square error of an energy by its deviation, at least 1: the fit
            counts what these runs do not show.
        quantile: quantile of Student's t for energies.
    """

    time_half_width_s: float
    energy_factor: float
    quantile: float

    @classmethod
    def of_fit(cls, fit: RunsFit, num_neighbours: int = 0) -> Errors:
        """Return the errors of a fit of at least three runs.

        Runs that are unlike the others are not left out: no fit predicts them.

        Args:
            fit: the fit.
            num_neighbours: number of runs before and after each that are left out with it: errors
                of neighbours are alike, and a plan that is none of the runs has no such neighbours.
        """
        if len(fit.fitted) < MIN_FITTED + 2 * num_neighbours:
            num_neighbours = 0
        times_s: list[float] = []
        factors: list[float] = []
        places = np.flatnonzero(fit.is_alike)
        for place in places.tolist():
            run = fit.fitted[place]
            rest = (
                *fit.fitted[: max(0, place - num_neighbours)],
                *fit.fitted[place + 1 + num_neighbours :],
            )
            predicted = fit_runs(fit.workload, rest).predict(run.clocks_mhz)
            times_s.append(predicted.iteration_time_s - run.time_s)
            factors.append((predicted.energy_j - run.energy_j) / predicted.energy_deviation_j)
        by_path = np.array(times_s)[np.argsort(fit.longest_s[places], kind="stable")]
        between_s = by_path[1:-1] if len(by_path) > _NUM_ENOUGH else by_path
        return cls(
            time_half_width_s=_quantile(len(between_s)) * _root_mean_square(between_s),
            energy_factor=max(1.0, _root_mean_square(factors)),
            quantile=_quantile(len(factors)),
        )

    def half_widths(
        self, fit: RunsFit, predicted: RunPrediction, standard_error_s: float
    ) -> tuple[float, float]:
        """Return half the widths of the intervals of time in s and energy in J.

        Args:
            fit: the fit.
            predicted: prediction of a plan.
            standard_error_s: standard error of the measured mean that it is compared with, s.
        """
        measured_s = _NORMAL_QUANTILE * standard_error_s
        waiting_w = fit.workload.num_ranks * math.fsum(fit.blocking_power_w)
        predicted_j = self.quantile * self.energy_factor * predicted.energy_deviation_j
        return (
            math.hypot(self.time_half_width_s, measured_s),
            math.hypot(predicted_j, waiting_w * measured_s),
        )


def _quantile(num_errors: int) -> float:
    """Return Student's t by which the root mean square of so many errors is multiplied."""
    # Imported with the first replay: scipy has no types, and loads slowly.
    from scipy.special import stdtrit  # noqa: PLC0415

    return float(stdtrit(num_errors, (1 + CONFIDENCE) / 2))


def _root_mean_square(errors: Sequence[float] | FloatArray) -> float:
    return float(np.sqrt(np.square(errors).mean()))


@dataclass(frozen=True, kw_only=True)
class RunReplay:
    """One run: measured, and predicted from the fitted runs.

    Attributes:
        fitted: the run is fitted, so that its prediction shows no error of prediction.
        measured_s, predicted_s, predicted_s_interval: time of an iteration, s, and its 90 %
            interval.
        measured_j, predicted_j, predicted_j_interval: energy of an iteration, J, and its interval.
        notes: reasons for which its figures are unsure, one line each.
    """

    name: str
    fitted: bool
    measured_s: float
    predicted_s: float
    predicted_s_interval: tuple[float, float]
    measured_j: float
    predicted_j: float
    predicted_j_interval: tuple[float, float]
    notes: tuple[str, ...]

    @property
    def time_error_percent(self) -> float:
        """Predicted above measured, %."""
        return 100 * (self.predicted_s / self.measured_s - 1)

    @property
    def energy_error_percent(self) -> float:
        """Predicted above measured, %."""
        return 100 * (self.predicted_j / self.measured_j - 1)


@dataclass(frozen=True, kw_only=True)
class ErrorPercents:
    """Errors of time and energy, %; 0 where no run shows any."""

    time: float
    energy: float


@dataclass(frozen=True, kw_only=True)
class Replay:
    """A recording replayed: the document that `flyball replay --json` prints.

    Attributes:
        workload: short description.
        emulated: the GPUs were emulated.
        runs: runs in the file's order.
        mean_absolute_error_percent, largest_absolute_error_percent: of runs that were not fitted.
        unchanged: mean absolute errors if every run were predicted to equal the first.
        tail_s: median tail of the fitted runs, s.
        blocking_power_w: per stage, blocking power of one of its GPUs, W.
        notes: notes on the whole recording, one line each.
    """

    workload: str
    emulated: bool
    runs: tuple[RunReplay, ...]
    mean_absolute_error_percent: ErrorPercents
    largest_absolute_error_percent: ErrorPercents
    unchanged: ErrorPercents
    tail_s: float
    blocking_power_w: tuple[float, ...]
    notes: tuple[str, ...]

    @property
    def origin(self) -> str:
        """Name of measured figures in texts and plots."""
        return "measured (emulated GPUs)" if self.emulated else "measured"

    @property
    def held_out(self) -> tuple[RunReplay, ...]:
        """Runs that were not fitted."""
        return tuple(run for run in self.runs if not run.fitted)

    @property
    def covered(self) -> tuple[int, int]:
        """Numbers of held-out times and of energies within their intervals."""
        intervals = [
            (
                run.predicted_s_interval[0] <= run.measured_s <= run.predicted_s_interval[1],
                run.predicted_j_interval[0] <= run.measured_j <= run.predicted_j_interval[1],
            )
            for run in self.held_out
        ]
        return sum(time for time, _ in intervals), sum(energy for _, energy in intervals)


def replay(recording: Recording, fitted: Sequence[int]) -> Replay:
    """Predict all runs of a recording from some of them.

    Args:
        recording: the runs.
        fitted: places of the runs to fit.

    Raises:
        RecordingError: too few runs are fitted, or they all have one clock.
    """
    if len(fitted) < MIN_FITTED:
        raise RecordingError(
            f"--fit takes {len(fitted)} of {len(recording.runs)} runs; at least {MIN_FITTED} are"
            " needed"
        )
    fit = fit_runs(
        RecordedWorkload.of_recording(recording), [recording.runs[place] for place in fitted]
    )
    errors = Errors.of_fit(fit)
    runs = [
        _replayed(fit, errors, run, is_fitted=place in fitted)
        for place, run in enumerate(recording.runs)
    ]
    first, held_out = runs[0], [run for run in runs if not run.fitted]
    times = [abs(run.time_error_percent) for run in held_out] or [0.0]
    energies = [abs(run.energy_error_percent) for run in held_out] or [0.0]
    compared = held_out or [first]
    of_profile = [
        run.name
        for run in fit.fitted
        if any(times.source == "profile" for times in run.instruction_times)
    ]
    said = "instruction times of the stage profile, not measured in the run: "
    return Replay(
        workload=recording.title,
        emulated=recording.emulated,
        runs=tuple(runs),
        mean_absolute_error_percent=ErrorPercents(time=fmean(times), energy=fmean(energies)),
        largest_absolute_error_percent=ErrorPercents(time=max(times), energy=max(energies)),
        unchanged=ErrorPercents(
            time=fmean(100 * abs(first.measured_s / run.measured_s - 1) for run in compared),
            energy=fmean(100 * abs(first.measured_j / run.measured_j - 1) for run in compared),
        ),
        tail_s=fit.tail_s,
        blocking_power_w=fit.blocking_power_w,
        notes=(said + ", ".join(of_profile),) if of_profile else (),
    )


def _replayed(fit: RunsFit, errors: Errors, run: RecordedRun, *, is_fitted: bool) -> RunReplay:
    predicted = fit.predict(run.clocks_mhz)
    wide_s, wide_j = errors.half_widths(fit, predicted, run.totals.standard_error_s)
    time_s, energy_j = predicted.iteration_time_s, predicted.energy_j
    return RunReplay(
        name=run.name,
        fitted=is_fitted,
        measured_s=run.time_s,
        predicted_s=time_s,
        predicted_s_interval=(time_s - wide_s, time_s + wide_s),
        measured_j=run.energy_j,
        predicted_j=energy_j,
        predicted_j_interval=(energy_j - wide_j, energy_j + wide_j),
        notes=tuple(_notes(fit, run, predicted)),
    )


def _notes(fit: RunsFit, run: RecordedRun, predicted: RunPrediction) -> Iterator[str]:
    scatter = run.totals.time_s_deviation / run.time_s
    if scatter > _SCATTER:
        longest = f"; longest {max(run.iteration_time_s):.4g} s" if run.iteration_time_s else ""
        yield f"iterations scatter by {100 * scatter:.1f} %{longest}"
    outside_s = run.time_s - (predicted.iteration_time_s - predicted.tail_s)
    share = outside_s / run.time_s
    is_unlike = fit.is_unlike(outside_s, run.time_s)
    if share > _OUTSIDE or is_unlike:
        left_out = ", and it is left out of the fit" if is_unlike and run in fit.fitted else ""
        yield (
            f"{100 * share:.0f} % of its time ({outside_s:.3g} s) lies outside its forwards and"
            f" backwards; the fitted runs' median is {fit.tail_s:.3g} s{left_out}"
        )
    if predicted.unmeasured:
        yield "times interpolated, no fitted run has them: " + shown_points(predicted.unmeasured)


def shown_points(points: Sequence[PointKey]) -> str:
    """Return stages, kinds and clocks in one line."""
    return (
        "; ".join(
            f"stage {stage} {kind} " + ", ".join(str(mhz) for _, _, mhz in group)
            for (stage, kind), group in groupby(sorted(points), key=lambda point: point[:2])
        )
        + " MHz"
    )
