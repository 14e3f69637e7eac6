"""Use cases that change what a job is planned from, with its planning: as the routes call them."""

from __future__ import annotations

from flyball_profiles.stage_profile import StageProfile
from flyball_server.jobs.job_state import JobInput
from flyball_server.jobs.registry import inputs, registration
from flyball_server.jobs.registry.inspection import JobSummary
from flyball_server.jobs.registry.launch import Launch
from flyball_server.jobs.replanning.plan_job import is_planned, plan_if_needed
from flyball_server.jobs.services import JobServices
from flyball_wire.messages import JobSpec
from flyball_wire.plan_options import TargetChange

_UNTOLD = Launch()


def register_job(
    services: JobServices, job_id: str, spec: JobSpec, launch: Launch = _UNTOLD
) -> tuple[JobSummary, bool]:
    """The job once it is planned, and whether it is new."""
    stored, is_new = registration.register_job(services, job_id, spec, launch)
    if is_planned(stored):
        return stored, is_new
    return plan_if_needed(services, job_id, JobInput.REGISTRATION), is_new


def put_profile(services: JobServices, job_id: str, profile: StageProfile) -> JobSummary:
    """The job once it is planned."""
    inputs.put_profile(services, job_id, profile)
    return plan_if_needed(services, job_id, JobInput.PROFILE)


def change_target(services: JobServices, job_id: str, update: TargetChange) -> JobSummary:
    """The job once it is planned."""
    inputs.change_target(services, job_id, update)
    return plan_if_needed(services, job_id, JobInput.TARGET)
