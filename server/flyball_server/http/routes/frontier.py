"""Frontiers: what a job could take and save, for every iteration time."""

from __future__ import annotations

from typing import Annotated

from anyio import to_thread
from fastapi import Query
from starlette.concurrency import run_in_threadpool

from flyball_server.http.call_router import call_router
from flyball_server.http.dependencies import JobId, State
from flyball_server.http.mapping.jobs import frontier_view
from flyball_server.http.openapi import examples
from flyball_server.http.openapi.documentation import READ_ERRORS, answers
from flyball_server.views.frontier import get_frontier, known_frontier
from flyball_wire import routes
from flyball_wire.read_models import FrontierView

MAX_POINTS_OVER_HTTP = 1_000
ROUTER = call_router("plans")


@ROUTER.get(
    routes.FRONTIER,
    name="get_frontier",
    summary="The time-energy frontier of a job",
    responses=answers(
        examples.FRONTIER, 404, 409, *READ_ERRORS, meaning="From the fastest to the cheapest."
    ),
)
async def get_job_frontier(
    state: State,
    job_id: JobId,
    points: Annotated[
        int, Query(ge=2, le=MAX_POINTS_OVER_HTTP, description="How many plans to find.")
    ] = 50,
) -> FrontierView:
    """Plans in rising time and falling energy, each with the bound that none can beat.

    Where the job has a reserve bounds are on plans that keep it and are no faster.
    To run one of them, put the target `deadline:` with the point's `deadline_s`: the ranks get
    the plan as a new version. A job without a profile is a 409. The answer may take as long as
    planning does, much longer with effort `high`; it is remembered until the job's profile,
    schedule or effort changes.
    """
    asked = (state.services, state.frontiers, job_id, points)
    found = await run_in_threadpool(known_frontier, *asked)
    if found is None:
        found = await to_thread.run_sync(get_frontier, *asked, limiter=state.frontier_threads)
    return frontier_view(found)
