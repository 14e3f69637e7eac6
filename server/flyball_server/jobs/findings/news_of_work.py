"""News in the work that a job's newest steps announce: it begins, ends, or has other lengths."""

from __future__ import annotations

from dataclasses import replace

from flyball_pipeline.work import StepWork, has_lengths_outside
from flyball_server.jobs.loop_state import JobLoopState, WorkModel
from flyball_server.jobs.measurements.announced_work import (
    forgotten,
    known_lengths,
    no_step_plans,
)
from flyball_server.jobs.records import JobRecord
from flyball_server.jobs.registry.inspection import newest_plan
from flyball_server.jobs.store.sql.job_reader import JobReader
from flyball_server.jobs.versions.rank_plans import large_parts

NOT_ANNOUNCED = "its newest steps announce none"
# A job begins to announce with as many of its newest steps; a single one may be of an earlier run.
_FEWEST_ANNOUNCED, _LOOKED_AT = 4, 8
# It has ended to after as many steps without.
NUM_SILENT_STEPS = 32
# Steps of a version before a job that has ended to announce may begin again; they double each time.
_WAITED_STEPS, _MOST_DOUBLINGS = 16, 8
# All ranks announce the work of their pipeline, and steps have plans where all pipelines do.
_RANK = 0


def new_model(reader: JobReader, job: JobRecord, loop_state: JobLoopState) -> WorkModel | None:
    """Return the work to plan with where the newest steps say other things; None: they do not.

    Only steps of the newest version count, once its delays are measured.
    """
    known, versions = loop_state.work, reader.list_versions(job.job_id)
    if not versions or versions[-1].version != loop_state.timed_version:
        return None
    newest, place = versions[-1], reader.find_fold_place(job.job_id)
    steps = reader.list_steps_of_rank(
        job.job_id,
        _RANK,
        version=newest.version,
        run=0 if place is None else place.run,
        first_step=newest.first_step or 0,
        limit=NUM_SILENT_STEPS,
    )
    works = _works(reader, job.job_id, steps[:_LOOKED_AT])
    announced = [work for work in works.values() if work is not None]
    if known is None or known.problem == NOT_ANNOUNCED:
        if len(announced) < _FEWEST_ANNOUNCED:
            return None
        num_run = steps[_FEWEST_ANNOUNCED - 1] - (newest.first_step or 0)
        return _begun(reader, job) if known is None else _begun_again(reader, job, known, num_run)
    if known.problem is None and not announced and len(works) == _LOOKED_AT:
        works = _works(reader, job.job_id, steps)
        if len(works) == NUM_SILENT_STEPS and not any(works.values()):
            return not_announced(known)
    if known != loop_state.planned_inputs.step_work:
        return None
    is_other = any(has_lengths_outside(each, known_lengths(known)) for each in announced)
    return forgotten(known) if is_other else None


def not_announced(known: WorkModel | None) -> WorkModel | None:
    """Return the model of a job whose steps announce nothing; None: they never did."""
    if known is None or known.problem == NOT_ANNOUNCED:
        return known
    return WorkModel(problem=NOT_ANNOUNCED, num_before=known.num_before + 1)


def _begun(reader: JobReader, job: JobRecord) -> WorkModel:
    """Return work that is not measured yet."""
    plan, profile = newest_plan(reader, job.job_id), reader.find_profile(job.job_id)
    if plan is None or profile is None:
        return WorkModel()
    problem = no_step_plans(plan.plan, job.spec.policy)
    return WorkModel(problem=problem or large_parts(plan.plan, profile, WorkModel()))


def _begun_again(
    reader: JobReader, job: JobRecord, known: WorkModel, num_run: int
) -> WorkModel | None:
    """Return the same of a job that has ended to before; None: too few steps have run since."""
    if num_run < _WAITED_STEPS * 2 ** min(known.num_before, _MOST_DOUBLINGS):
        return None
    return replace(_begun(reader, job), num_before=known.num_before)


def _works(reader: JobReader, job_id: str, steps: tuple[int, ...]) -> dict[int, StepWork | None]:
    """Return what a rank has announced by step, of those whose details are kept."""
    if not steps:
        return {}
    details = reader.list_step_details(job_id, steps[-1], limit=len(steps), ranks=[_RANK])
    return {each.step: each.work for each in details if each.step in steps}
