"""Use cases that store a job's planning inputs, its profile and its target; the loop plans."""

from __future__ import annotations

from dataclasses import replace

from flyball_profiles.stage_profile import StageProfile
from flyball_server.jobs.conditions.changes import ProfiledConditions, changed_conditions
from flyball_server.jobs.errors import InvalidFieldError
from flyball_server.jobs.findings.noting import note_findings
from flyball_server.jobs.job_state import JobInput
from flyball_server.jobs.registry.inspection import (
    JobSummary,
    summarise,
)
from flyball_server.jobs.registry.spec_checks import check_spec
from flyball_server.jobs.services import JobServices
from flyball_server.jobs.store.sql.job_writer import JobWriter
from flyball_wire.plan_options import TargetChange


def put_profile(services: JobServices, job_id: str, profile: StageProfile) -> JobSummary:
    """Store the profile that the job is planned from; the same again changes nothing.

    A lost solver is tried again at once.

    Raises:
        UnknownJobError: the job does not exist.
        InvalidFieldError: the profile has another number of stages.
    """
    with services.store.writing(job_id) as writer:
        job = writer.require_job(job_id)
        if profile.num_stages != job.spec.num_stages:
            raise InvalidFieldError(
                "profile",
                f"has {profile.num_stages} stages, but the job has {job.spec.num_stages}",
            )
        if writer.find_profile(job_id) != profile:
            writer.save_profile(job_id, profile)
            # They were measured against the profile before.
            writer.save_loop_state(writer.find_loop_state(job_id).without_measured())
            _compare_conditions(services, writer, job_id, profile)
            job = job.with_change(JobInput.PROFILE)
            writer.save_job(job)
        summary = summarise(writer, job)
    note_findings(services, job_id, lambda _, findings: findings.with_lost_due())
    services.enqueue_reconcile(job_id)
    return summary


def _compare_conditions(
    services: JobServices, writer: JobWriter, job_id: str, profile: StageProfile
) -> None:
    """Note whether the profile holds for the job's ranks, before it is planned from."""
    profiled, ranks = ProfiledConditions.of(profile), writer.list_ranks(job_id)
    changed = changed_conditions(profiled, ranks, services.now().timestamp())
    writer.save_loop_state(writer.find_loop_state(job_id).evolve(changed=changed))


def change_target(services: JobServices, job_id: str, change: TargetChange) -> JobSummary:
    """Store the job's new planning options; the same again changes nothing.

    Raises:
        UnknownJobError: the job does not exist.
        InvalidFieldError: a name is unknown.
    """
    with services.store.writing(job_id) as writer:
        job = writer.require_job(job_id)
        given = {name: value for name, value in vars(change).items() if value is not None}
        spec = replace(job.spec, **given)
        if spec != job.spec:
            check_spec(spec, services.gpu_window)
            problem = job.problem
            job = job.with_change(JobInput.TARGET, spec=spec)
            if not writer.has_profile(job_id):
                # The refusal of profiling stands until there is a profile to plan from.
                job = job.evolve(problem=problem)
            writer.save_job(job)
        summary = summarise(writer, job)
    note_findings(services, job_id, lambda _, findings: findings.with_lost_due())
    services.enqueue_reconcile(job_id)
    return summary
