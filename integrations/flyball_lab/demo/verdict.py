"""Verdict of the demo: success, or the first condition that failed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import fmean, median

from flyball_client.gpu.emulated import COUNTER_PERIOD_S
from flyball_lab.demo.options import DemoOptions, demo_blocking_power_w
from flyball_lab.demo.run_folder import ClocksOfStep, DemoFailedError
from flyball_wire.measurements import JobStep
from flyball_wire.messages import JobView, PlanView
from flyball_wire.read_models import TimelineOfPlan

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
    """The steps of one phase of the run, without its warm-up; time and energy are emulated."""

    num_steps: int
    #: Median in s: a single step in which the computer was busy elsewhere does not count.
    iteration_time_s: float
    #: Mean in s, which the energy belongs to.
    mean_time_s: float
    #: Mean over the steps, summed over the ranks, in J.
    energy_j: float
    #: Instructions whose computation outlasted its emulated time.
    num_overruns: int
    #: Instructions that were not in the plan.
    num_unplanned: int


@dataclass(frozen=True, kw_only=True)
class Phase:
    """Baseline or plan, measured and predicted."""

    name: str
    measured: Measurement
    predicted_time_s: float
    predicted_energy_j: float
    #: Power of all ranks while they wait, W.
    blocking_power_w: float

    @property
    def own_energy_j(self) -> float:
        """Measured energy without that of ranks that waited for a busy computer, J."""
        late_s = max(0.0, self.measured.mean_time_s - self.predicted_time_s)
        return self.measured.energy_j - late_s * self.blocking_power_w

    @property
    def slower_percent(self) -> float:
        """Excess of the measured iteration time over the predicted one in %."""
        return error_percent(self.measured.iteration_time_s, self.predicted_time_s)


@dataclass(frozen=True, kw_only=True)
class DemoResult:
    """Result of a demo run."""

    #: State at the planner in the end.
    job: JobView
    #: The plan that the ranks ran.
    plan: PlanView
    #: Predicted iteration on the plan.
    timeline: TimelineOfPlan
    measured_baseline: Measurement
    measured_plan: Measurement
    #: Clocks requested of each rank's device, per step from 0.
    witnessed: Mapping[int, Sequence[ClocksOfStep]]
    #: The steps that ran on the plan.
    planned_steps: Sequence[int]
    #: Loss of each step.
    losses: Sequence[float]

    @property
    def phases(self) -> tuple[Phase, Phase]:
        """Baseline and plan."""
        document = self.plan.plan
        power_w = demo_blocking_power_w() * len(document["stages"])
        baseline, plan = (
            Phase(
                name=name,
                measured=measured,
                predicted_time_s=float(predicted["iteration_time_s"]),
                predicted_energy_j=float(predicted["energy_j"]),
                blocking_power_w=power_w,
            )
            for name, measured, predicted in (
                ("baseline", self.measured_baseline, document["baseline"]),
                ("plan", self.measured_plan, document),
            )
        )
        return baseline, plan


def measure(
    steps: Sequence[JobStep], *, plan_version: int | None, num_ranks: int, num_steps: int
) -> Measurement:
    """Return the figures of the phase on a plan (None: none) without its first step, the warm-up.

    Raises:
        DemoFailedError: fewer than `num_steps` were measured by all ranks on exactly this plan, or
            a rank could not read its energy.
    """
    found = (s for s in steps if s.num_ranks == num_ranks and s.plan_versions == (plan_version,))
    kept = sorted(found, key=lambda step: step.step)[1:]
    energies_j = [step.energy_j for step in kept if step.energy_j is not None]
    if len(energies_j) < max(len(kept), num_steps):
        where = "at the highest clocks" if plan_version is None else "on the plan"
        raise DemoFailedError(
            f"the planner received {len(energies_j)} of {num_steps} measured steps {where}"
        )
    return Measurement(
        num_steps=len(kept),
        iteration_time_s=median(step.time_s for step in kept),
        mean_time_s=fmean(step.time_s for step in kept),
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
    plan, (baseline, planned) = result.plan, result.phases
    missing = [rank.rank for rank in result.job.ranks if rank.acknowledged_version != plan.version]
    if missing or len(result.job.ranks) < len(plan.plan["stages"]):
        return f"plan {plan.version} was not acknowledged over HTTP by all ranks; not by {missing}"
    if failed := _plan_was_not_applied(plan, planned.measured, result):
        return failed
    if planned.own_energy_j >= baseline.own_energy_j:
        energies = f"{planned.measured.energy_j:.0f} J on the plan"
        return f"no energy was saved: {energies}, {baseline.measured.energy_j:.0f} J without"
    for phase in (baseline, planned):
        energy_off_percent = error_percent(phase.own_energy_j, phase.predicted_energy_j)
        energy_percent = energy_tolerance_percent(phase.measured, len(result.job.ranks))
        time_off_percent = min(0.0, phase.slower_percent)  # for more, see unjudged_time
        time_percent = time_tolerance_percent(options.time_scale)
        for quantity, off_percent, allowed_percent in (
            ("energy", energy_off_percent, energy_percent),
            ("iteration time", time_off_percent, time_percent),
        ):
            if abs(off_percent) > allowed_percent:
                return (
                    f"measured {quantity} of the {phase.name} is {off_percent:+.1f} % from the"
                    f" prediction, and at most {allowed_percent:.1f} % are allowed"
                )
    return None


def unjudged_time(result: DemoResult, options: DemoOptions) -> str | None:
    """Return why times are not judged, as one line; None: they are as predicted.

    Emulated GPUs never compute longer than predicted: what iterations take beyond that is the
    computer's own work, and its waiting for processors that others use.
    """
    baseline, plan = result.phases
    allowed_percent = time_tolerance_percent(options.time_scale)
    relative = (100 + plan.slower_percent) / (100 + baseline.slower_percent)
    for what, percent, at_most_percent in (
        ("of the baseline", baseline.slower_percent, allowed_percent),
        ("of the plan", plan.slower_percent, allowed_percent),
        (
            "of the plan, relative to the baseline's,",
            abs(100 * (relative - 1)),
            COMPARISON_TOLERANCE_PERCENT,
        ),
    ):
        if percent > at_most_percent:
            return (
                f"this computer is too busy to judge time: the iteration time {what} is"
                f" {percent:.1f} % off the prediction, more than the {at_most_percent:.1f} % that"
                " its own work explains; a larger --time-scale helps"
            )
    return None


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
