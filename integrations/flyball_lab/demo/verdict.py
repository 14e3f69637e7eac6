"""Verdict of the demo: success, or the first condition that failed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import fmean, median
from typing import NamedTuple

from flyball_client.gpu.emulated import COUNTER_PERIOD_S
from flyball_lab.demo.options import DemoOptions
from flyball_lab.demo.run_folder import ClocksOfStep
from flyball_wire.messages import JobStep, JobView, PlanView

TOLERANCE_PERCENT = 3.0
# Share of an iteration, at a time scale of 1, that the computer's own work may take beside the
# emulated instructions; the predictions do not include it. Transfers over gloo, DeepSpeed's
# optimizer and the hooks took 36 to 63 ms of wall time an iteration of 1.65 s on two cores, 2.2 to
# 3.8 %, in both phases and at loads from 1 to 10.
_OWN_WORK_PERCENT = 6.0
# Clock changes cost 0.13 % (tests/integration/test_clock_requests.py), and the computer's own work
# differed by up to 1.1 % between the phases of a run.
COMPARISON_TOLERANCE_PERCENT = 2.0


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """The steps of one phase of the run, without its warm-up.

    Attributes:
        num_steps: number of steps behind the figures.
        iteration_time_s: median in emulated s: a single step in which the computer was busy
            elsewhere does not count.
        energy_j: mean over the steps, summed over the ranks, in emulated J.
        num_overruns: instructions whose computation outlasted its emulated time.
        num_unplanned: instructions that were not in the plan.
    """

    num_steps: int
    iteration_time_s: float
    energy_j: float
    num_overruns: int
    num_unplanned: int


class Prediction(NamedTuple):
    """Emulated time and energy of one iteration, as the planner predicts them."""

    iteration_time_s: float
    energy_j: float


class Phase(NamedTuple):
    """Baseline or plan, measured and predicted."""

    name: str
    measured: Measurement
    predicted: Prediction


@dataclass(frozen=True, kw_only=True)
class DemoResult:
    """Result of a demo run.

    Attributes:
        job: state at the planner in the end.
        plan: the plan that the ranks ran; None: no plan came.
        measured_baseline: steps at the highest clocks; None: too few steps.
        measured_plan: steps on the plan; None: too few steps.
        witnessed: clocks requested of each rank's device, per step from 0.
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
    def phases(self) -> tuple[Phase, Phase] | None:
        """Baseline and plan; None where the plan or a measurement is missing."""
        if self.plan is None or self.measured_baseline is None or self.measured_plan is None:
            return None
        of_baseline, of_plan = (
            Prediction(float(document["iteration_time_s"]), float(document["energy_j"]))
            for document in (self.plan.plan["baseline"], self.plan.plan)
        )
        return (
            Phase("baseline", self.measured_baseline, of_baseline),
            Phase("plan", self.measured_plan, of_plan),
        )


def steps_of(
    steps: Sequence[JobStep], *, plan_version: int | None, num_ranks: int
) -> list[JobStep]:
    """Return the steps that all ranks measured on exactly this plan, warm-up included, rising."""
    return sorted(
        (
            step
            for step in steps
            if step.num_ranks == num_ranks and step.plan_versions == (plan_version,)
        ),
        key=lambda step: step.step,
    )


