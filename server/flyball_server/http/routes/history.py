"""The history of a job's plan: every version in a line."""

from __future__ import annotations

from anyio import to_thread
from fastapi import Response
from starlette.concurrency import run_in_threadpool

from flyball_server.http.call_router import call_router
from flyball_server.http.dependencies import JSON, JobId, State
from flyball_server.http.mapping.plan_views import rendered_history
from flyball_server.http.openapi import plan_view_examples
from flyball_server.http.openapi.documentation import READ_ERRORS, answers
from flyball_server.views.history import known_summaries, plan_summaries
from flyball_wire import read_models, routes

ROUTER = call_router("plans")


@ROUTER.get(
    routes.HISTORY,
    name="get_history",
    summary="The history of a job's plan",
    response_model=list[read_models.PlanSummary],
    responses=answers(
        [plan_view_examples.PLAN_SUMMARY], 404, *READ_ERRORS, meaning="All versions, rising."
    ),
)
async def get_job_history(state: State, job_id: JobId) -> Response:
    """Every version with its prediction and the mean clock of each stage, without instructions.

    What is read of a version is remembered; the first call for a job with hundreds of large
    versions is answered after a minute or more.
    """
    asked = (state.services, job_id, state.histories)
    found = await run_in_threadpool(known_summaries, *asked)
    if found is None:
        found = await to_thread.run_sync(plan_summaries, *asked, limiter=state.history_threads)
    return Response(await run_in_threadpool(rendered_history, found), media_type=JSON)
