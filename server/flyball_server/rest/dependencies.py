"""What routes ask FastAPI for: the planner's parts, the kind of body, checked parameters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, cast

from fastapi import Depends, Path, Query, Request

from flyball_server.jobs.bounds import MAX_COUNT
from flyball_server.jobs.frontier import FrontierMemory
from flyball_server.jobs.reactor import Reactor
from flyball_server.jobs.records import JOB_ID_PATTERN, MAX_RANKS
from flyball_server.jobs.services import JobServices
from flyball_server.jobs.waiters import JobWaiters
from flyball_server.rest.edge_errors import ContentTypeError
from flyball_server.settings import Settings

JSON = "application/json"


@dataclass(frozen=True, kw_only=True)
class PlannerState:
    """What one app holds, under `app.state.planner`."""

    settings: Settings
    services: JobServices
    waiters: JobWaiters
    reactor: Reactor
    frontiers: FrontierMemory


def planner_state(request: Request) -> PlannerState:
    """The state of the app that serves this call."""
    return cast("PlannerState", request.app.state.planner)


State = Annotated[PlannerState, Depends(planner_state)]


def content_type(request: Request) -> str:
    """The body's content type without its parameters, in lower case."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def require_json(request: Request) -> None:
    """Refuse a body that does not say it is JSON.

    Raises:
        ContentTypeError: it says something else, or nothing.
    """
    if content_type(request) != JSON:
        raise ContentTypeError(wanted=JSON)


def granted_wait_s(
    state: State,
    wait_s: Annotated[
        float,
        Query(
            ge=0,
            description="Wait so long for an answer, s; never longer than the planner's limit"
            " (60 unless FLYBALL_MAX_WAIT_S says otherwise).",
            examples=[30],
        ),
    ] = 0,
) -> float:
    """How long a long poll waits, s: as asked, or as long as the planner grants."""
    return min(wait_s, state.settings.max_wait_s)


JsonBody = Depends(require_json)
WaitS = Annotated[float, Depends(granted_wait_s)]
JobId = Annotated[
    str,
    Path(
        pattern=JOB_ID_PATTERN,
        description="The job's name: 1 to 128 of A-Z a-z 0-9 . _ -",
        examples=["gpt2-demo"],
    ),
]
Rank = Annotated[int, Path(ge=0, lt=MAX_RANKS, description="Rank number, from 0.", examples=[0])]
Version = Annotated[
    int, Path(ge=1, le=MAX_COUNT, description="Plan version, from 1.", examples=[1])
]
