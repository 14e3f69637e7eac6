"""Use cases that only read: one job, all jobs, their plans and profiles."""

from __future__ import annotations

from dataclasses import dataclass, replace

from flyball_profiles.stage_profile import EnergyScope, StageProfile
from flyball_server.jobs.conditions.changes import (
    ProfiledConditions,
    condition_notes,
    limit_note,
)
from flyball_server.jobs.errors import (
    MissingProfileError,
    UnknownRankError,
)
from flyball_server.jobs.job_state import OVER
from flyball_server.jobs.lifecycle.job_life import job_notes
from flyball_server.jobs.loop_state import JobLoopState
from flyball_server.jobs.records import JobRecord, PlanRecord, RankRecord
from flyball_server.jobs.savings.energy_scopes import scope_notes
from flyball_server.jobs.services import JobServices
from flyball_server.jobs.store.sql.job_reader import JobReader
from flyball_server.jobs.versions.planning import PlanningSnapshot, read_planning
from flyball_wire.messages import PlanVersion
from flyball_wire.online_profiling import ProfilingResult, ProfilingState, ProfilingStatus
from flyball_wire.targets import LIMIT_TARGET


@dataclass(frozen=True, kw_only=True)
class JobSummary:
    """A job with its ranks and plan versions.

    Attributes:
        newest_version: newest plan version; None: no version yet.
        active_version: newest version with a first step; None: none yet.
        versions: all its versions, rising.
        planning: facts that decide what it should run, its findings among them.
        profile_scope: what the energies of its profile count; None: not known.
        profiled: conditions that its profile was measured under; None: not known.
    """

    job: JobRecord
    ranks: tuple[RankRecord, ...]
    newest_version: int | None
    active_version: int | None
    planning: PlanningSnapshot
    versions: tuple[PlanVersion, ...] = ()
    profile_scope: EnergyScope | None = None
    profiled: ProfiledConditions | None = None

    @property
    def findings(self) -> JobLoopState:
        """Findings about the job."""
        return self.planning.findings

    @property
    def target(self) -> str:
        """Target of its newest plan, or its own."""
        return self.findings.planned_inputs.target or self.job.spec.target


def get_job(services: JobServices, job_id: str) -> JobSummary:
    """Return one job.

    Raises:
        UnknownJobError: the job does not exist.
    """
    with services.store.reading() as reader:
        return summarise(reader, reader.require_job(job_id))


def list_jobs(services: JobServices) -> tuple[JobSummary, ...]:
    """Return all jobs in the order of their creation."""
    with services.store.reading() as reader:
        return tuple(summarise(reader, job) for job in reader.list_jobs())


def list_plans(services: JobServices, job_id: str) -> tuple[PlanRecord, ...]:
    """Return all versions of a job's plan, rising.

    Raises:
        UnknownJobError: the job does not exist.
    """
    with services.store.reading() as reader:
        reader.require_job(job_id)
        return reader.list_plans(job_id)


def get_plan(services: JobServices, job_id: str, version: int) -> PlanRecord:
    """Return one version of a job's plan.

    Raises:
        UnknownJobError: the job does not exist.
        UnknownPlanError: the version does not exist.
    """
    with services.store.reading() as reader:
        reader.require_job(job_id)
        return reader.require_plan(job_id, version)


def get_profiling(services: JobServices, job_id: str) -> ProfilingStatus:
    """Return the progress of a job's online profiling.

    Raises:
        UnknownJobError: the job does not exist.
    """
    with services.store.reading() as reader:
        return profiling_status(reader, reader.require_job(job_id))


def profiling_status(reader: JobReader, job: JobRecord) -> ProfilingStatus:
    """Return the progress of a job's online profiling, in the caller's transaction."""
    stored = reader.find_loop_state(job.job_id).profiling
    result = stored or ProfilingResult(state=ProfilingState.WAITING)
    # An uploaded profile ends the profiling.
    is_open = result.state in {ProfilingState.WAITING, ProfilingState.PROBING}
    is_off = not job.spec.is_profiled_online or (is_open and reader.has_profile(job.job_id))
    return ProfilingStatus(
        **vars(replace(result, state=ProfilingState.OFF) if is_off else result),
        job_id=job.job_id,
        slowdown_limit=job.spec.profiling_slowdown,
        emulated=job.spec.emulated,
    )


