"""Use cases of clients that report the start of a training, and fetch one plan for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from flyball_server.jobs.errors import (
    JobIsRunningError,
    JobsError,
    UnknownRankError,
    UnplannedJobError,
)
from flyball_server.jobs.lifecycle.job_life import is_gone
from flyball_server.jobs.records import JobRecord, PlanRecord, RankRecord
from flyball_server.jobs.registry.inspection import (
    JobSummary,
    newest_version,
    require_rank,
)
from flyball_server.jobs.registry.rank_batch import RankBatch
from flyball_server.jobs.registry.registration import register_job
from flyball_server.jobs.services import JobServices
from flyball_server.jobs.store.sql.job_reader import JobReader
from flyball_server.jobs.store.sql.job_writer import JobWriter
from flyball_server.jobs.versions.planning import read_planning
from flyball_server.jobs.versions.rank_plans import rank_instructions
from flyball_wire.messages import JobSpec
from flyball_wire.plans.plan import PlannedInstruction


def start_job(
    services: JobServices,
    job_id: str,
    specified: Callable[[JobSpec | None], JobSpec],
    *,
    client: str,
) -> JobSummary:
    """Register a job for a start of its training; the reconcile loop plans it.

    Ranks of an earlier start have left: they do not report it.

    Args:
        services: services of the use cases.
        job_id: ID of the job, registered or new.
        specified: function from the registered specification (None: a new job) to that of this
            start; what it raises is raised, and nothing has changed then.
        client: `client_version` of the ranks of such clients.

    Raises:
        JobIsRunningError: ranks of another client train the job.
        InvalidFieldError, RegistrationConflictError, TooManyJobsError: as `register_job`.
    """
    with services.store.writing(job_id) as writer:
        spec = specified(_registered(writer, job_id))
        ranks, now = writer.list_ranks(job_id), services.now()
        if any(
            rank.client_version != client and not is_gone(rank, now, services.life)
            for rank in ranks
        ):
            raise JobIsRunningError(job_id=job_id)
        writer.save_ranks(rank.evolve(has_left=True, acknowledged_version=None) for rank in ranks)
    stored, _ = register_job(services, job_id, spec)
    services.enqueue_reconcile(job_id)
    return stored


def _registered(reader: JobReader, job_id: str) -> JobSpec | None:
    """Return the job's specification, with the blocking power of its online profiling."""
    job = reader.find_job(job_id)
    if job is None:
        return None
    if job.spec.blocking_power_w is not None:
        return job.spec
    profiling = reader.find_loop_state(job_id).profiling
    power_w = None if profiling is None else profiling.blocking_power_w
    return replace(job.spec, blocking_power_w=power_w)


@dataclass(frozen=True, kw_only=True)
class CommonPart:
    """A rank with its instructions in order of execution."""

    rank: RankRecord
    instructions: tuple[PlannedInstruction, ...]


def hold_common_version(
    services: JobServices, job_id: str, ranks: Sequence[int]
) -> tuple[CommonPart | JobsError | None, ...]:
    """Let ranks hold the version that others of their start hold, or else the newest.

    Once all hold it, it applies from step 0.

    Returns:
        For each: its part of the plan; None: the job has no plan of its current inputs yet; or the
        error.

    Raises:
        UnknownJobError: the job does not exist.
        UnplannedJobError: planning has failed.
    """
    with services.store.reading() as reader:
        if _version(services, reader, reader.require_job(job_id)) is None:
            batch = RankBatch(reader, job_id, ranks)
            return tuple(_part(batch, None, rank) for rank in ranks)
    with services.store.writing(job_id) as writer:
        job = writer.require_job(job_id)
        version = _version(services, writer, job)
        plan = None if version is None else writer.require_plan(job_id, version)
        batch = RankBatch(writer, job_id, ranks)
        parts = tuple(_part(batch, plan, rank) for rank in ranks)
        batch.save(writer)
        is_named = plan is not None and _name_first_step(writer, job, plan)
    if is_named:
        services.notify_pollers(job_id)
        services.enqueue_reconcile(job_id)
    return parts


def _version(services: JobServices, reader: JobReader, job: JobRecord) -> int | None:
    held = [
        rank.acknowledged_version
        for rank in reader.list_ranks(job.job_id)
        if rank.acknowledged_version is not None and not rank.has_left
    ]
    if held:
        return min(held)
    if job.problem is not None:
        raise UnplannedJobError(job_id=job.job_id, problem=job.problem)
    if not read_planning(reader, job).standing(services).is_settled(job):
        return None
    return newest_version(reader.list_versions(job.job_id))


def _part(batch: RankBatch, plan: PlanRecord | None, rank: int) -> CommonPart | JobsError | None:
    try:
        record = batch.require(rank)
    except UnknownRankError as error:
        return error
    if plan is None:
        return None
    batch.change(record.evolve(acknowledged_version=plan.version))
    return CommonPart(rank=record, instructions=rank_instructions(plan.plan, record))


def _name_first_step(writer: JobWriter, job: JobRecord, plan: PlanRecord) -> bool:
    num_holding = writer.count_ranks_holding(job.job_id, plan.version)
    if plan.first_step is not None or num_holding != job.spec.num_expected_ranks:
        return False
    writer.name_first_step(job.job_id, plan.version, 0)
    return True


@dataclass(frozen=True, kw_only=True)
class ClaimedSteps:
    """Steps of a rank that does not number them.

    Attributes:
        plan_version: version that the rank holds; None: none.
    """

    first_step: int
    plan_version: int | None


def claim_steps(services: JobServices, job_id: str, rank: int, num_steps: int) -> ClaimedSteps:
    """Number the next steps of a rank, from 0 at its registration.

    Raises:
        UnknownJobError: the job does not exist.
        UnknownRankError: the rank does not exist in the job.
    """
    with services.store.writing(job_id) as writer:
        record = require_rank(writer, job_id, rank)
        first_step = record.current_step or 0
        writer.save_ranks([record.evolve(current_step=first_step + num_steps)])
    return ClaimedSteps(first_step=first_step, plan_version=record.acknowledged_version)
