"""Replay of a recording: every run predicted from the fitted ones, and the errors."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import NormalDist, fmean

import numpy as np

from flyball_profiles.stage_profile import InstructionKind
from flyball_server.replay.recorded_runs import RecordedRun, Recording, RecordingError
from flyball_server.replay.runs_fit import PlanPrediction, RunsFit, Workload, fit_runs

# Fewer determine neither a stage's energies nor how far predictions are off.
MIN_FITTED = 3
CONFIDENCE = 0.9
# Of a normal distribution: standard deviation by mean absolute deviation. The mean does not let
# one run that the others tell little of, such as the one at the highest clocks, decide alone.
_DEVIATION_BY_MEAN = math.sqrt(math.pi / 2)


@dataclass(frozen=True, kw_only=True)
class Errors:
    """Errors of predictions, found by leaving out each fitted run in turn.

    Times are off by what the tail differs from run to run. The interval takes the quantile of
    that which the fitted runs show; it drifts, and no distribution is assumed. Energies are off
    by what the regression leaves open of a plan (its leverage) and by noise, both times a factor;
    the interval is Student's t.

    Attributes:
        tail_half_width_s: quantile of how far a run's tail is from the others' mean, s.
        energy_factor: by how much energies are further off than the regression says.
        energy_quantile: of Student's t.
    """

    tail_half_width_s: float
    energy_factor: float
    energy_quantile: float

    def time_half_width_s(self, predicted: PlanPrediction, standard_error_s: float) -> float:
        """Half the width of the interval of an iteration time, s.

        Args:
            predicted: the prediction.
            standard_error_s: of the measured mean that it is compared with, s.
        """
        others_s = math.hypot(predicted.unmeasured_time_s, standard_error_s)
        return math.hypot(self.tail_half_width_s, _NORMAL_QUANTILE * others_s)

    def energy_half_width_j(
        self, fit: RunsFit, predicted: PlanPrediction, standard_error_s: float
    ) -> float:
        """Return the same of an iteration's energy, J."""
        waiting_w = fit.workload.num_ranks * math.fsum(fit.blocking_power_w)
        return math.hypot(
            self.energy_quantile * self.energy_factor * predicted.energy_deviation_j,
            _NORMAL_QUANTILE * waiting_w * standard_error_s,
        )


_NORMAL_QUANTILE = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)


def errors_of(fit: RunsFit, report: Callable[[int], None] = lambda _: None) -> Errors:
    """Return the errors of a fit.

    Args:
        fit: of at least three runs.
        report: called with the number of runs left out so far.
    """
    # Imported with the first replay: scipy has no types, and loads slowly.
    from scipy.special import stdtrit  # noqa: PLC0415

    num_fitted = len(fit.fitted)
    tails_s = np.abs(fit.tails_s - fit.tail_s) * num_fitted / (num_fitted - 1)
    ratios: list[float] = []
    for run in fit.fitted:
        rest = [other for other in fit.fitted if other is not run]
        predicted = fit_runs(fit.workload, rest).predict(fit.workload.clocks_in(run.clocks_mhz))
        ratios.append(abs(run.energy_j - predicted.energy_j) / predicted.energy_deviation_j)
        report(len(ratios))
    return Errors(
        tail_half_width_s=float(np.quantile(tails_s, CONFIDENCE)),
        energy_factor=_DEVIATION_BY_MEAN * fmean(ratios),
        energy_quantile=float(stdtrit(num_fitted - 1, (1 + CONFIDENCE) / 2)),
    )


# Above this share a run's iterations scatter, or its time lies outside its instructions.
_SCATTER, _OUTSIDE = 0.005, 0.15
# A run's tail that differs from the fitted runs' by more than this share of its time.
_OTHER_TAIL = 0.02


@dataclass(frozen=True, kw_only=True)
class RunReplay:
    """One run: measured, and predicted from the fitted runs.

    Attributes:
        is_fitted: it is one of them, so that its prediction shows no error of prediction.
        time_half_width_s, energy_half_width_j: of the intervals about the predictions, s and J.
        notes: what makes its figures unsure, one line each.
    """

    run: RecordedRun
    is_fitted: bool
    predicted: PlanPrediction
    time_half_width_s: float
    energy_half_width_j: float
    notes: tuple[str, ...]

    @property
    def time_error_percent(self) -> float:
        """Predicted above measured, %."""
        return 100 * (self.predicted.iteration_time_s / self.run.iterations.mean_s - 1)

    @property
    def energy_error_percent(self) -> float:
        """Predicted above measured, %."""
        return 100 * (self.predicted.energy_j / self.run.energy_j - 1)


@dataclass(frozen=True, kw_only=True)
class AbsoluteErrors:
    """Absolute errors over runs that were not fitted, %; 0 where there are none."""

    mean_time: float
    mean_energy: float
    largest_time: float
    largest_energy: float

    @classmethod
    def of_errors(cls, times: Sequence[float], energies: Sequence[float]) -> AbsoluteErrors:
        """Return the mean and the largest absolute error."""
        times, energies = [abs(error) for error in times], [abs(error) for error in energies]
        return cls(
            mean_time=fmean(times) if times else 0.0,
            mean_energy=fmean(energies) if energies else 0.0,
            largest_time=max(times, default=0.0),
            largest_energy=max(energies, default=0.0),
        )


