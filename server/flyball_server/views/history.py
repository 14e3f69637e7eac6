"""Use case: the history of a job's plan, every version in a line, without its instructions.

A version's document may hold tens of thousands of instructions and never changes: it is read once
in the life of a planner. The first step of a version is read every time.
"""

from __future__ import annotations

import dataclasses
from datetime import datetime

from flyball_profiles.stage_profile import StageProfile
from flyball_server.jobs.measurements.step_reading import predicted_iteration
from flyball_server.jobs.records import JobRecord, PlanRecord
from flyball_server.jobs.services import JobServices
from flyball_server.jobs.store.sql.job_reader import JobReader
from flyball_server.kit.lru import Lru
from flyball_server.views.plan_facts import mean_stage_clocks_mhz
from flyball_wire.plans.plan import Purpose
from flyball_wire.read_models import PlanKind, PlanSummary

# Limit over all jobs; one of 64 stages takes some 3 KB.
MAX_REMEMBERED = 10_000
# Number of calls that may wait for documents; each occupies a thread.
HISTORIES_AT_ONCE = 4
# Number of documents read in one transaction.
_READ_AT_ONCE = 8


# By the job's creation time and the version.
_Summaries = dict[datetime, dict[int, PlanSummary]]


class HistoryMemory:
    """Cache of plan versions; the least recently requested jobs are dropped.

    Args:
        max_versions: limit of cached versions; all of one job are kept in any case.
    """

    def __init__(self, max_versions: int = MAX_REMEMBERED) -> None:
        self._jobs = Lru[tuple[str, datetime], dict[int, PlanSummary]](max_versions, size_of=len)

    def of_job(self, job: JobRecord) -> dict[int, PlanSummary]:
        """Return a copy of the cached versions of this job; another run of its name has others."""
        return dict(self._jobs.get((job.job_id, job.created_at)) or {})

    def keep(self, job: JobRecord, found: dict[int, PlanSummary]) -> None:
        """Cache these too, dropping the least recently requested jobs."""
        self._jobs.put((job.job_id, job.created_at), self.of_job(job) | found)


def known_summaries(
    services: JobServices, job_id: str, memory: HistoryMemory
) -> tuple[PlanSummary, ...] | None:
    """Return the same as `plan_summaries` if no document has to be read; None otherwise.

    Raises:
        UnknownJobError: the job does not exist.
    """
    return _read_history(services, job_id, memory, {}, num_documents=0)


def plan_summaries(
    services: JobServices, job_id: str, memory: HistoryMemory
) -> tuple[PlanSummary, ...]:
    """Return all versions of a job's plan, rising, in their current state.

    With hundreds of large versions the first call takes long; call it on a thread.

    Raises:
        UnknownJobError: the job does not exist.
    """
    own: _Summaries = {}
    found = None
    while found is None:
        found = _read_history(services, job_id, memory, own, num_documents=_READ_AT_ONCE)
    return found


def _read_history(
    services: JobServices,
    job_id: str,
    memory: HistoryMemory,
    own: _Summaries,
    *,
    num_documents: int,
) -> tuple[PlanSummary, ...] | None:
    """Return the history from one transaction; None: more documents have to be read.

    What this call reads is added to `own`: the cache may have dropped it before the last is
    read.
    """
    with services.store.reading() as reader:
        job = reader.require_job(job_id)
        versions = reader.list_versions(job_id)
        of_call = own.setdefault(job.created_at, {})
        known = memory.of_job(job) | of_call
        unknown = [entry.version for entry in versions if entry.version not in known]
        if unknown and num_documents:
            of_call |= _read(reader, job, unknown[:num_documents])
            memory.keep(job, of_call)
            known |= of_call
    if any(entry.version not in known for entry in versions):
        return None
    return tuple(
        dataclasses.replace(known[entry.version], first_step=entry.first_step) for entry in versions
    )


def _read(reader: JobReader, job: JobRecord, versions: list[int]) -> dict[int, PlanSummary]:
    profile, num_ranks = reader.find_profile(job.job_id), job.spec.num_expected_ranks
    return {
        version: summary_of(reader.require_plan(job.job_id, version), profile, num_ranks)
        for version in versions
    }


def summary_of(record: PlanRecord, profile: StageProfile | None, num_ranks: int) -> PlanSummary:
    """Return the summary of a version.

    Args:
        record: plan version.
        profile: the job's profile; None: no profile.
        num_ranks: number of the job's ranks, whose energy is predicted.
    """
    plan = record.plan
    return PlanSummary(
        version=record.version,
        kind=_kind(record),
        schedule=plan.schedule,
        policy=plan.policy,
        target=plan.target,
        created_at=record.created_at.isoformat(),
        first_step=record.first_step,
        predicted=predicted_iteration(plan, profile, num_ranks),
        stage_clock_mhz=tuple(round(mhz, 3) for mhz in mean_stage_clocks_mhz(plan, profile)),
        highest_mhz=None if profile is None else profile.highest_mhz,
        baseline_cycle=record.baseline_cycle,
    )


def _kind(record: PlanRecord) -> PlanKind:
    if record.purpose in {Purpose.PROBE, Purpose.COMPARISON}:
        return PlanKind(record.purpose)
    return PlanKind.SEPARATE if record.plan.is_separate else PlanKind.PLAN
