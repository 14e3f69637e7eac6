"""Steps: what a job's ranks measured, step by step."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query, Response
from pydantic import BeforeValidator

from flyball_server.http.dependencies import JSON, AfterStep, JobId, State, call_router, in_digits
from flyball_server.http.mapping.jobs import rendered, step_view
from flyball_server.http.mapping.views import stages_of_step
from flyball_server.http.openapi import examples, view_examples
from flyball_server.http.openapi.documentation import READ_ERRORS, answers
from flyball_server.jobs.measurements.measurements import list_steps
from flyball_server.views.stage_steps import list_stage_steps
from flyball_wire import messages, routes
from flyball_wire.read_models import StagesOfStep

ROUTER = call_router("steps")


@ROUTER.get(
    routes.STEPS,
    summary="List measured steps",
    responses=answers([examples.STEP], 404, *READ_ERRORS, meaning="The newest steps, rising."),
)
def get_steps(
    state: State,
    job_id: JobId,
    limit: Annotated[
        int, Query(ge=1, le=10_000, description="How many of the newest steps.")
    ] = 100,
) -> list[messages.StepView]:
    """Each step over the ranks that have posted it: the slowest rank's time, all their energy."""
    return [step_view(step) for step in list_steps(state.services, job_id, limit=limit)]


@ROUTER.get(
    routes.STAGES_OF_STEPS,
    summary="List measured steps by stages",
    response_model=list[StagesOfStep],
    responses=answers(
        [view_examples.STAGES_OF_STEP], 404, *READ_ERRORS, meaning="The newest steps, rising."
    ),
)
def get_stages_of_steps(
    state: State,
    job_id: JobId,
    limit: Annotated[
        int,
        Query(ge=1, le=10_000, description="How many of the newest steps."),
        BeforeValidator(in_digits),
    ] = 100,
    after_step: AfterStep = -1,
) -> Response:
    """Each step by stages: the slowest rank's time, the energy of all ranks of the stage.

    Fewer steps than `limit` come where they would hold more than 32,768 stages, or more than
    262,144 measurements of single ranks.
    """
    steps = list_stage_steps(state.services, job_id, limit=limit, after_step=after_step)
    views = tuple(stages_of_step(step) for step in steps)
    return Response(rendered(tuple[StagesOfStep, ...], views), media_type=JSON)
