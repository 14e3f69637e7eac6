"""Predicted saving of Flyball's plan in a recorded workload.

The fit is on all runs. The plan takes no longer than the first run, the baseline, and its clocks
are measured ones. A prior must not stand for runs, so the plan is no further from the runs than
the outermost run is: its leverage (Hoaglin and Welsch, The American Statistician 32(1), 1978) in a
least-squares regression of a stage's energy over the sums of f and f^2 of its forwards and of its
backwards, its waiting and a constant is at most the largest run's, or up to twice that where no
such plan is found. How far this regression's energy is off the fit's is part of the interval.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import median

import numpy as np

from flyball_pipeline.errors import PipelineError
from flyball_server.planning.leverage_limit import LeverageLimit, plan_within
from flyball_server.planning.model.array_dag import FloatArray
from flyball_server.planning.planner import PlanRequest
from flyball_server.replay.recorded_runs import Recording, RecordingError
from flyball_server.replay.replayed_runs import Errors
from flyball_server.replay.runs_fit import MIN_FITTED, RecordedWorkload, RunsFit, fit_runs
from flyball_wire.plan_options import Effort, PlanOptions

# A run of this name is EnvPipe's plan, compared beside the fastest of the others.
ENVPIPE = "envpipe"
# Largest leverages of a plan, in units of the largest run's, tried in turn.
LEVERAGES = (1.0, 1.5, 2.0)
# Directions in which the runs spread by a smaller share were not seen.
_UNSEEN = 1e-9
# Of a deadline: sums of the same times in another order differ by rounding.
_TOLERANCE = 1e-9


@dataclass(frozen=True, kw_only=True)
class PlainRegression:
    """Regression of each stage's energy without a prior.

    Attributes:
        rows: per stage, linear functions of a load and 1, in which the runs are orthonormal; shape
            (num_stages, num_rows, num_points + 2).
        energy_j: per stage, energy by each of these, J; shape (num_stages, num_rows).
        largest: per stage, the largest leverage of a run; shape (num_stages,).
    """

    rows: FloatArray
    energy_j: FloatArray
    largest: FloatArray

    @classmethod
    def of_fit(cls, fit: RunsFit) -> PlainRegression:
        """Return the regression on the runs of a fit."""
        clocks = np.array(fit.workload.clocks_mhz) / fit.workload.clocks_mhz[-1]
        num_clocks, num_points = len(clocks), fit.workload.shape[1]
        features = np.zeros((6, num_points + 2))
        for row, first in ((0, 0), (2, num_clocks)):
            features[row : row + 2, first : first + num_clocks] = clocks, clocks**2
        features[4, -2] = features[5, -1] = 1.0
        loads = np.pad(fit.loads[fit.is_alike], ((0, 0), (0, 0), (0, 1)), constant_values=1.0)
        of_runs_j = np.array([run.energy_j_per_stage for run in fit.fitted])[fit.is_alike]
        rows: list[FloatArray] = []
        energies_j: list[FloatArray] = []
        largest: list[float] = []
        for stage in range(fit.workload.shape[0]):
            of_stage = loads[:, stage]
            scale = np.maximum(np.abs(of_stage @ features.T).max(axis=0), _UNSEEN)
            scaled = features / scale[:, None]
            runs, spread, directions = np.linalg.svd(of_stage @ scaled.T, full_matrices=False)
            rows.append(directions / np.maximum(spread, _UNSEEN * spread.max())[:, None] @ scaled)
            energies_j.append(runs.T @ of_runs_j[:, stage])
            largest.append(np.square(runs).sum(axis=1).max())
        return cls(rows=np.array(rows), energy_j=np.array(energies_j), largest=np.array(largest))

    def _of_load(self, load: FloatArray) -> FloatArray:
        of_load = np.einsum("srp,sp->sr", self.rows[:, :, :-1], load) + self.rows[:, :, -1]
        return np.asarray(of_load)

    def leverage(self, load: FloatArray) -> float:
        """Return the largest leverage of a load's stages, in units of the largest run's."""
        return float((np.square(self._of_load(load)).sum(axis=1) / self.largest).max())

    def energy_of(self, load: FloatArray) -> float:
        """Return the energy of a load, J."""
        return float((self._of_load(load) * self.energy_j).sum())

    def limit(self, fit: RunsFit, iteration_s: float, largest: float) -> LeverageLimit:
        """Return the limit for plans of this iteration time, s.

        Args:
            fit: the fit.
            iteration_s: time with the tail, s.
            largest: largest leverage, in units of the largest run's.
        """
        units = self.rows / np.sqrt(self.largest)[:, None, None]
        waiting, constant = units[:, :, -2], units[:, :, -1]
        return LeverageLimit(
            of_stage=waiting * iteration_s + constant,
            of_instruction={
                fit.workload.key(stage, point): units[stage, :, point]
                - waiting[stage] * fit.time_s[stage, point]
                for stage, point in np.argwhere(fit.is_measured).tolist()
            },
            largest=largest,
        )


@dataclass(frozen=True, kw_only=True)
class MeasuredSaving:
    """Saving and slowdown of a recorded run against the baseline, %."""

    name: str
    saving_percent: float
    slowdown_percent: float


@dataclass(frozen=True, kw_only=True)
class PlanSaving:
    """Predicted saving and slowdown of a plan, %, each with its 90 % interval.

    Attributes:
        leverage: largest leverage of its stages, in units of the largest run's.
        clocks_mhz: per stage, clock of each instruction, MHz.
    """

    saving_percent: float
    saving_percent_interval: tuple[float, float]
    slowdown_percent: float
    slowdown_percent_interval: tuple[float, float]
    leverage: float
    clocks_mhz: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, kw_only=True)
class PredictedSaving:
    """Predicted saving: the part that `--saving` adds to the document.

    Attributes:
        baseline: name of the first run.
        measured: the fastest recorded plan, and EnvPipe's where it was recorded.
        predicted: Flyball's plan in the baseline's time; None: none was found.
    """

    baseline: str
    measured: tuple[MeasuredSaving, ...]
    predicted: PlanSaving | None


def predicted_saving(recording: Recording) -> PredictedSaving:
    """Plan a recorded workload in its first run's time.

    Raises:
        RecordingError: the runs are too few, or all have one clock.
    """
    if len(recording.runs) < MIN_FITTED:
        raise RecordingError(
            f"has {len(recording.runs)} runs; a saving needs {MIN_FITTED} to fit at least"
        )
    baseline, *others = recording.runs
    fastest = min((run for run in others if run.name != ENVPIPE), key=lambda run: run.time_s)
    return PredictedSaving(
        baseline=baseline.name,
        measured=tuple(
            MeasuredSaving(
                name=run.name,
                saving_percent=100 * (1 - run.energy_j / baseline.energy_j),
                slowdown_percent=100 * (run.time_s / baseline.time_s - 1),
            )
            for run in (fastest, *(run for run in others if run.name == ENVPIPE))
        ),
        predicted=_plan(fit_runs(RecordedWorkload.of_recording(recording), recording.runs)),
    )


def _plan(fit: RunsFit) -> PlanSaving | None:
    measured = fit.fitted[0]
    baseline = fit.predict(measured.clocks_mhz)
    # Where the baseline's own tail is short, its plan is predicted a little slower than it ran.
    iteration_s = max(measured.time_s, baseline.iteration_time_s)
    plain = PlainRegression.of_fit(fit)
    request = PlanRequest(
        profile=fit.profile(),
        num_microbatches=fit.workload.recording.num_microbatches,
        options=PlanOptions(
            schedule=fit.workload.recording.schedule,
            target=f"deadline:{(iteration_s - baseline.tail_s) * (1 + _TOLERANCE)!r}",
            effort=Effort.LOW,
            blocking_power_w=fit.blocking_power_w,
        ),
    )
    solved = None
    for largest in LEVERAGES:
        try:
            solved = solved or plan_within(request, plain.limit(fit, iteration_s, largest))
        except PipelineError:
            return None
    if solved is None:
        return None
    clocks_mhz = tuple(
        tuple(each.frequency_mhz for each in of_stage) for of_stage in solved.plan.stages
    )
    predicted = fit.predict(clocks_mhz)
    standard_error_s = median(run.totals.standard_error_s for run in fit.fitted)
    errors = Errors.of_fit(fit, num_neighbours=1)
    wide_s, wide_j = errors.half_widths(fit, predicted, standard_error_s)
    # A prior must not stand for runs: what they say without it counts as one deviation.
    without_prior_j = errors.quantile * (plain.energy_of(predicted.load) - predicted.energy_j)
    saved = 100 * (1 - predicted.energy_j / measured.energy_j)
    wide = 100 * math.hypot(wide_j, without_prior_j) / measured.energy_j
    slower = 100 * (predicted.iteration_time_s / measured.time_s - 1)
    slower_wide = 100 * wide_s / measured.time_s
    return PlanSaving(
        saving_percent=saved,
        saving_percent_interval=(saved - wide, saved + wide),
        slowdown_percent=slower,
        slowdown_percent_interval=(slower - slower_wide, slower + slower_wide),
        leverage=plain.leverage(predicted.load),
        clocks_mhz=clocks_mhz,
    )
