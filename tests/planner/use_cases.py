"""Use cases that change what a job is planned from, as routes call them: until it is planned."""

from __future__ import annotations

from flyball_profiles.stage_profile import StageProfile
from flyball_server.jobs.job_state import JobInput
from flyball_server.jobs.reconcile.plans import PlanReconciler
from flyball_server.jobs.registry import inputs, registration
from flyball_server.jobs.registry.inspection import JobSummary, get_job
from flyball_server.jobs.registry.launch import Launch
from flyball_server.jobs.services import JobServices
from flyball_server.jobs.versions.planning import answer
from flyball_wire.messages import JobSpec
from flyball_wire.plan_options import TargetChange

_UNTOLD = Launch()


def planned(services: JobServices, job_id: str, asked_by: JobInput) -> JobSummary:
    """The job once the reconciler has planned it; a refusal is the caller's error."""
    while (found := answer(services, get_job(services, job_id).planning, asked_by)) is not True:
        if found is not False:
            raise found
        with services.store.lock(f"reconcile {job_id}"):
            PlanReconciler()(services, job_id)
    return get_job(services, job_id)


def register_job(
    services: JobServices, job_id: str, spec: JobSpec, launch: Launch = _UNTOLD
) -> tuple[JobSummary, bool]:
    """The job once it is planned, and whether it is new."""
    _, is_new = registration.register_job(services, job_id, spec, launch)
    return planned(services, job_id, JobInput.REGISTRATION), is_new


def put_profile(services: JobServices, job_id: str, profile: StageProfile) -> JobSummary:
    """The job once it is planned."""
    inputs.put_profile(services, job_id, profile)
    return planned(services, job_id, JobInput.PROFILE)


def change_target(services: JobServices, job_id: str, update: TargetChange) -> JobSummary:
    """The job once it is planned."""
    inputs.change_target(services, job_id, update)
    return planned(services, job_id, JobInput.TARGET)
