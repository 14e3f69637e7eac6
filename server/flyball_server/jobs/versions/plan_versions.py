"""Publication of plan versions, independent of the plan's origin."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass

from flyball_server.jobs.errors import (
    InvalidFieldError,
    JobsError,
    OtherStartError,
    UnknownError,
    UnknownPlanError,
)
from flyball_server.jobs.records import PlanRecord
from flyball_server.jobs.registry.inspection import newest_version
from flyball_server.jobs.registry.rank_batch import RankBatch
from flyball_server.jobs.services import JobServices
from flyball_server.jobs.store.sql.job_reader import JobReader
from flyball_server.jobs.store.sql.job_writer import JobWriter
from flyball_server.jobs.versions.rank_plans import check_parts_fit
from flyball_wire.measurements import MeasurementDetail
from flyball_wire.messages import PlanVersion
from flyball_wire.plans.plan import Plan


def add_version(
    services: JobServices,
    writer: JobWriter,
    job_id: str,
    plan: Plan,
    *,
    solve_s: float = 0.0,
    measurement_detail: MeasurementDetail = MeasurementDetail.TOTALS,
    digest: str | None = None,
) -> PlanRecord:
    """Store the plan as the job's next version, inside the caller's transaction.

    After that transaction the caller calls `services.notify_pollers` and
    `services.enqueue_reconcile` with the job.

    Raises:
        InvalidFieldError: Ranks cannot take their parts of it.
    """
    record = PlanRecord(
        job_id=job_id,
        version=1,
        created_at=services.now(),
        solve_s=solve_s,
        plan=plan,
        measurement_detail=measurement_detail,
        digest=digest,
    )
    return add_again(services, writer, record)


def add_again(services: JobServices, writer: JobWriter, record: PlanRecord) -> PlanRecord:
    """Store a version's plan as the job's next version, without a first step.

    Raises:
        InvalidFieldError: Ranks cannot take their parts of it.
    """
    check_parts_fit(record.plan, cycle_length=len(record.baseline_cycle))
    newest = writer.newest_version(record.job_id)
    version = 1 if newest is None else newest.version + 1
    added = record.evolve(version=version, created_at=services.now(), first_step=None)
    writer.add_plan(added)
    return added


_LOG = logging.getLogger(__name__)

# Ranks continue training while the last acknowledgement and its answer are under way: allow some
# steps, and about a second if steps are short.
MARGIN_STEPS = 2
MARGIN_S = 1.0
MAX_MARGIN_STEPS = 50


@dataclass(frozen=True, kw_only=True)
class HeldVersion:
    """Acknowledgement: a rank holds this plan version and is in step `current_step`.

    Attributes:
        start_id: start of the job that it belongs to; None: not reported.
    """

    rank: int
    version: int
    current_step: int
    start_id: str | None = None


def list_versions(services: JobServices, job_id: str) -> tuple[PlanVersion, ...]:
    """Return the first step of each of a job's plan versions, rising.

    Raises:
        UnknownJobError: the job does not exist.
    """
    with services.store.reading() as reader:
        reader.require_job(job_id)
        return reader.list_versions(job_id)


def version_of(versions: tuple[PlanVersion, ...], job_id: str, version: int) -> PlanVersion:
    """Return the entry of this version.

    Raises:
        UnknownPlanError: the version does not exist.
    """
    for found in versions:
        if found.version == version:
            return found
    raise UnknownPlanError(job_id=job_id, version=version)


def acknowledge_together(
    services: JobServices, job_id: str, held: Sequence[HeldVersion]
) -> tuple[PlanVersion | JobsError, ...]:
    """Store that ranks hold versions; once all do, set the version's first step.

    If all do and the existing first step lies further ahead than any that would be set now, the
    run has started over: the plan is added again as a new version, which every rank receives and
    acknowledges in the ordinary way.

    Returns:
        For each: the first step of its version, or the error.
    """
    with services.store.writing(job_id) as writer:
        versions = writer.list_versions(job_id)
        ranks = RankBatch(writer, job_id, (start.rank for start in held))
        outcomes = [_note_held(ranks, job_id, start, versions) for start in held]
        ranks.save(writer)
        noted = {
            start.version for start, error in zip(held, outcomes, strict=True) if error is None
        }
        settled = [v for v in sorted(noted) if _settle(services, writer, job_id, v)]
        if settled:
            versions = writer.list_versions(job_id)
    if settled:
        services.notify_pollers(job_id)
        services.enqueue_reconcile(job_id)
    return tuple(
        version_of(versions, job_id, start.version) if error is None else error
        for start, error in zip(held, outcomes, strict=True)
    )


def margin_steps(iteration_time_s: float) -> int:
    """Return the steps between the last acknowledgement and the new version's first step."""
    if iteration_time_s * MAX_MARGIN_STEPS <= MARGIN_S:
        return MAX_MARGIN_STEPS
    return min(MAX_MARGIN_STEPS, MARGIN_STEPS + math.ceil(MARGIN_S / iteration_time_s))


