"""Verdict of the demo: success, or the first condition that failed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

from flyball_lab.demo.run_folder import ClocksOfStep
from flyball_wire.messages import JobStep, JobView, PlanView


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """The steps of one phase of the run, without its warm-up.

    Attributes:
        num_steps: steps that the figures are over.
        iteration_time_s: median, emulated s: a step in which the computer was busy elsewhere
            says nothing of the clocks.
        energy_j: mean over the steps, summed over the ranks, emulated J.
        num_overruns: instructions whose computation outlasted its emulated time.
        num_unplanned: instructions that the plan did not expect.
    """

    num_steps: int
    iteration_time_s: float
    energy_j: float
    num_overruns: int
    num_unplanned: int


def steps_of(
    steps: Sequence[JobStep], *, plan_version: int | None, num_ranks: int
) -> list[JobStep]:
    """The steps that all ranks measured on exactly this plan, warm-up included, rising."""
    return sorted(
        (
            step
            for step in steps
            if step.num_ranks == num_ranks and step.plan_versions == (plan_version,)
        ),
        key=lambda step: step.step,
    )


def measure(steps: Sequence[JobStep]) -> Measurement | None:
    """Over one phase's steps; the first is its warm-up and dropped.

    None where nothing is left, or a rank could not read its energy.
    """
    kept = steps[1:]
    energies_j = [step.energy_j for step in kept if step.energy_j is not None]
    if not kept or len(energies_j) < len(kept):
        return None
    return Measurement(
        num_steps=len(kept),
        iteration_time_s=median(step.time_s for step in kept),
        energy_j=fmean(energies_j),
        num_overruns=sum(step.num_overruns for step in kept),
        num_unplanned=sum(step.num_unplanned for step in kept),
    )


TOLERANCE_PERCENT = 3.0


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """Emulated s and J of one iteration, as the planner predicts them."""

    iteration_time_s: float
    energy_j: float


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Baseline and plan, measured and predicted."""

    measured_baseline: Measurement
    measured_plan: Measurement
    predicted_baseline: Prediction
    predicted_plan: Prediction


@dataclass(frozen=True, kw_only=True)
class DemoResult:
    """All that a demo run found out.

    Attributes:
        job: as the planner knew it at the end.
        plan: the plan that the ranks ran; None: none came.
        measured_baseline: at the highest clocks; None: too few steps.
        measured_plan: on the plan; None: too few steps.
        witnessed: per rank and step from 0, what the devices saw (clock_witness.py).
        planned_steps: the steps that ran on the plan.
        losses: of each step.
    """

    job: JobView
    plan: PlanView | None
    measured_baseline: Measurement | None
    measured_plan: Measurement | None
    witnessed: Mapping[int, Sequence[ClocksOfStep]]
    planned_steps: Sequence[int]
    losses: Sequence[float]

    @property
    def comparison(self) -> Comparison | None:
        """None where the plan or a measurement is missing."""
        if self.plan is None or self.measured_baseline is None or self.measured_plan is None:
            return None
        return Comparison(
            measured_baseline=self.measured_baseline,
            measured_plan=self.measured_plan,
            predicted_baseline=_prediction(self.plan.plan["baseline"]),
            predicted_plan=_prediction(self.plan.plan),
        )


def failed_condition(result: DemoResult, *, num_steps: int) -> str | None:
    """The first condition that does not hold, as one line; None: the demo succeeded.

    Args:
        result: what the run found out.
        num_steps: steps that were to be measured in each phase.
    """
    if result.plan is None:
        return "no plan came from the planner"
    not_received = _plan_was_not_received(result.plan, result.job)
    comparison = result.comparison
    if not_received or comparison is None:
        return not_received or "the planner received no measured steps of a whole phase"
    return (
        _steps_are_missing(comparison, num_steps)
        or _plan_was_not_applied(result.plan, comparison, result)
        or _energy_was_not_saved(comparison)
        or _prediction_was_missed(comparison)
    )


def error_percent(measured: float, predicted: float) -> float:
    """Return how far the measured value is above the predicted one, %."""
    return 100 * (measured / predicted - 1)


def _prediction(document: Mapping[str, Any]) -> Prediction:
    return Prediction(
        iteration_time_s=float(document["iteration_time_s"]),
        energy_j=float(document["energy_j"]),
    )


def _plan_was_not_received(plan: PlanView, job: JobView) -> str | None:
    missing = [rank.rank for rank in job.ranks if rank.acknowledged_version != plan.version]
    if missing or len(job.ranks) < len(plan.plan["stages"]):
        return f"plan {plan.version} was not acknowledged over HTTP by all ranks; not by {missing}"
    return None


def _steps_are_missing(comparison: Comparison, num_steps: int) -> str | None:
    for name, measured in (
        ("at the highest clocks", comparison.measured_baseline),
        ("on the plan", comparison.measured_plan),
    ):
        if measured.num_steps < num_steps:
            return f"the planner received {measured.num_steps} of {num_steps} measured steps {name}"
    return None


def _plan_was_not_applied(plan: PlanView, comparison: Comparison, result: DemoResult) -> str | None:
    if comparison.measured_plan.num_unplanned > 0:
        return f"{comparison.measured_plan.num_unplanned} instructions ran outside the plan"
    if not result.planned_steps:
        return "no rank ran a step on the plan"
    for rank, stage in enumerate(plan.plan["stages"]):
        planned = tuple((kind, mhz) for kind, _, mhz, *_ in stage)
        for step in result.planned_steps:
            seen = result.witnessed[rank][step]
            if seen != planned:
                num_right = sum(a == b for a, b in zip(seen, planned, strict=False))
                return (
                    f"the device of rank {rank} saw the planned clock in {num_right}"
                    f" of {len(planned)} instructions of step {step}"
                )
    return None


def _energy_was_not_saved(comparison: Comparison) -> str | None:
    plan_j, baseline_j = comparison.measured_plan.energy_j, comparison.measured_baseline.energy_j
    if plan_j < baseline_j:
        return None
    return f"no energy was saved: {plan_j:.0f} J on the plan, {baseline_j:.0f} J without"


def _prediction_was_missed(comparison: Comparison) -> str | None:
    for name, measured, predicted in (
        ("baseline", comparison.measured_baseline, comparison.predicted_baseline),
        ("plan", comparison.measured_plan, comparison.predicted_plan),
    ):
        for quantity, value, expected in (
            ("iteration time", measured.iteration_time_s, predicted.iteration_time_s),
            ("energy", measured.energy_j, predicted.energy_j),
        ):
            off_percent = error_percent(value, expected)
            if abs(off_percent) > TOLERANCE_PERCENT:
                return (
                    f"measured {quantity} of the {name} is {off_percent:+.1f} % from the"
                    f" prediction, and at most {TOLERANCE_PERCENT:g} % are allowed; on a busy"
                    " computer a larger --time-scale helps"
                )
    return None
