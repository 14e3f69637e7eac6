"""Live events: all jobs, or one, as they change."""

from __future__ import annotations

import json
from typing import Annotated, Any

from fastapi import Header, Response
from pydantic import BeforeValidator

from flyball_server.http.dependencies import (
    AfterStep,
    JobId,
    State,
    StreamS,
    call_router,
    in_digits,
)
from flyball_server.http.events.event_stream import EVENT_STREAM
from flyball_server.http.middleware.token_access import CallerAccess
from flyball_server.http.openapi import view_examples
from flyball_server.http.openapi.documentation import READ_ERRORS, Responses, plain, problems
from flyball_server.jobs.bounds import MAX_COUNT
from flyball_wire import routes

ROUTER = call_router("events")


def _stream(*errors: int, **examples: object) -> Responses:
    """A stream's answers; OpenAPI describes a single event, with fields that are text.

    Args:
        errors: HTTP statuses.
        examples: data of events by name, as instances of wire types.
    """
    text = {"type": "string"}
    content: dict[str, Any] = {
        "schema": {
            "type": "object",
            "properties": {"event": text, "data": text, "id": text},
            "required": ["event", "data"],
        },
        "examples": {
            name: {"value": {"event": name, "data": json.dumps(plain(example))}}
            for name, example in examples.items()
        },
    }
    return {
        200: {
            "description": "Server-sent events; docs/rest.md explains each.",
            "content": {EVENT_STREAM: content},
        },
        **problems(*errors, *READ_ERRORS),
    }


@ROUTER.get(
    routes.EVENTS,
    summary="Follow all jobs",
    response_class=Response,
    responses=_stream(overview=view_examples.OVERVIEW),
)
async def get_events(state: State, access: CallerAccess, wait_s: StreamS) -> Response:
    """An event `overview` at once, and when it has changed, at most every second.

    By a job's token that job and its earlier runs alone.
    """
    return await state.live_events.of_all(access, wait_s=wait_s)


@ROUTER.get(
    routes.JOB_EVENTS,
    summary="Follow a job",
    response_class=Response,
    responses=_stream(
        404, overview=view_examples.JOB_OVERVIEW, steps=[view_examples.STAGES_OF_STEP]
    ),
)
async def get_job_events(
    state: State,
    job_id: JobId,
    wait_s: StreamS,
    after_step: AfterStep = -1,
    last_event_id: Annotated[
        int | None,
        Header(
            ge=0,
            le=MAX_COUNT,
            description="The last id of a stream before: all of the newest steps come, whatever"
            " `after_step` is.",
        ),
        BeforeValidator(in_digits),
    ] = None,
) -> Response:
    """Events `overview`, `history`, `stragglers`, `profiling`, `comparison` and `steps`.

    Each at once, and when it has changed; `gone` when the job has been deleted; `trouble` while
    the planner cannot look.
    """
    # Ranks may have posted again any of the steps that the stream before has told of.
    is_back = last_event_id is not None
    return await state.live_events.of_job(
        job_id, after_step=-1 if is_back else after_step, wait_s=wait_s
    )
