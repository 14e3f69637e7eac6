"""Use cases of making known: a job, its ranks."""

from __future__ import annotations

from dataclasses import fields

from flyball_server.jobs.bounds import check_count
from flyball_server.jobs.errors import InvalidFieldError, RegistrationConflictError
from flyball_server.jobs.inspection import JobSummary, require_job, summarise
from flyball_server.jobs.job_state import JobInput, JobState
from flyball_server.jobs.plan_request import check_spec
from flyball_server.jobs.planning_turn import plan_if_needed
from flyball_server.jobs.probing_record import is_never_planned
from flyball_server.jobs.records import LAYOUT_FIELDS, JobRecord, JobSpec, RankRecord
from flyball_server.jobs.services import JobServices
from flyball_server.jobs.store import JobReader, JobWriter


def register_job(services: JobServices, job_id: str, spec: JobSpec) -> tuple[JobSummary, bool]:
    """Make a job known; the same again changes nothing.

    A job of which nothing has been planned yet may be registered anew with other values; one
    whose online profiling was refused, to wait for a profile that is put.

    Returns:
        The job, and whether it is new.

    Raises:
        InvalidFieldError: a value cannot be used.
        RegistrationConflictError: the job is planned, or has ranks, that do not fit.
        PlanningFailedError: its profile was there already, and planning it so failed.
    """
    check_spec(spec, services.gpu_window)
    with services.store.writing(job_id) as writer:
        job = writer.find_job(job_id)
        if job is None:
            created = JobRecord(
                job_id=job_id, registered=spec, in_force=spec, created_at=services.now()
            )
            writer.save_job(created)
            return summarise(writer, created), True
        # A rank that restarts sends what it first sent, whatever the target has become since.
        if spec not in (job.registered, job.in_force):
            _register_anew(writer, job, spec)
    return plan_if_needed(services, job_id, JobInput.REGISTRATION), False


def register_rank(services: JobServices, rank: RankRecord) -> RankRecord:
    """Make a rank known; a rank that registers again starts without a plan.

    Raises:
        UnknownJobError: no such job.
        InvalidFieldError: its number, stage or place in the layout is not one of the job's.
    """
    with services.store.writing(rank.job_id) as writer:
        spec = require_job(writer, rank.job_id).in_force
        if rank.rank >= spec.num_ranks:
            raise InvalidFieldError("rank", f"must be 0 to {spec.num_ranks - 1}, not {rank.rank}")
        if rank.stage >= spec.num_stages:
            raise InvalidFieldError(
                "stage", f"must be 0 to {spec.num_stages - 1}, not {rank.stage}"
            )
        # Each stage has a rank at least, and the others may all be of this one.
        most_of_stage = spec.num_ranks - spec.num_stages
        for field in LAYOUT_FIELDS:
            check_count(field, getattr(rank, field), most=most_of_stage)
        writer.save_rank(rank)
    services.notice(rank.job_id)
    return rank


def _register_anew(writer: JobWriter, job: JobRecord, spec: JobSpec) -> None:
    changed = next(
        field.name
        for field in fields(spec)
        if getattr(spec, field.name) != getattr(job.in_force, field.name)
    )
    if not _can_be_registered_anew(writer, job, spec):
        raise RegistrationConflictError(job_id=job.job_id, field=changed)
    _check_ranks_fit(writer, job, spec)
    changed_job = job.with_change(JobInput.REGISTRATION, in_force=spec).evolve(registered=spec)
    is_refused = writer.find_profile(job.job_id) is None
    is_other = is_refused or spec.num_stages != job.in_force.num_stages
    if is_other and job.state is JobState.PLANNING_FAILED:
        # The profile is of another pipeline now; what is left is to wait for the right one.
        writer.delete_profile(job.job_id)
        changed_job = changed_job.moved(JobState.AWAITING_PROFILE)
    writer.save_job(changed_job)


def _can_be_registered_anew(reader: JobReader, job: JobRecord, spec: JobSpec) -> bool:
    """Whether its ranks have been given nothing, or measuring it was refused.

    Then somebody puts the profile: to measure it again takes a job of its own.
    """
    if not reader.list_activations(job.job_id):
        return True
    is_refused = job.state is not JobState.PROFILING and is_never_planned(reader, job.job_id)
    return is_refused and not spec.is_profiled_online


def _check_ranks_fit(reader: JobReader, job: JobRecord, spec: JobSpec) -> None:
    for rank in reader.list_ranks(job.job_id):
        if rank.rank >= spec.num_ranks:
            raise RegistrationConflictError(job_id=job.job_id, field="num_ranks")
        if rank.stage >= spec.num_stages:
            raise RegistrationConflictError(job_id=job.job_id, field="num_stages")
