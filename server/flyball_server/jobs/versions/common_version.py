"""One plan version for all ranks of a start, for clients that fetch a plan once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flyball_server.jobs.errors import JobsError, UnknownRankError, UnplannedJobError
from flyball_server.jobs.records import JobRecord, PlanRecord, RankRecord
from flyball_server.jobs.registry.inspection import newest_version, require_job, require_plan
from flyball_server.jobs.registry.rank_batch import RankBatch
from flyball_server.jobs.services import JobServices
from flyball_server.jobs.store.sql.job_reader import JobReader
from flyball_server.jobs.store.sql.job_writer import JobWriter
from flyball_server.jobs.versions.rank_plans import rank_instructions
from flyball_server.planning.plan import PlannedInstruction


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
        if _version(reader, require_job(reader, job_id)) is None:
            batch = RankBatch(reader, job_id, ranks)
            return tuple(_part(batch, None, rank) for rank in ranks)
    with services.store.writing(job_id) as writer:
        job = require_job(writer, job_id)
        version = _version(writer, job)
        plan = None if version is None else require_plan(writer, job_id, version)
        batch = RankBatch(writer, job_id, ranks)
        parts = tuple(_part(batch, plan, rank) for rank in ranks)
        batch.save(writer)
        is_named = plan is not None and _name_first_step(writer, job, plan)
    if is_named:
        services.notify_pollers(job_id)
        services.enqueue_reconcile(job_id)
    return parts


def _version(reader: JobReader, job: JobRecord) -> int | None:
    held = [
        rank.acknowledged_version
        for rank in reader.list_ranks(job.job_id)
        if rank.acknowledged_version is not None and not rank.has_left
    ]
    if held:
        return min(held)
    if job.problem is not None:
        raise UnplannedJobError(job_id=job.job_id, problem=job.problem)
    if job.planned_revision != job.inputs_revision:
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
