"""Conditions that a job's plan follows: stragglers, and targets by the time of day."""

from __future__ import annotations

from flyball_server.http.dependencies import JobId, Rank, State
from flyball_server.http.openapi.documentation import call_router
from flyball_server.jobs import timetables
from flyball_server.jobs.findings.announcements import (
    announce_straggler,
    list_stragglers,
    withdraw_straggler,
)
from flyball_wire import routes
from flyball_wire.closed_loop import Straggler, StragglerAnnouncement, Timetable, TimetableStatus

STRAGGLERS_ROUTER = call_router("stragglers")


@STRAGGLERS_ROUTER.post(
    routes.STRAGGLERS,
    summary="Announce a straggler",
    response_description="The announced straggler.",
)
def post_straggler(state: State, job_id: JobId, announcement: StragglerAnnouncement) -> Straggler:
    """Announce that a rank's GPU is slower than its profile, now or later.

    The plan follows as a new version at `from_time`, and one without the straggler after
    `until_time`. A later announcement of the rank replaces this announcement.
    """
    return announce_straggler(state.services, job_id, announcement)


@STRAGGLERS_ROUTER.get(
    routes.STRAGGLERS,
    summary="List a job's stragglers",
    response_description="Stragglers by rank; of one rank the announced one first.",
)
def get_stragglers(state: State, job_id: JobId) -> tuple[Straggler, ...]:
    """Return announced stragglers until they end, and detected ones while they are slow.

    Stragglers are detected in jobs with `adaptation` `frontier`.
    """
    return list_stragglers(state.services, job_id)


@STRAGGLERS_ROUTER.delete(
    routes.STRAGGLER,
    summary="Withdraw an announced straggler",
    status_code=204,
    response_description="The rank has no announced straggler.",
)
def delete_straggler(state: State, job_id: JobId, rank: Rank) -> None:
    """Withdraw the announcement of a rank; a detected straggler stays while it is slow."""
    withdraw_straggler(state.services, job_id, rank)


TIMETABLES_ROUTER = call_router("timetables")


@TIMETABLES_ROUTER.put(
    routes.TIMETABLE,
    summary="Set a job's timetable",
    response_description="The timetable and the job's current target.",
)
def put_timetable(state: State, job_id: JobId, timetable: Timetable) -> TimetableStatus:
    """Set targets for windows of time; outside of them the job's own target applies.

    If the current target changes, the plan follows as a new version. An error names the window,
    as in `windows[2].from_time`.
    """
    return timetables.put_timetable(state.services, job_id, timetable)


@TIMETABLES_ROUTER.get(
    routes.TIMETABLE,
    summary="Get a job's timetable",
    response_description="The timetable (null: none) and the job's current target.",
)
def get_timetable(state: State, job_id: JobId) -> TimetableStatus:
    """Return the timetable, the target that the job is planned for, and its next change."""
    return timetables.get_timetable(state.services, job_id)


@TIMETABLES_ROUTER.delete(
    routes.TIMETABLE,
    summary="Delete a job's timetable",
    status_code=204,
    response_description="The job has no timetable.",
)
def delete_timetable(state: State, job_id: JobId) -> None:
    """Delete the timetable: the job's own target applies, with a new plan if needed."""
    timetables.delete_timetable(state.services, job_id)
