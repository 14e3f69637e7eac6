"""Stragglers: announce a slow GPU, withdraw the announcement, list all stragglers."""

from __future__ import annotations

from flyball_server.http.dependencies import JobId, Rank, State
from flyball_server.http.openapi.documentation import call_router
from flyball_server.jobs.stragglers.announcements import (
    announce_straggler,
    list_stragglers,
    withdraw_straggler,
)
from flyball_wire import routes
from flyball_wire.closed_loop import Straggler, StragglerAnnouncement

ROUTER = call_router("stragglers")


@ROUTER.post(
    routes.STRAGGLERS,
    summary="Announce a straggler",
    response_description="The announced straggler.",
)
def post_straggler(state: State, job_id: JobId, announcement: StragglerAnnouncement) -> Straggler:
    """Announce that a rank's GPU is slower than its profile, now or later.

    The plan follows as a new version at `from_time`, and one without the straggler after
    `until_time`. A later announcement of the rank replaces this one.
    """
    return announce_straggler(state.services, job_id, announcement)


@ROUTER.get(
    routes.STRAGGLERS,
    summary="List a job's stragglers",
    response_description="Stragglers by rank; of one rank the announced one first.",
)
def get_stragglers(state: State, job_id: JobId) -> tuple[Straggler, ...]:
    """Return announced stragglers until they end, and detected ones while they are slow.

    Stragglers are detected in jobs with `adaptation` `frontier`.
    """
    return list_stragglers(state.services, job_id)


@ROUTER.delete(
    routes.STRAGGLER,
    summary="Withdraw an announced straggler",
    status_code=204,
    response_description="The rank has no announced straggler.",
)
def delete_straggler(state: State, job_id: JobId, rank: Rank) -> None:
    """Withdraw the announcement of a rank; a detected straggler stays while it is slow."""
    withdraw_straggler(state.services, job_id, rank)
