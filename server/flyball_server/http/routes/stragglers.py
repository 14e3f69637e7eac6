"""Stragglers: announce a slow GPU, withdraw that, see what is planned as slow."""

from __future__ import annotations

from typing import Annotated

from flyball_server.http.dependencies import JobId, JsonBody, Rank, State, call_router
from flyball_server.http.mapping.jobs import straggler_view
from flyball_server.http.openapi import view_examples
from flyball_server.http.openapi.documentation import (
    JSON_BODY_ERRORS,
    READ_ERRORS,
    answers,
    json_body,
)
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
    name="post_straggler",
    summary="Announce a straggler",
    dependencies=[JsonBody],
    responses=answers(
        view_examples.STRAGGLER, 404, *JSON_BODY_ERRORS, meaning="The straggler as it is known."
    ),
)
def post_straggler(
    state: State,
    job_id: JobId,
    report: Annotated[StragglerReport, json_body(view_examples.STRAGGLER_REPORT)],
) -> StragglerView:
    """A rank's GPU is slower than its profile, or will be: all others then run as slow as fits.

    Answered at once; the plan follows as a new version when `from_time` has come, and the one
    without the straggler after `until_time`. A later report of the rank replaces this one.
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
    name="get_stragglers",
    summary="List a job's stragglers",
    responses=answers(
        [view_examples.STRAGGLER, view_examples.DETECTED_STRAGGLER],
        404,
        *READ_ERRORS,
        meaning="By rank; what was announced of it, then what was detected.",
    ),
)
def get_stragglers(state: State, job_id: JobId) -> list[StragglerView]:
    """Announced ones until they end, and ranks found to be slow while they are.

    Ranks are watched in jobs whose `adaptation` is `frontier`.
    """
    return [straggler_view(summary) for summary in list_stragglers(state.services, job_id)]


@ROUTER.delete(
    routes.STRAGGLER,
    name="delete_straggler",
    summary="Withdraw an announced straggler",
    status_code=204,
    responses={
        **{
            status: answer
            for status, answer in answers(view_examples.STRAGGLER, 404, *READ_ERRORS).items()
            if status != 200
        },
        204: {"description": "Nothing is announced of this rank."},
    },
)
def delete_straggler(state: State, job_id: JobId, rank: Rank) -> None:
    """Drop what was announced of the rank; what was detected stays while it lasts."""
    withdraw_straggler(state.services, job_id, rank)


def _unix_s(field: str, text: str | None) -> float | None:
    return None if text is None else parse_moment(text, field).timestamp()
