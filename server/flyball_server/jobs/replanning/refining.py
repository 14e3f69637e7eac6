"""When a plan that was searched for longer takes the place of the one that was made at once."""

from __future__ import annotations

from dataclasses import replace

from flyball_server.jobs.control import InForce, JobControl, MadePlan
from flyball_server.jobs.job_state import JobInput
from flyball_server.jobs.records import JobRecord, PlanRecord
from flyball_server.jobs.registry.inspection import newest_plan
from flyball_server.jobs.replanning.slowed_plan import PacedPlan
from flyball_server.jobs.store.contract import JobReader
from flyball_server.planning.plan import PlanPrediction

# Of energy or of time, predicted: a version that brings less is not worth its way to all ranks.
LEAST_GAIN = 0.001
# Of a certificate's gap, percentage points: a first plan's bound is loose, and how good a plan is
# should be known of one that stays in force.
LEAST_CERTAINTY_PERCENT = 1.0
# Of a job; the oldest are forgotten, and searched for again.
MAX_MADE = 32


def kept_plan(
    reader: JobReader,
    job: JobRecord,
    control: JobControl,
    planned: PacedPlan,
    planned_for: InForce,
) -> PlanRecord | None:
    """The plan that was made at once for the same, where the one that follows is no better.

    Args:
        reader: of the store.
        job: as it stands.
        control: likewise.
        planned: what has been planned now.
        planned_for: what for.
    """
    before = control.planned_for
    is_refined = (
        before.effort is not None
        and _wanted(before) == _wanted(planned_for)
        and job.changed_input is JobInput.CONTROL
        and job.inputs_revision == job.planned_revision + 1  # so nothing else has changed
    )
    first = newest_plan(reader, job.job_id) if is_refined else None
    return None if first is None or _is_better(planned, first) else first


def _wanted(in_force: InForce) -> object:
    slowdowns = {pace.rank: pace.slowdown for pace in in_force.rank_paces if pace.slowdown != 1}
    return in_force.target, slowdowns, in_force.stage_paces


def _is_better(refined: PacedPlan, first: PlanRecord) -> bool:
    """Whether it needs less energy, or time, by enough; or as little, with a better certificate."""
    before, after = first.plan, refined.plan
    return not isinstance(before, PlanPrediction) or (
        after.energy_j < (1 - LEAST_GAIN) * before.energy_j
        or after.iteration_time_s < (1 - LEAST_GAIN) * before.iteration_time_s
        or (after.energy_j <= before.energy_j and _is_surer(after, before))
    )


def _is_surer(after: PlanPrediction, before: PlanPrediction) -> bool:
    """Whether its certificate leaves less open by enough."""
    if after.gap_percent is None or before.gap_percent is None:
        return False
    return after.gap_percent <= before.gap_percent - LEAST_CERTAINTY_PERCENT


def with_planned(
    control: JobControl, planned: PacedPlan, planned_for: InForce, version: int
) -> JobControl:
    """The control once a version stands for what was planned.

    A plan of the job's own effort that came although one at once was asked for needs no refining.
    """
    made = control.made
    if planned.has_own_effort:
        others = [one for one in made if one.digest != planned.digest]
        made = (*others, MadePlan(digest=planned.digest, version=version))[-MAX_MADE:]
        if control.in_force == planned_for:
            control = control.evolve(in_force=replace(planned_for, effort=None))
        planned_for = replace(planned_for, effort=None)
    return control.evolve(planned_for=planned_for, made=made)
