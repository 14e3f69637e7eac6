"""The planner's limits on what one job may be, as its settings have them."""

from __future__ import annotations

from flyball_profiles.stage_profile import StageProfile
from flyball_server.http.dependencies import PlannerState
from flyball_server.jobs.errors import InvalidFieldError, TooManyJobsError
from flyball_server.jobs.records import JobSpec
from flyball_server.jobs.store.contract import JobStore
from flyball_server.settings import (
    MAX_INSTRUCTIONS_VARIABLE,
    MAX_JOBS_VARIABLE,
    MAX_POINTS_VARIABLE,
)


def check_size(state: PlannerState, job_id: str, spec: JobSpec) -> None:
    """Whether there is room for one more job, and for one of this size.

    Raises:
        InvalidFieldError: it has too many instructions.
        TooManyJobsError: it is new, and there is no room.
    """
    limit = state.settings.max_instructions
    if 2 * spec.num_stages * spec.num_microbatches > limit:
        raise InvalidFieldError(
            "num_microbatches",
            f"must be at most {limit // (2 * spec.num_stages)} with"
            f" {spec.num_stages} stages; {MAX_INSTRUCTIONS_VARIABLE} allows {limit}"
            " forwards and backwards",
        )
    _check_room(state.services.store, job_id, state.settings.max_jobs)


def check_profile(state: PlannerState, profile: StageProfile) -> None:
    """Whether a profile has no more points than the planner takes.

    Raises:
        InvalidFieldError: it has more.
    """
    limit = state.settings.max_profile_points
    num_points = sum(
        len(points) for part in (profile, *profile.chunks) for points in part.points.values()
    )
    if num_points > limit:
        raise InvalidFieldError(
            "profile", f"must have at most {limit} points ({MAX_POINTS_VARIABLE}), not {num_points}"
        )


def _check_room(store: JobStore, job_id: str, max_jobs: int) -> None:
    with store.reading() as reader:
        if reader.find_job(job_id) is not None or len(reader.list_jobs()) < max_jobs:
            return
    raise TooManyJobsError(max_jobs=max_jobs, setting=MAX_JOBS_VARIABLE)
