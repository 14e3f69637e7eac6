"""Live events: all jobs, or one, as they change."""

from __future__ import annotations

from typing import Annotated

from fastapi import Header, Query, Response
from pydantic import BeforeValidator

from flyball_server.http.dependencies import AfterStep, JobId, State, StreamS, in_digits
from flyball_server.http.events.event_stream import EVENT_STREAM
from flyball_server.http.middleware.token_access import CallerAccess
from flyball_server.http.openapi.documentation import Responses, call_router
from flyball_server.jobs.bounds import MAX_COUNT
from flyball_wire import routes

ROUTER = call_router("events")


# OpenAPI describes a single event, whose fields are text.
_EVENT = {
    "type": "object",
    "properties": {name: {"type": "string"} for name in ("event", "data", "id")},
    "required": ["event", "data"],
}
_STREAM: Responses = {
    200: {
        "description": "Server-sent events; docs/rest.md explains each.",
        "content": {EVENT_STREAM: {"schema": _EVENT}},
    }
}


@ROUTER.get(
    routes.EVENTS,
    summary="Follow all jobs",
    response_class=Response,
    responses=_STREAM,
)
async def get_events(state: State, access: CallerAccess, wait_s: StreamS) -> Response:
    """Send an event `overview` at once and after each change, at most every second.

    With a job's token the overview has that job and its earlier runs only.
    """
    return await state.live_events.of_all(access, wait_s=wait_s)


@ROUTER.get(
    routes.JOB_EVENTS,
    summary="Follow a job",
    response_class=Response,
    responses=_STREAM,
)
async def get_job_events(
    state: State,
    job_id: JobId,
    wait_s: StreamS,
    *,
    after_step: AfterStep = -1,
    num_steps: Annotated[
        int,
        Query(
            ge=0,
            le=10_000,
            description="Number of the newest steps that the stream begins with, as far as an"
            " answer of `steps/stages` holds them; 0: the last 200 at most. A stream that goes on"
            " after another ignores it.",
        ),
        BeforeValidator(in_digits),
    ] = 0,
    last_event_id: Annotated[
        int | None,
        Header(
            ge=0,
            le=MAX_COUNT,
            description="Last id of an earlier stream: the stream begins with all of the newest"
            " steps, whatever `after_step` is.",
        ),
        BeforeValidator(in_digits),
    ] = None,
) -> Response:
    """Send events of one job.

    They are `overview`, `notes`, `timetable`, `history`, `stragglers`, `profiling`, `comparison`
    and `steps`. Each is sent at once and after each change; `gone` when the job has been deleted,
    `trouble` while the planner cannot read the job.
    """
    # Ranks may have posted any of the earlier stream's steps again.
    is_back = last_event_id is not None
    return await state.live_events.of_job(
        job_id,
        after_step=-1 if is_back else after_step,
        num_steps=0 if is_back else num_steps,
        wait_s=wait_s,
    )
