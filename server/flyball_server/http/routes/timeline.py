"""Timelines: when each instruction of a plan runs, predicted."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query, Request, Response
from starlette.concurrency import run_in_threadpool

from flyball_server.http.call_router import call_router
from flyball_server.http.dependencies import JSON, JobId, State
from flyball_server.http.openapi import plan_view_examples
from flyball_server.http.openapi.documentation import READ_ERRORS, answers
from flyball_server.http.timeline_answers import accepts_gzip, uncompressed
from flyball_server.jobs.bounds import MAX_COUNT
from flyball_wire import routes
from flyball_wire.read_models import TimelineView

ROUTER = call_router("plans")


@ROUTER.get(
    routes.TIMELINE,
    name="get_timeline",
    summary="When does what run?",
    response_model=TimelineView,
    responses=answers(
        plan_view_examples.TIMELINE,
        404,
        409,
        *READ_ERRORS,
        meaning="An iteration on the plan, and one at the highest clocks; compressed by gzip where"
        " the client takes that.",
    ),
)
async def get_job_timeline(
    state: State,
    request: Request,
    job_id: JobId,
    version: Annotated[
        int | None,
        Query(
            ge=1,
            le=MAX_COUNT,
            description="Plan version, from 1; left out: the active one, before there is one the"
            " newest.",
        ),
    ] = None,
) -> Response:
    """Start, duration, energy, clock and float of every instruction of a plan version, predicted.

    They come from the job's profile as it is now. A job without a plan or a profile is a 409, and
    so is a version that was made to learn from, one that the profile does not fit, and one of
    more than 131072 instructions. The answer takes seconds for a long pipeline; it is remembered.
    """
    found = await state.timelines.ask(state.services, job_id, version)
    headers = {"Vary": "Accept-Encoding"}
    if accepts_gzip(request.headers.get("accept-encoding", "")):
        headers["Content-Encoding"] = "gzip"
    else:
        found = await run_in_threadpool(uncompressed, found)
    return Response(found, media_type=JSON, headers=headers)