def measure(steps: Sequence[JobStep]) -> Measurement | None:
    """Return the figures of one phase without its first step, the warm-up.

    None where no step is left, or a rank could not read its energy.
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


def error_percent(measured: float, predicted: float) -> float:
    """Return the excess of the measured value over the predicted one in %."""
    return 100 * (measured / predicted - 1)


def time_tolerance_percent(time_scale: float) -> float:
    """Return the largest excess of a measured iteration time over the predicted one, %."""
    return max(TOLERANCE_PERCENT, _OWN_WORK_PERCENT / time_scale)


def energy_tolerance_percent(measured: Measurement, num_ranks: int) -> float:
    """Return the largest excess of a measured energy over the predicted one, %.

    The energy counter of each rank shows its last movement, at the begin and at the end of the
    phase. The difference of two such errors deviates by the period / sqrt(6); three deviations of
    the mean over the ranks are allowed beside the tolerance.
    """
    deviation_s = COUNTER_PERIOD_S / sqrt(6 * num_ranks)
    phase_s = measured.num_steps * measured.iteration_time_s
    return TOLERANCE_PERCENT + 100 * 3 * deviation_s / phase_s


def failed_condition(result: DemoResult, options: DemoOptions) -> str | None:
    """Return the first condition that does not hold, as one line; None: the demo succeeded."""
    num_steps = options.num_steps
    plan, phases = result.plan, result.phases
    if plan is None:
        return "no plan came from the planner"
    missing = [rank.rank for rank in result.job.ranks if rank.acknowledged_version != plan.version]
    if missing or len(result.job.ranks) < len(plan.plan["stages"]):
        return f"plan {plan.version} was not acknowledged over HTTP by all ranks; not by {missing}"
    if phases is None:
        return "the planner received no measured steps of a whole phase"
    for phase, where in zip(phases, ("at the highest clocks", "on the plan"), strict=True):
        if phase.measured.num_steps < num_steps:
            return (
                f"the planner received {phase.measured.num_steps} of {num_steps} measured steps"
                f" {where}"
            )
    return (
        _plan_was_not_applied(plan, phases[1].measured, result)
        or _energy_was_not_saved(*phases)
        or _prediction_was_missed(
            phases,
            time_percent=time_tolerance_percent(options.time_scale),
            num_ranks=len(plan.plan["stages"]),
        )
        or _iterations_differ(*phases)
    )


def _plan_was_not_applied(plan: PlanView, measured: Measurement, result: DemoResult) -> str | None:
    if measured.num_unplanned > 0:
        return f"{measured.num_unplanned} instructions ran outside the plan"
    if not result.planned_steps:
        return "no rank ran a step on the plan"
    for rank, stage in enumerate(plan.plan["stages"]):
        planned = tuple((kind, mhz) for kind, _, mhz, *_ in stage)
        for step in result.planned_steps:
            witnessed = result.witnessed[rank][step]
            if witnessed != planned:
                num_right = sum(a == b for a, b in zip(witnessed, planned, strict=False))
                return (
                    f"the device of rank {rank} was asked for the planned clock at {num_right} of"
                    f" {len(planned)} instructions of step {step}"
                )
    return None


def _energy_was_not_saved(baseline: Phase, plan: Phase) -> str | None:
    plan_j, baseline_j = plan.measured.energy_j, baseline.measured.energy_j
    if plan_j < baseline_j:
        return None
    return f"no energy was saved: {plan_j:.0f} J on the plan, {baseline_j:.0f} J without"


def _prediction_was_missed(
    phases: Sequence[Phase], *, time_percent: float, num_ranks: int
) -> str | None:
    for name, measured, predicted in phases:
        for quantity, value, expected, allowed_percent in (
            (
                "iteration time",
                measured.iteration_time_s,
                predicted.iteration_time_s,
                time_percent,
            ),
            (
                "energy",
                measured.energy_j,
                predicted.energy_j,
                energy_tolerance_percent(measured, num_ranks),
            ),
        ):
            figure = f"{quantity} of the {name}"
            if missed := _missed(figure, error_percent(value, expected), allowed_percent):
                return missed
    return None


def _iterations_differ(baseline: Phase, plan: Phase) -> str | None:
    measured = plan.measured.iteration_time_s / baseline.measured.iteration_time_s
    predicted = plan.predicted.iteration_time_s / baseline.predicted.iteration_time_s
    return _missed(
        "iteration time of the plan, relative to the baseline's,",
        error_percent(measured, predicted),
        COMPARISON_TOLERANCE_PERCENT,
    )


def _missed(figure: str, off_percent: float, allowed_percent: float) -> str | None:
    if abs(off_percent) <= allowed_percent:
        return None
    return (
        f"measured {figure} is {off_percent:+.1f} % from the prediction, and at most"
        f" {allowed_percent:.1f} % are allowed; on a busy computer a larger --time-scale helps"
    )
