"""Timetables: targets by the time of day."""

from __future__ import annotations

from flyball_server.http.dependencies import JobId, State
from flyball_server.http.openapi.documentation import call_router
from flyball_server.jobs import timetables
from flyball_wire import routes
from flyball_wire.closed_loop import Timetable, TimetableStatus

ROUTER = call_router("timetables")


@ROUTER.put(
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


@ROUTER.get(
    routes.TIMETABLE,
    summary="Get a job's timetable",
    response_description="The timetable (null: none) and the job's current target.",
)
def get_timetable(state: State, job_id: JobId) -> TimetableStatus:
    """Return the timetable, the target that the job is planned for, and its next change."""
    return timetables.get_timetable(state.services, job_id)


@ROUTER.delete(
    routes.TIMETABLE,
    summary="Delete a job's timetable",
    status_code=204,
    response_description="The job has no timetable.",
)
def delete_timetable(state: State, job_id: JobId) -> None:
    """Delete the timetable: the job's own target applies, with a new plan if needed."""
    timetables.delete_timetable(state.services, job_id)
