"""Stragglers: announce a slow GPU, withdraw the announcement, list all stragglers."""

from __future__ import annotations

from flyball_server.http.dependencies import JobId, Rank, State
from flyball_server.http.mapping.jobs import straggler_view
from flyball_server.http.openapi.documentation import call_router
from flyball_server.jobs.stragglers.reports import (
    Announcement,
    announce_straggler,
    list_stragglers,
    withdraw_straggler,
)
from flyball_server.jobs.timetables import parse_moment
from flyball_wire import routes
from flyball_wire.closed_loop import StragglerReport, StragglerView

ROUTER = call_router("stragglers")


@ROUTER.post(
    routes.STRAGGLERS,
    summary="Announce a straggler",
    response_description="The announced straggler.",
)
def post_straggler(state: State, job_id: JobId, report: StragglerReport) -> StragglerView:
    """Announce that a rank's GPU is slower than its profile, now or later.

    The plan follows as a new version at `from_time`, and one without the straggler after
    `until_time`. A later report of the rank replaces this one.
    """
    announcement = Announcement(
        rank=report.rank,
        slowdown=report.slowdown,
        from_unix_s=_unix_s("from_time", report.from_time),
        until_unix_s=_unix_s("until_time", report.until_time),
    )
    return straggler_view(announce_straggler(state.services, job_id, announcement))


@ROUTER.get(
    routes.STRAGGLERS,
    summary="List a job's stragglers",
    response_description="Stragglers by rank; of one rank the announced one first.",
)
def get_stragglers(state: State, job_id: JobId) -> list[StragglerView]:
    """Return announced stragglers until they end, and detected ones while they are slow.

    Stragglers are detected in jobs with `adaptation` `frontier`.
    """
    return [straggler_view(summary) for summary in list_stragglers(state.services, job_id)]


@ROUTER.delete(
    routes.STRAGGLER,
    summary="Withdraw an announced straggler",
    status_code=204,
    response_description="The rank has no announced straggler.",
)
def delete_straggler(state: State, job_id: JobId, rank: Rank) -> None:
    """Withdraw the announcement of a rank; a detected straggler stays while it is slow."""
    withdraw_straggler(state.services, job_id, rank)


def _unix_s(field: str, text: str | None) -> float | None:
    return None if text is None else parse_moment(text, field).timestamp()