def _note_held(
    ranks: RankBatch,
    job_id: str,
    held: HeldVersion,
    versions: tuple[PlanVersion, ...],
) -> JobsError | None:
    """Return the error of an acknowledgement, or store it."""
    try:
        ranks.check_start_of(held.rank, held.start_id)
        record = ranks.require(held.rank)
        version_of(versions, job_id, held.version)
        # A late repetition of an older acknowledgement changes nothing.
        if held.version >= (record.acknowledged_version or 0):
            step = held.current_step
            if held.version == record.acknowledged_version:
                # Nor does one of the same: a run that starts over registers first.
                step = max(step, record.current_step or 0)
            changed = record.evolve(acknowledged_version=held.version, current_step=step)
            # Without a start, an earlier process may have sent the departure, which came late. With
            # one it was this process, whose acknowledgement comes late.
            ranks.change(changed.evolve(has_left=record.has_left and record.start is not None))
    except (UnknownError, InvalidFieldError, OtherStartError) as error:
        return error
    return None


def _settle(services: JobServices, writer: JobWriter, job_id: str, version: int) -> bool:
    """Name the first step of a version that all hold, or add it again; return true if done."""
    if not _is_held_by_all(writer, job_id, version):
        return False
    versions = writer.list_versions(job_id)
    found = version_of(versions, job_id, version)
    plan = writer.require_plan(job_id, version)
    first_step = _earliest_first_step(writer, plan)
    if found.first_step is None:
        if any(entry.version > version and entry.first_step is not None for entry in versions):
            return False  # a newer version has been named
        writer.name_first_step(job_id, version, first_step)
        has_work = writer.find_loop_state(job_id).work is not None
        if plan.measurement_detail == MeasurementDetail.TOTALS and not has_work:
            writer.drop_step_details(job_id, first_step)  # nothing reads them again
        return True
    if found.first_step > first_step and version == newest_version(versions):
        _plan_anew(services, writer, plan)
        return True
    return False


def _is_held_by_all(reader: JobReader, job_id: str, version: int) -> bool:
    """Return whether just this version was the last that each rank acknowledged."""
    num_ranks = reader.require_job(job_id).spec.num_expected_ranks
    return reader.count_ranks_holding(job_id, version) == num_ranks


def _earliest_first_step(reader: JobReader, record: PlanRecord) -> int:
    """Return the first step that all ranks surely receive in time, from their current state."""
    newest_step = max(rank.current_step or 0 for rank in reader.list_ranks(record.job_id))
    return newest_step + margin_steps(record.plan.iteration_time_s)


def _plan_anew(services: JobServices, writer: JobWriter, record: PlanRecord) -> None:
    """Add the plan again as the next version, without a first step."""
    # Renaming the old version's step would not do: ranks that acknowledged early have received it
    # already, and request newer versions only.
    anew = add_again(services, writer, record)
    _LOG.info(
        "job %s: the run has started over; plan %d is the same as plan %d",
        record.job_id,
        anew.version,
        record.version,
    )
