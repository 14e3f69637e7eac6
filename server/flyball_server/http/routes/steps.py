"""Steps: what a job's ranks measured, step by step."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query

from flyball_server.http.call_router import call_router
from flyball_server.http.dependencies import JobId, State
from flyball_server.http.mapping.jobs import step_view
from flyball_server.http.openapi import examples
from flyball_server.http.openapi.documentation import READ_ERRORS, answers
from flyball_server.jobs.measurements.measurements import list_steps
from flyball_wire import messages, routes

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
