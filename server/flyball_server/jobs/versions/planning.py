"""Snapshot of what a job's planning depends on, and the outcome that a request waits for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flyball_server.jobs.errors import (
    JobsError,
    PlannerFaultError,
    PlanningFailedError,
    UnknownJobError,
)
from flyball_server.jobs.job_state import OVER, JobInput
from flyball_server.jobs.loop_state import BROKEN, JobLoopState
from flyball_server.jobs.records import JobRecord, NewestVersion, RankRecord
from flyball_server.jobs.services import JobServices
from flyball_server.jobs.store.sql.job_reader import JobReader
from flyball_server.jobs.wanted.wanted import Standing, Wanted, standing, wanted


@dataclass(frozen=True, kw_only=True)
class PlanningSnapshot:
    """Facts about a job that decide what it should run, read in one transaction."""

    job: JobRecord
    #: Ranks registered so far; empty while no rank is slow.
    ranks: tuple[RankRecord, ...]
    findings: JobLoopState
    #: Digest of the profile; None: none yet.
    profile: str | None
    newest: NewestVersion | None

    def wanted(self, services: JobServices) -> Wanted:
        """Return what the job should run now."""
        return wanted(
            self.job,
            self.ranks,
            self.findings,
            services.now(),
            profile=self.profile,
            gpu_table=services.gpu_window,
        )

    def standing(self, services: JobServices, target: Wanted | None = None) -> Standing:
        """Return where the job stands against what it should run."""
        target = target or self.wanted(services)
        return standing(target, self.newest, self.findings, services.now().timestamp())

    def is_planned(self, services: JobServices) -> bool:
        """Return whether its newest version is what it should run."""
        return self.standing(services) == Standing()

    def is_being_planned(self, services: JobServices) -> bool:
        """Return whether planning runs, or starts as soon as a planner is available."""
        return self.job.problem is None and not self.standing(services).is_settled(self.job)


def read_planning(reader: JobReader, job: JobRecord) -> PlanningSnapshot:
    """Return the facts about this job, in the caller's transaction."""
    findings = reader.find_loop_state(job.job_id)
    is_slow = bool(findings.stragglers or findings.detected)
    return PlanningSnapshot(
        job=job,
        ranks=reader.list_ranks(job.job_id) if is_slow else (),
        findings=findings,
        profile=reader.profile_digest(job.job_id),
        newest=reader.newest_version(job.job_id),
    )


def answer_together(
    services: JobServices, job_id: str, asked_by: Sequence[JobInput]
) -> tuple[bool | JobsError, ...]:
    """Return the answer for each of several callers, from one snapshot.

    Raises:
        UnknownJobError: the job does not exist.
    """
    with services.store.reading() as reader:
        job = reader.find_job(job_id)
        if job is None:
            raise UnknownJobError(job_id=job_id)
        snapshot = read_planning(reader, job)
    return tuple(answer(services, snapshot, each) for each in asked_by)


def answer(
    services: JobServices, snapshot: PlanningSnapshot, asked_by: JobInput
) -> bool | PlanningFailedError | PlannerFaultError:
    """Return whether the job is planned from its current inputs, or the failure.

    A failure is reported to the caller of the input that was changed last, not to a rank that
    repeats an older version.
    """
    job, stands = snapshot.job, snapshot.standing(services)
    if not stands.is_settled(job):
        return False
    failure = stands.failure
    if failure is None or job.changed_input != asked_by or job.state in OVER:
        return True
    if failure.problem == BROKEN:
        return PlannerFaultError(job_id=job.job_id)
    return PlanningFailedError(failure.field or "", failure.problem or "")