def get_profile(services: JobServices, job_id: str) -> StageProfile:
    """Return the job's current profile, uploaded or measured.

    Raises:
        UnknownJobError: the job does not exist.
        MissingProfileError: the job has no profile yet.
    """
    with services.store.reading() as reader:
        reader.require_job(job_id)
        profile = reader.find_profile(job_id)
    if profile is None:
        raise MissingProfileError(job_id=job_id)
    return profile


def summarise(reader: JobReader, job: JobRecord) -> JobSummary:
    """Return the job with its ranks and versions, read in the same transaction."""
    versions = reader.list_versions(job.job_id)
    active = [entry.version for entry in versions if entry.first_step is not None]
    return JobSummary(
        job=job,
        ranks=reader.list_ranks(job.job_id),
        newest_version=newest_version(versions),
        active_version=max(active, default=None),
        planning=read_planning(reader, job),
        versions=versions,
        profile_scope=reader.profile_scope(job.job_id),
        profiled=reader.profiled_conditions(job.job_id),
    )


def notes(services: JobServices, summary: JobSummary) -> tuple[str, ...]:
    """Return a readable line for each pending condition or anomaly of the job."""
    findings = summary.findings
    work_note = findings.work_note
    of_plan = [
        found.text for found in (findings.missed, findings.order_advice) if found is not None
    ]
    of_plan += shape_notes(summary)
    of_plan += [] if work_note is None else [work_note]
    of_plan += _power_notes(summary)
    of_job = job_notes(
        summary.job,
        summary.ranks,
        summary.versions,
        findings.refused,
        is_being_planned=summary.planning.is_being_planned(services),
        now=services.now(),
        times=services.life,
    )
    return (*of_plan, *of_job, *gpu_notes(summary))


def _power_notes(summary: JobSummary) -> list[str]:
    """Return a line where steps with clocks of their own miss a target `power:`."""
    known, inputs = summary.findings.step_power, summary.findings.planned_inputs
    if known is None or known.note is None or inputs.step_work is None:
        return []
    is_asked = summary.target in {known.target, LIMIT_TARGET}
    return [known.note] if is_asked else []


def gpu_notes(summary: JobSummary) -> list[str]:
    """Return a line for each thing about the job's GPUs that is not as profiled."""
    if summary.job.state in OVER:
        return scope_notes(summary.ranks, summary.profile_scope)
    return [
        *limit_note(summary.ranks, summary.target),
        *condition_notes(
            summary.profiled,
            summary.ranks,
            target=summary.target,
            is_profiled_online=summary.job.spec.is_profiled_online,
        ),
        *scope_notes(summary.ranks, summary.profile_scope),
    ]


def shape_notes(summary: JobSummary) -> tuple[str, ...]:
    """Return a line where the steps have another number of microbatches than any plan in force."""
    change = summary.findings.shape_change
    if change is None or (summary.active_version or 0) > change.after_version:
        return ()
    return (f"{change}: no plan for that is in force yet, and no clock is set",)


def newest_version(versions: tuple[PlanVersion, ...]) -> int | None:
    """Return the highest of these versions; None if there is none."""
    return max((entry.version for entry in versions), default=None)


def require_rank(reader: JobReader, job_id: str, rank: int) -> RankRecord:
    """Return the rank of a job.

    Raises:
        UnknownJobError: the job does not exist.
        UnknownRankError: the rank does not exist in the job.
    """
    reader.require_job(job_id)
    record = find_rank(reader, job_id, rank)
    if record is None:
        raise UnknownRankError(job_id=job_id, rank=rank)
    return record


def find_rank(reader: JobReader, job_id: str, rank: int) -> RankRecord | None:
    """Return the rank of a job, or None."""
    return next(iter(reader.find_ranks(job_id, (rank,))), None)
