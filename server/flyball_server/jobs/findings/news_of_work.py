"""News in the work that a job's newest steps announce: it begins, ends, or has other lengths."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

from flyball_pipeline.work import StepWork, has_lengths_outside
from flyball_server.jobs.loop_state import JobLoopState
from flyball_server.jobs.measurements.announced_work import (
    forgotten,
    known_lengths,
    no_step_plans,
)
from flyball_server.jobs.planning_inputs import WorkModel
from flyball_server.jobs.records import JobRecord, NewestVersion, RankRecord
from flyball_server.jobs.store.sql.job_reader import JobReader
from flyball_server.jobs.versions.rank_plans import large_parts

NOT_ANNOUNCED = "its newest steps announce none"
# A job begins to announce with as many of its newest steps; a single one may be of an earlier run.
_FEWEST_ANNOUNCED, _LOOKED_AT = 4, 8
# It has ended to after as many steps without.
NUM_SILENT_STEPS = 32
# Steps of a version before a job that has ended to announce may begin again; they double each time.
_WAITED_STEPS, _MOST_DOUBLINGS = 16, 8
# All ranks know the work of their pipeline, and steps have plans where all pipelines announce it: a
# rank of each is asked, of the first ones where there are many.
_ASKED = tuple((0, dp_rank, 0, 0) for dp_rank in range(8))


def new_model(reader: JobReader, job: JobRecord, loop_state: JobLoopState) -> WorkModel | None:
    """Return the work to plan with where the newest steps say other things; None: they do not.

    Only steps of the newest version count, once its delays are measured.
    """
    known, newest = loop_state.work, reader.newest_version(job.job_id)
    if newest is None or newest.version != loop_state.timed_version:
        return None
    place = reader.find_fold_place(job.job_id)
    asked = [
        _NewestSteps(reader, rank, newest, run=0 if place is None else place.run)
        for rank in reader.find_ranks_at(job.job_id, _ASKED)
    ]
    if known is None or known.problem == NOT_ANNOUNCED:
        if not asked or not all(each.are_announced for each in asked):
            return None
        num_run = min(each.num_run for each in asked)
        return _begun(reader, job) if known is None else _begun_again(reader, job, known, num_run)
    if known.problem is None and any(each.are_silent for each in asked):
        return not_announced(known)
    if known != loop_state.planned_inputs.step_work:
        return None
    known_range = known_lengths(known)
    is_other = any(
        has_lengths_outside(work, known_range) for each in asked for work in each.announced
    )
    return forgotten(known) if is_other else None


def not_announced(known: WorkModel | None) -> WorkModel | None:
    """Return the model of a job whose steps announce nothing; None: they never did."""
    if known is None or known.problem == NOT_ANNOUNCED:
        return known
    return WorkModel(problem=NOT_ANNOUNCED, num_before=known.num_before + 1)


def _begun(reader: JobReader, job: JobRecord) -> WorkModel:
    """Return work that is not measured yet."""
    plan, profile = reader.newest_plan(job.job_id), reader.find_profile(job.job_id)
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


class _NewestSteps:
    """Newest steps of a rank on a version, and what it announced for them."""

    def __init__(
        self, reader: JobReader, rank: RankRecord, newest: NewestVersion, *, run: int
    ) -> None:
        self._reader, self._rank, self._run = reader, rank, run
        self._version, self._first_step = newest.version, newest.first_step or 0

    @cached_property
    def announced(self) -> list[StepWork]:
        """Work of the newest steps."""
        return [work for work in self._newest.values() if work is not None]

    @property
    def are_announced(self) -> bool:
        """Return whether enough of the newest steps are announced."""
        return len(self.announced) >= _FEWEST_ANNOUNCED

    @property
    def are_silent(self) -> bool:
        """Return whether none of many steps was announced."""
        if self.announced or len(self._newest) < _LOOKED_AT:
            return False
        works = self._works(self._steps)
        return len(works) == NUM_SILENT_STEPS and not any(works.values())

    @property
    def num_run(self) -> int:
        """Return the number of steps on the version before the newest."""
        return self._steps[_FEWEST_ANNOUNCED - 1] - self._first_step

    @cached_property
    def _steps(self) -> tuple[int, ...]:
        return self._reader.list_steps_of_rank(
            self._rank.job_id,
            self._rank.rank,
            version=self._version,
            run=self._run,
            first_step=self._first_step,
            limit=NUM_SILENT_STEPS,
        )

    @cached_property
    def _newest(self) -> dict[int, StepWork | None]:
        return self._works(self._steps[:_LOOKED_AT])

    def _works(self, steps: tuple[int, ...]) -> dict[int, StepWork | None]:
        """Return what was announced by step, of those whose details are kept."""
        if not steps:
            return {}
        details = self._reader.list_step_details(
            self._rank.job_id, steps[-1], limit=len(steps), ranks=[self._rank.rank]
        )
        return {detail.step: detail.work for detail in details if detail.step in steps}
