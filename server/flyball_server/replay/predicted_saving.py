"""Predicted saving of Flyball's plan in a recorded workload, where the fit carries it.

The fit is on all runs. The plan is the one of least energy in the time of the first run, which is
the baseline.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

from flyball_server.replay.coverage import MAX_LEVERAGE
from flyball_server.replay.covered_plans import CoveredPlanner, JudgedPlan
from flyball_server.replay.recorded_runs import RecordedRun, Recording, RecordingError
from flyball_server.replay.replayed_runs import MIN_FITTED, Errors, errors_of
from flyball_server.replay.runs_fit import RunsFit, Workload, fit_runs

# A run of this name is EnvPipe's plan, compared beside the fastest of the others.
ENVPIPE = "envpipe"


@dataclass(frozen=True, kw_only=True)
class PredictedSaving:
    """Plans at the baseline's time, with what was measured of recorded ones.

    Attributes:
        planner: of the fit on all runs.
        baseline: the first run.
        free: the plan of any measured clocks; None where there is none.
        within: the plan that the fit carries, `free` itself if it does; None: none was found.
        compared: the fastest recorded plan, and EnvPipe's where it was recorded.
        standard_error_s: of a recorded run's mean time, as a rule, s.
    """

    recording: Recording
    planner: CoveredPlanner
    errors: Errors
    baseline: RecordedRun
    free: JudgedPlan | None
    within: JudgedPlan | None
    compared: tuple[RecordedRun, ...]
    standard_error_s: float

    @property
    def fit(self) -> RunsFit:
        """The fit on all runs."""
        return self.planner.fit

    def saving_percent(self, energy_j: float) -> float:
        """Saving of an iteration against the measured baseline, %."""
        return 100 * (1 - energy_j / self.baseline.energy_j)

    def slowdown_percent(self, time_s: float) -> float:
        """Return the same of its time, %."""
        return 100 * (time_s / self.baseline.iterations.mean_s - 1)

    def saving_half_width(self, plan: JudgedPlan) -> float:
        """Half the width of a predicted saving's 90 % interval, percentage points."""
        half_width_j = self.errors.energy_half_width_j(
            self.fit, plan.predicted, self.standard_error_s
        )
        return 100 * half_width_j / self.baseline.energy_j

    def slowdown_half_width(self, plan: JudgedPlan) -> float:
        """Return the same of its predicted slowdown."""
        half_width_s = self.errors.time_half_width_s(plan.predicted, self.standard_error_s)
        return 100 * half_width_s / self.baseline.iterations.mean_s


def predicted_saving(
    recording: Recording, report: Callable[[int], None] = lambda _: None
) -> PredictedSaving:
    """Plan a recorded workload in its first run's time.

    Args:
        recording: the runs, at least three.
        report: called with the number of fits made so far.

    Raises:
        RecordingError: the runs are too few, or all have one clock.
    """
    if len(recording.runs) < MIN_FITTED:
        raise RecordingError(
            f"has {len(recording.runs)} runs; a saving needs {MIN_FITTED} to fit at least"
        )
    fit = fit_runs(Workload.of_recording(recording), recording.runs)
    baseline, *others = recording.runs
    planner = CoveredPlanner.of_fit(fit)
    # Where the baseline's own tail is short, its plan is predicted a little slower than it ran.
    time_s = max(
        baseline.iterations.mean_s, planner.judged(planner.recorded[0]).predicted.iteration_time_s
    )
    free = planner.free(time_s)
    fastest = min(
        (run for run in others if run.name != ENVPIPE), key=lambda run: run.iterations.mean_s
    )
    return PredictedSaving(
        recording=recording,
        planner=planner,
        errors=errors_of(fit, report),
        baseline=baseline,
        free=free,
        within=planner.within(time_s, free),
        compared=(fastest, *(run for run in others if run.name == ENVPIPE)),
        standard_error_s=median(run.iterations.standard_error_s for run in recording.runs),
    )


def saving_document(saving: PredictedSaving) -> dict[str, Any]:
    """Return the part that `--saving` adds to the document."""
    return {
        "baseline": saving.baseline.name,
        "measured": [
            {
                "name": run.name,
                "saving_percent": saving.saving_percent(run.energy_j),
                "slowdown_percent": saving.slowdown_percent(run.iterations.mean_s),
            }
            for run in saving.compared
        ],
        "predicted": {
            "free": _plan_document(saving, saving.free),
            "within": _plan_document(saving, saving.within),
        },
        "max_leverage": MAX_LEVERAGE,
    }


def _plan_document(saving: PredictedSaving, plan: JudgedPlan | None) -> dict[str, Any] | None:
    if plan is None:
        return None
    document: dict[str, Any] = {"covered": plan.is_covered, "leverage": plan.leverage}
    if plan.is_covered:
        percent = saving.saving_percent(plan.predicted.energy_j)
        half_width = saving.saving_half_width(plan)
        slower, slower_half_width = (
            saving.slowdown_percent(plan.predicted.iteration_time_s),
            saving.slowdown_half_width(plan),
        )
        document |= {
            "saving_percent": percent,
            "saving_percent_interval": [percent - half_width, percent + half_width],
            "slowdown_percent": slower,
            "slowdown_percent_interval": [slower - slower_half_width, slower + slower_half_width],
            "clocks_mhz": saving.fit.workload.clocks_of(plan.clocks),
        }
    return document


def saving_text(saving: PredictedSaving) -> str:
    """Return the predicted saving as text."""
    origin = saving.recording.origin
    lines = [
        f"against {saving.baseline.name}, {origin}; fitted on all {len(saving.fit.fitted)} runs",
        f"{'':34}  {'energy saved':>20}  {'time':>20}",
    ]
    lines += [
        f"{f'{run.name}, {origin}':34}  {saving.saving_percent(run.energy_j):18.2f} %"
        f"  {saving.slowdown_percent(run.iterations.mean_s):+18.2f} %"
        for run in saving.compared
    ]
    if saving.within is not saving.free:
        lines.append(_plan_line(saving, "Flyball, any measured clock, predicted", saving.free))
    lines.append(_plan_line(saving, "Flyball, within the fit, predicted", saving.within))
    return "\n".join(lines)


def _plan_line(saving: PredictedSaving, name: str, plan: JudgedPlan | None) -> str:
    if plan is None:
        return f"{name:34}  none found"
    if not plan.is_covered:
        return (
            f"{name}: not covered: leverage {plan.leverage:.3g} times the"
            f" largest recorded run's, at most {MAX_LEVERAGE:g}"
        )
    return (
        f"{name:34}  {saving.saving_percent(plan.predicted.energy_j):9.2f}"
        f" +-{saving.saving_half_width(plan):5.2f} %"
        f"  {saving.slowdown_percent(plan.predicted.iteration_time_s):+10.2f}"
        f" +-{saving.slowdown_half_width(plan):5.2f} %"
    )