@dataclass(frozen=True, kw_only=True)
class Replay:
    """A recording replayed.

    Attributes:
        runs: in the file's order.
        notes: what holds of the whole recording, one line each.
    """

    recording: Recording
    fit: RunsFit
    errors: Errors
    runs: tuple[RunReplay, ...]
    notes: tuple[str, ...]

    @property
    def held_out(self) -> tuple[RunReplay, ...]:
        """The runs that were not fitted."""
        return tuple(run for run in self.runs if not run.is_fitted)

    @property
    def absolute_errors(self) -> AbsoluteErrors:
        """Absolute errors of the runs that were not fitted."""
        return AbsoluteErrors.of_errors(
            [run.time_error_percent for run in self.held_out],
            [run.energy_error_percent for run in self.held_out],
        )

    @property
    def unchanged(self) -> AbsoluteErrors:
        """Absolute errors if every run were predicted to equal the first one."""
        first = self.recording.runs[0]
        return AbsoluteErrors.of_errors(
            [
                100 * (first.iterations.mean_s / each.run.iterations.mean_s - 1)
                for each in self.held_out
            ],
            [100 * (first.energy_j / each.run.energy_j - 1) for each in self.held_out],
        )

    @property
    def covered(self) -> tuple[int, int]:
        """Numbers of held-out times and of energies within their intervals."""
        times = sum(
            abs(each.predicted.iteration_time_s - each.run.iterations.mean_s)
            <= each.time_half_width_s
            for each in self.held_out
        )
        energies = sum(
            abs(each.predicted.energy_j - each.run.energy_j) <= each.energy_half_width_j
            for each in self.held_out
        )
        return times, energies


def replay(
    recording: Recording, fitted: Sequence[int], report: Callable[[int], None] = lambda _: None
) -> Replay:
    """Predict all runs of a recording from some of them.

    Args:
        recording: the runs.
        fitted: places of the runs to fit.
        report: called with the number of fits made so far.

    Raises:
        RecordingError: too few runs are fitted, or they all have one clock.
    """
    if len(fitted) < MIN_FITTED:
        raise RecordingError(
            f"--fit takes {len(fitted)} of {len(recording.runs)} runs; at least {MIN_FITTED} are"
            " needed"
        )
    workload = Workload.of_recording(recording)
    fit = fit_runs(workload, [recording.runs[place] for place in fitted])
    errors = errors_of(fit, report)
    return Replay(
        recording=recording,
        fit=fit,
        errors=errors,
        runs=tuple(
            _replayed(fit, errors, run, is_fitted=place in fitted)
            for place, run in enumerate(recording.runs)
        ),
        notes=(*_limits_of(fit), *_profiled(fit)),
    )


def _replayed(fit: RunsFit, errors: Errors, run: RecordedRun, *, is_fitted: bool) -> RunReplay:
    predicted = fit.predict(fit.workload.clocks_in(run.clocks_mhz))
    standard_error_s = run.iterations.standard_error_s
    return RunReplay(
        run=run,
        is_fitted=is_fitted,
        predicted=predicted,
        time_half_width_s=errors.time_half_width_s(predicted, standard_error_s),
        energy_half_width_j=errors.energy_half_width_j(fit, predicted, standard_error_s),
        notes=tuple(_notes(fit, run, predicted)),
    )


def _notes(fit: RunsFit, run: RecordedRun, predicted: PlanPrediction) -> Iterator[str]:
    iterations = run.iterations
    if iterations.scatter > _SCATTER:
        longest = iterations.outlier
        beside = "" if longest is None else f"; longest {longest[0]:.4g} s, median {longest[1]:.4g}"
        yield f"iterations scatter by {100 * iterations.scatter:.1f} %{beside}"
    outside_s = iterations.mean_s - (predicted.iteration_time_s - fit.tail_s)
    share = outside_s / iterations.mean_s
    if share > _OUTSIDE or abs(outside_s - fit.tail_s) > _OTHER_TAIL * iterations.mean_s:
        yield (
            f"{100 * share:.0f} % of its time ({outside_s:.3g} s) lies outside its forwards and"
            f" backwards; the fitted runs' mean is {fit.tail_s:.3g} s"
        )
    if predicted.unmeasured:
        yield "times interpolated, no fitted run has them: " + shown_points(predicted.unmeasured)


def _limits_of(fit: RunsFit) -> tuple[str, ...]:
    limited = fit.limited_points()
    if not limited:
        return ()
    return ("limited by power, so no faster than lower clocks: " + shown_points(limited),)


def _profiled(fit: RunsFit) -> Iterator[str]:
    names = [
        run.name
        for run in fit.fitted
        if any(times.is_of_profile for times in run.instruction_times)
    ]
    if names:
        yield "instruction times of the stage profile, not measured in the run: " + ", ".join(names)


def shown_points(points: Sequence[tuple[int, InstructionKind, int]]) -> str:
    """Stages, kinds and clocks in one line."""
    return (
        "; ".join(
            f"stage {stage} {kind} " + ", ".join(str(clock) for _, _, clock in group)
            for (stage, kind), group in groupby(sorted(points), key=lambda point: point[:2])
        )
        + " MHz"
    )
