"""Use case: how far the online profiling of a job is, what it found and what it cost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from flyball_profiles.stage_profile import StageProfile
from flyball_server.jobs.errors import MissingProfileError
from flyball_server.jobs.loop_state import ProfilingResult
from flyball_server.jobs.records import JobSpec
from flyball_server.jobs.registry.inspection import require_job
from flyball_server.jobs.services import JobServices

ProfilingState = Literal["off", "waiting", "probing", "finished", "refused"]


@dataclass(frozen=True, kw_only=True)
class ProfilingSummary:
    """Online profiling of one job.

    Attributes:
        state: `off` where the profile is given.
        result: None: nothing has been measured.
    """

    job_id: str
    state: ProfilingState
    spec: JobSpec
    result: ProfilingResult | None


def get_profiling(services: JobServices, job_id: str) -> ProfilingSummary:
    """Return how far it is.

    Raises:
        UnknownJobError: no such job.
    """
    with services.store.reading() as reader:
        spec = require_job(reader, job_id).in_force
        result = reader.find_loop_state(job_id).profiling
        state: ProfilingState = "off"
        if spec.is_profiled_online:
            state = "waiting" if result is None else result.state
        # A profile that somebody has put ends the measuring.
        if state in {"waiting", "probing"} and reader.has_profile(job_id):
            state = "off"
    return ProfilingSummary(job_id=job_id, state=state, spec=spec, result=result)


def get_profile(services: JobServices, job_id: str) -> StageProfile:
    """The profile that the job is planned from, put or measured.

    Raises:
        UnknownJobError: no such job.
        MissingProfileError: it has none yet.
    """
    with services.store.reading() as reader:
        require_job(reader, job_id)
        profile = reader.find_profile(job_id)
    if profile is None:
        raise MissingProfileError(job_id=job_id)
    return profile
