"""Use case: the progress, result and cost of a job's online profiling."""

from __future__ import annotations

from flyball_profiles.stage_profile import StageProfile
from flyball_server.jobs.errors import MissingProfileError
from flyball_server.jobs.registry.inspection import require_job
from flyball_server.jobs.services import JobServices
from flyball_wire.online_profiling import ProfilingResult, ProfilingState, ProfilingStatus


def get_profiling(services: JobServices, job_id: str) -> ProfilingStatus:
    """Return the progress of a job's online profiling.

    Raises:
        UnknownJobError: the job does not exist.
    """
    with services.store.reading() as reader:
        spec = require_job(reader, job_id).spec
        stored = reader.find_loop_state(job_id).profiling
        result = stored or ProfilingResult(state=ProfilingState.WAITING)
        # An uploaded profile ends the profiling.
        is_open = result.state in {ProfilingState.WAITING, ProfilingState.PROBING}
        is_off = not spec.is_profiled_online or (is_open and reader.has_profile(job_id))
    return ProfilingStatus(
        **(vars(result) | ({"state": ProfilingState.OFF} if is_off else {})),
        job_id=job_id,
        slowdown_limit=spec.profiling_slowdown,
        emulated=spec.emulated,
    )


def get_profile(services: JobServices, job_id: str) -> StageProfile:
    """Return the job's current profile, uploaded or measured.

    Raises:
        UnknownJobError: the job does not exist.
        MissingProfileError: the job has no profile yet.
    """
    with services.store.reading() as reader:
        require_job(reader, job_id)
        profile = reader.find_profile(job_id)
    if profile is None:
        raise MissingProfileError(job_id=job_id)
    return profile
