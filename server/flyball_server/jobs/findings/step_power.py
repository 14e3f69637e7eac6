"""Reconciler of a target `power:` in jobs whose steps have clocks of their own.

A step's deadline is its time at the highest clocks times a ratio that the plan was made with. The
plan meets the target for the work of an average step; the steps' mean power is another, since
their bubbles and slowest pipelines differ. It is measured over blocks of steps, and the ratio of
the next version corrected by it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from flyball_pipeline.errors import PipelineError
from flyball_profiles.stage_profile import StageProfile
from flyball_server.jobs.findings.step_plans import StepPlanReconciler
from flyball_server.jobs.findings.stragglers import DetectionWindow
from flyball_server.jobs.loop_state import JobLoopState
from flyball_server.jobs.measurements.announced_work import deadline_ratio
from flyball_server.jobs.measurements.step_reading import gpus_over_profile
from flyball_server.jobs.planning_inputs import StepPower, WorkModel
from flyball_server.jobs.records import JobRecord
from flyball_server.jobs.step_records import StepTotals
from flyball_server.jobs.store.sql.job_reader import JobReader
from flyball_server.planning.documents.predicted_timeline import planned_models
from flyball_wire.plans.plan import Plan
from flyball_wire.targets import parse_target

# Number of steps of a block. A change is made after one block, each later change after twice as
# many, up to 2^4.
BLOCK_STEPS = 32
_MOST_DOUBLINGS = 4
# Share by which the mean power may miss its target, and the number of its standard errors. Both
# double with each change after the fourth, up to four times as much, so that chance and coarse
# clocks make changes come to an end.
LEAST_MISS, _STANDARD_ERRORS = 0.005, 2.0
_MOST_LIMIT_DOUBLINGS = 2
# Exponent of the ratio by which power falls while only one ratio was measured, and its range where
# two were. It is 1 where steps get longer at the same energy.
_EXPONENT, _EXPONENTS = 2.0, (1.0, 4.0)
_RATIO_DIGITS, _SAME_RATIO = 4, 2e-4


class StepPowerReconciler(StepPlanReconciler):
    """Reconciler that corrects the deadlines of steps where their mean power misses its target."""

    pause_steps = BLOCK_STEPS
    why = "its steps' mean power was compared"

    def concerns(self, job: JobRecord, loop_state: JobLoopState, work: WorkModel) -> bool:
        """Return whether the job has a target `power:`, and measured work."""
        target = loop_state.planned_inputs.target or job.spec.target
        return parse_target(target).kind == "power" and work.num_microbatches > 0

    def found(
        self,
        reader: JobReader,
        job: JobRecord,
        loop_state: JobLoopState,
        seen: DetectionWindow,
        now_unix_s: float,
    ) -> JobLoopState:
        """Return the loop state with the correction that the newest steps show."""
        del now_unix_s
        plan = reader.require_plan(job.job_id, seen.version).plan
        known = loop_state.step_power
        if known is None or known.target != plan.target:
            known = StepPower(target=plan.target, factor=1.0 if known is None else known.factor)
        num_steps = BLOCK_STEPS * 2 ** min(known.num_changes, _MOST_DOUBLINGS)
        steps = reader.list_step_totals(
            job.job_id,
            after_step=max(seen.newest_step - num_steps, seen.first_step),
            limit=num_steps,
        )
        num_ranks, profile = job.spec.num_expected_ranks, reader.find_profile(job.job_id)
        usable = [
            step
            for step in steps
            if step.num_ranks == step.num_with_plan == num_ranks
            and step.lowest_version == step.newest_version == seen.version
            and step.energy_j is not None
        ]
        if profile is None or 2 * len(usable) < num_steps:
            return loop_state
        measured = _power_of(usable)
        if measured is None:
            return loop_state
        power_w, error = measured
        power_w /= gpus_over_profile(profile, num_ranks)
        return loop_state.evolve(step_power=corrected(known, plan, profile, power_w, error))


def corrected(
    known: StepPower, plan: Plan, profile: StageProfile, power_w: float, error: float
) -> StepPower:
    """Return the correction after a measurement; the same where it is good enough.

    Args:
        known: correction that the measured steps ran with.
        plan: their plan.
        profile: the job's profile.
        power_w: mean power of the GPUs of the profile, W.
        error: standard error of that, as a share.
    """
    share = power_w / parse_target(plan.target).value
    ratio = deadline_ratio(plan, known)
    doublings = min(max(known.num_changes - _MOST_DOUBLINGS, 0), _MOST_LIMIT_DOUBLINGS)
    if abs(math.log(share)) <= 2**doublings * max(LEAST_MISS, _STANDARD_ERRORS * error):
        return replace(known, least_power_w=None)
    longest = _longest_ratio(plan, profile)
    moved = ratio * share ** (1 / _exponent(known, ratio, share))
    wanted = round(min(max(moved, 1.0), longest), _RATIO_DIGITS)
    if math.isclose(wanted, ratio, rel_tol=_SAME_RATIO):
        # Power below the target at the highest clocks is as it should be.
        return replace(known, least_power_w=round(power_w, 1) if share > 1 else None)
    return replace(
        known,
        factor=wanted / deadline_ratio(plan),
        before=(ratio, share),
        num_changes=known.num_changes + 1,
        least_power_w=None,
    )


def _exponent(known: StepPower, ratio: float, share: float) -> float:
    """Return by which power of the ratio the steps' mean power falls."""
    if known.before is None:
        return _EXPONENT
    ratio_before, share_before = known.before
    change = math.log(ratio / ratio_before)
    if not change:
        return _EXPONENT
    low, high = _EXPONENTS
    return min(max(-math.log(share / share_before) / change, low), high)


def _longest_ratio(plan: Plan, profile: StageProfile) -> float:
    """Return the ratio from which on all instructions run at their least-energy clocks."""
    try:
        model, _ = planned_models(profile, plan)[0]
    except PipelineError:
        return 1.0
    ratios = [1.0]
    for stage, points in zip(model.dag.stage, model.points, strict=True):
        power_w = model.stage_blocking_power_w[stage]
        least = min(points, key=lambda each: each.energy_j - power_w * each.time_s)
        ratios.append(least.time_s / points[0].time_s)
    return round(max(ratios), _RATIO_DIGITS)


def _power_of(steps: Sequence[StepTotals]) -> tuple[float, float] | None:
    """Return the mean power in W and its standard error as a share; None: it is not known."""
    energies_j = [step.energy_j for step in steps if step.energy_j is not None]
    times_s = [step.time_s for step in steps]
    if len(energies_j) < max(len(steps), 2) or min(energies_j) < 0 or sum(energies_j) <= 0:
        return None
    num, energy_j = len(steps), math.fsum(energies_j)
    power_w = energy_j / math.fsum(times_s)
    deviations_j = [one - power_w * time_s for one, time_s in zip(energies_j, times_s, strict=True)]
    error_j = math.sqrt(math.fsum(deviation_j**2 for deviation_j in deviations_j) * num / (num - 1))
    return power_w, error_j / energy_j
