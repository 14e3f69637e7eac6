"""Use case: the predicted iteration of a job's plan version, to be drawn."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from flyball_server.jobs.errors import (
    MissingPlanError,
    MissingProfileError,
    TimelineTooLongError,
    UndrawablePlanError,
    UnknownPlanError,
)
from flyball_server.jobs.registry.inspection import JobSummary, require_job, require_plan, summarise
from flyball_server.jobs.replanning.slowed_plan import planned_slowdowns
from flyball_server.jobs.services import JobServices
from flyball_server.jobs.store.contract import JobReader
from flyball_server.planning.documents.predicted_timeline import (
    PredictedTimeline,
    job_timeline,
    own_dp_ranks,
)
from flyball_server.planning.errors import PlanningError
from flyball_server.planning.plan import DataParallelPlan, FrequencyPlan
from flyball_server.planning.probe_plan import ProbePlan
from flyball_server.planning.stragglers.slowed_pipelines import Slowdown

# Four times 64 stages and 256 microbatches: some 2.5 MB compressed, and 6 s of a core.
MAX_INSTRUCTIONS = 131_072


@dataclass(frozen=True, kw_only=True)
class TimelineKey:
    """All that a version's timeline depends on; a version itself never changes.

    Attributes:
        created_at: of the job: another run of its name has other plans.
        inputs_revision: of the job: its profile changes only with it.
        emulated: whether the job's GPUs are.
        slowdowns, num_pipelines: that the newest plan was made for; older ones may differ.
    """

    job_id: str
    created_at: datetime
    inputs_revision: int
    version: int
    emulated: bool
    slowdowns: tuple[Slowdown, ...]
    num_pipelines: int


@dataclass(frozen=True, kw_only=True)
class PlanTimeline:
    """A version's iteration and that of the highest clocks in the same order, predicted.

    Attributes:
        is_as_planned: whether it gives the time and energy that the version was planned with.
        dp_ranks: of each of the timelines' pipelines, the lowest that it stands for.
    """

    key: TimelineKey
    schedule: str
    num_microbatches: int
    is_as_planned: bool
    dp_ranks: tuple[int, ...]
    plan: PredictedTimeline
    baseline: PredictedTimeline


def timeline_key(services: JobServices, job_id: str, version: int | None) -> TimelineKey:
    """Return what the timeline of a version depends on now.

    Args:
        services: the seams.
        job_id: of a job.
        version: None: the active one; before there is one, the newest.

    Raises:
        UnknownJobError: no such job.
        UnknownPlanError: no such version.
        MissingPlanError: no version was named, and there is none yet.
    """
    with services.store.reading() as reader:
        return _key(reader, job_id, version)


def get_timeline(services: JobServices, job_id: str, version: int | None) -> PlanTimeline:
    """The timeline of a version; of a long one it takes seconds.

    Raises:
        UnknownJobError, UnknownPlanError, MissingPlanError: as for `timeline_key`.
        UndrawablePlanError: the version was made to learn from, or the job's profile does not
            fit it.
        MissingProfileError: the job has no profile.
        TimelineTooLongError: the version has more than MAX_INSTRUCTIONS.
    """
    with services.store.reading() as reader:
        key = _key(reader, job_id, version)
        plan = require_plan(reader, job_id, key.version).plan
        profile = reader.find_profile(job_id)
    if isinstance(plan, ProbePlan):
        problem = "it was made to learn from; its clocks change from step to step"
        raise UndrawablePlanError(job_id=job_id, version=key.version, problem=problem)
    if profile is None:
        raise MissingProfileError(job_id=job_id)
    _check_length(job_id, key.version, plan)
    try:
        timeline, is_as_planned = job_timeline(
            profile, plan, slowdowns=key.slowdowns, num_pipelines=key.num_pipelines
        )
    except PlanningError as error:
        problem = f"the job's profile does not fit it: {error}"
        raise UndrawablePlanError(job_id=job_id, version=key.version, problem=problem) from error
    return PlanTimeline(
        key=key,
        schedule=plan.schedule,
        num_microbatches=plan.num_microbatches,
        is_as_planned=is_as_planned,
        dp_ranks=own_dp_ranks(plan),
        plan=timeline,
        baseline=timeline.baseline(),
    )


def _key(reader: JobReader, job_id: str, version: int | None) -> TimelineKey:
    summary = summarise(reader, require_job(reader, job_id))
    job = summary.job
    return TimelineKey(
        job_id=job_id,
        created_at=job.created_at,
        inputs_revision=job.inputs_revision,
        version=_version(summary, version),
        emulated=job.in_force.emulated or any(rank.emulated for rank in summary.ranks),
        slowdowns=planned_slowdowns(reader.find_loop_state(job_id).planned_for, summary.ranks),
        num_pipelines=1 + max((rank.dp_rank for rank in summary.ranks), default=0),
    )


def _version(summary: JobSummary, asked: int | None) -> int:
    job_id = summary.job.job_id
    if asked is not None:
        if all(entry.version != asked for entry in summary.activations):
            raise UnknownPlanError(job_id=job_id, version=asked)
        return asked
    chosen = summary.active_version or summary.newest_version
    if chosen is None:
        raise MissingPlanError(job_id=job_id)
    return chosen


def _check_length(job_id: str, version: int, plan: FrequencyPlan | DataParallelPlan) -> None:
    pipelines = [plan] if isinstance(plan, FrequencyPlan) else plan.pipelines
    length = sum(len(stage) for pipeline in pipelines for stage in pipeline.stages)
    if length > MAX_INSTRUCTIONS:
        raise TimelineTooLongError(
            job_id=job_id, version=version, length=length, most=MAX_INSTRUCTIONS
        )
