"""Timetables: targets by the time of day."""

from __future__ import annotations

from typing import Annotated

from flyball_server.http.dependencies import JobId, JsonBody, State, call_router
from flyball_server.http.openapi import view_examples
from flyball_server.http.openapi.documentation import (
    JSON_BODY_ERRORS,
    READ_ERRORS,
    answers,
    json_body,
)
from flyball_server.jobs.timetables import (
    TimetableSummary,
    delete_timetable,
    get_timetable,
    put_timetable,
)
from flyball_wire import routes
from flyball_wire.closed_loop import Timetable, TimetableView

ROUTER = call_router("timetables")


@ROUTER.put(
    routes.TIMETABLE,
    summary="Give a job a timetable",
    dependencies=[JsonBody],
    responses=answers(
        view_examples.TIMETABLE_VIEW,
        404,
        *JSON_BODY_ERRORS,
        meaning="The timetable, and what it makes of the target now.",
    ),
)
def put_job_timetable(
    state: State,
    job_id: JobId,
    timetable: Annotated[Timetable, json_body(view_examples.TIMETABLE)],
) -> TimetableView:
    """Targets that hold in windows of time; outside all of them the job's own target does.

    Answered at once; where another target holds now, the plan follows as a new version. A window
    that cannot be used is named, as in `windows[2].from_time`.
    """
    return _view(put_timetable(state.services, job_id, timetable))


@ROUTER.get(
    routes.TIMETABLE,
    name="get_timetable",
    summary="See a job's timetable",
    responses=answers(
        view_examples.TIMETABLE_VIEW,
        404,
        *READ_ERRORS,
        meaning="The timetable (null: none), and what it makes of the target now.",
    ),
)
def get_job_timetable(state: State, job_id: JobId) -> TimetableView:
    """The timetable as it was put, the target that the job is planned for, and its next change."""
    return _view(get_timetable(state.services, job_id))


@ROUTER.delete(
    routes.TIMETABLE,
    name="delete_timetable",
    summary="Take a job's timetable away",
    status_code=204,
    responses={
        **{
            status: answer
            for status, answer in answers(view_examples.TIMETABLE_VIEW, 404, *READ_ERRORS).items()
            if status != 200
        },
        204: {"description": "The job has no timetable."},
    },
)
def delete_job_timetable(state: State, job_id: JobId) -> None:
    """The job's own target holds at all times; where another one held, a new plan follows."""
    delete_timetable(state.services, job_id)


def _view(summary: TimetableSummary) -> TimetableView:
    change = summary.next_change
    return TimetableView(
        timetable=summary.timetable,
        target_in_force=summary.target_in_force,
        next_change=None if change is None else change.isoformat(),
    )
