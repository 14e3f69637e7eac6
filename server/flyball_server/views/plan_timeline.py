"""Use case: the predicted iteration of a job's plan version for the timeline plot."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime

from flyball_pipeline.errors import PipelineError
from flyball_server.jobs.errors import (
    MissingPlanError,
    MissingProfileError,
    TimelineTooLongError,
    UndrawablePlanError,
    UnknownPlanError,
)
from flyball_server.jobs.lifecycle.job_life import is_emulated
from flyball_server.jobs.measurements.step_reading import gpus_over_profile
from flyball_server.jobs.registry.inspection import JobSummary, summarise
from flyball_server.jobs.services import JobServices
from flyball_server.jobs.store.sql.job_reader import JobReader
from flyball_server.planning.documents.predicted_timeline import (
    critical_places,
    job_timeline,
    timeline_rows,
)
from flyball_server.planning.simulated_plan import SimulatedPlan
from flyball_wire.plans.plan import Plan
from flyball_wire.read_models import PlanTimeline, TimelineOfPlan, TimelineRow

# Four times 64 stages and 256 microbatches: some 2.5 MB compressed, and 6 s of a core.
MAX_INSTRUCTIONS = 131_072
# Decimals of times in s and of energies in J, beyond what a plot can show.
_TIME_DECIMALS, _ENERGY_DECIMALS = 6, 3


@dataclass(frozen=True, kw_only=True)
class TimelineKey:
    """Inputs of a version's timeline; a version itself never changes.

    Attributes:
        created_at: creation time of the job: another run of its name has other plans.
        inputs_revision: revision of the job's inputs: its profile changes only with it.
        emulated: true if some of the job's GPUs are emulated.
    """

    job_id: str
    created_at: datetime
    inputs_revision: int
    version: int
    emulated: bool


def timeline_key(services: JobServices, job_id: str, version: int | None) -> TimelineKey:
    """Return the current inputs of a version's timeline.

    Args:
        services: services of the use cases.
        job_id: ID of a job.
        version: plan version; None: the active one, or the newest if none is active yet.

    Raises:
        UnknownJobError: the job does not exist.
        UnknownPlanError: the version does not exist.
        MissingPlanError: no version was given, and none exists yet.
    """
    with services.store.reading() as reader:
        return _key(reader, job_id, version)


def get_timeline(
    services: JobServices, job_id: str, version: int | None
) -> tuple[TimelineKey, PlanTimeline]:
    """Return the timeline of a version, with its key; this takes seconds for a long one.

    Times are rounded to 1e-6 s and energies to 1e-3 J.

    Raises:
        UnknownJobError, UnknownPlanError, MissingPlanError: see `timeline_key`.
        UndrawablePlanError: the version is a probe plan, or the job's profile does not fit it.
        MissingProfileError: the job has no profile.
        TimelineTooLongError: the version has more than MAX_INSTRUCTIONS.
    """
    with services.store.reading() as reader:
        key = _key(reader, job_id, version)
        plan = reader.require_plan(job_id, key.version).plan
        profile = reader.find_profile(job_id)
        num_ranks = reader.require_job(job_id).spec.num_expected_ranks
    if plan.is_probe:
        problem = "it was made to learn from; its clocks change from step to step"
        raise UndrawablePlanError(job_id=job_id, version=key.version, problem=problem)
    if profile is None:
        raise MissingProfileError(job_id=job_id)
    _check_length(job_id, key.version, plan)
    try:
        timeline, is_as_planned = job_timeline(profile, plan)
    except PipelineError as error:
        problem = f"the job's profile does not fit it: {error}"
        raise UndrawablePlanError(job_id=job_id, version=key.version, problem=problem) from error
    scale = gpus_over_profile(profile, num_ranks)
    return key, PlanTimeline(
        job_id=job_id,
        version=key.version,
        emulated=key.emulated,
        is_as_planned=is_as_planned,
        schedule=plan.schedule,
        num_microbatches=plan.num_microbatches,
        plan=_timeline_of_plan(timeline, scale),
        baseline=_timeline_of_plan(timeline.baseline(), scale),
    )


def _key(reader: JobReader, job_id: str, version: int | None) -> TimelineKey:
    summary = summarise(reader, reader.require_job(job_id))
    job = summary.job
    return TimelineKey(
        job_id=job_id,
        created_at=job.created_at,
        inputs_revision=job.inputs_revision,
        version=_version(summary, version),
        emulated=is_emulated(job, summary.ranks),
    )


def _version(summary: JobSummary, asked: int | None) -> int:
    job_id = summary.job.job_id
    if asked is not None:
        if all(entry.version != asked for entry in summary.versions):
            raise UnknownPlanError(job_id=job_id, version=asked)
        return asked
    chosen = summary.active_version or summary.newest_version
    if chosen is None:
        raise MissingPlanError(job_id=job_id)
    return chosen


def _check_length(job_id: str, version: int, plan: Plan) -> None:
    length = sum(len(stage) for pipeline in plan.pipelines for stage in pipeline.stages)
    if length > MAX_INSTRUCTIONS:
        raise TimelineTooLongError(
            job_id=job_id, version=version, length=length, most=MAX_INSTRUCTIONS
        )


def _timeline_of_plan(timeline: SimulatedPlan, scale: float) -> TimelineOfPlan:
    whole = timeline.simulation.whole
    return TimelineOfPlan(
        iteration_time_s=round(whole.iteration_time_s, _TIME_DECIMALS),
        energy_j=round(scale * whole.energy_j, _ENERGY_DECIMALS),
        bubble_fraction=round(whole.bubble_fraction, 6),
        rows=tuple(_rounded_row(row, scale) for row in timeline_rows(timeline)),
        critical_path=critical_places(timeline),
    )


def _rounded_row(row: TimelineRow, scale: float) -> TimelineRow:
    return replace(
        row,
        blocking_power_w=round(scale * row.blocking_power_w, _ENERGY_DECIMALS),
        start_s=_rounded(row.start_s, _TIME_DECIMALS),
        duration_s=_rounded(row.duration_s, _TIME_DECIMALS),
        energy_j=_rounded((scale * energy_j for energy_j in row.energy_j), _ENERGY_DECIMALS),
        float_s=_rounded(row.float_s, _TIME_DECIMALS),
    )


def _rounded(values: Iterable[float], decimals: int) -> tuple[float, ...]:
    return tuple(round(value, decimals) for value in values)
