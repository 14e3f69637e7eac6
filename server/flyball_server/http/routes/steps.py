"""Measured steps of a job."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query, Response
from pydantic import BeforeValidator

from flyball_server.http.dependencies import AfterStep, JobId, State, in_digits
from flyball_server.http.mapping import rendered
from flyball_server.http.openapi.documentation import JSON, call_router
from flyball_server.jobs.measurements.measurements import list_steps
from flyball_server.views.stage_steps import list_stage_steps
from flyball_wire import messages, routes
from flyball_wire.read_models import StagesOfStep

ROUTER = call_router("steps")
Limit = Annotated[
    int,
    Query(ge=1, le=10_000, description="Limit on the number of steps; the newest are returned."),
    BeforeValidator(in_digits),
]


@ROUTER.get(
    routes.STEPS,
    summary="List measured steps",
    response_description="The newest steps, in ascending order.",
)
def get_steps(state: State, job_id: JobId, limit: Limit = 100) -> tuple[messages.JobStep, ...]:
    """Return each step over the ranks that posted it: the slowest rank's time, their energy."""
    return list_steps(state.services, job_id, limit=limit)


@ROUTER.get(
    routes.STAGES_OF_STEPS,
    summary="List measured steps by stages",
    response_model=list[StagesOfStep],
    response_description="The newest steps, in ascending order.",
)
def get_stages_of_steps(
    state: State, job_id: JobId, limit: Limit = 100, after_step: AfterStep = -1
) -> Response:
    """Return each step by stages: the slowest rank's time, the energy of the stage's ranks.

    An answer holds at most 32,768 stages and 262,144 measurements of ranks, so it may have
    fewer steps than `limit`.
    """
    steps = list_stage_steps(state.services, job_id, limit=limit, after_step=after_step)
    return Response(rendered(tuple[StagesOfStep, ...], steps), media_type=JSON)
