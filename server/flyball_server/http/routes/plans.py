"""Plans: list and inspect the versions, and from which step each holds."""

from __future__ import annotations

from typing import Annotated

from anyio import to_thread
from fastapi import Query, Request, Response
from starlette.concurrency import run_in_threadpool

from flyball_server.http.dependencies import JSON, JobId, State, Version, WaitS, call_router
from flyball_server.http.mapping.jobs import activation_view, frontier_view, plan_view
from flyball_server.http.mapping.views import rendered_history
from flyball_server.http.openapi import examples, view_examples
from flyball_server.http.openapi.documentation import READ_ERRORS, answers
from flyball_server.http.timeline_answers import accepts_gzip, uncompressed
from flyball_server.jobs.activation.plan_versions import activation_of
from flyball_server.jobs.bounds import MAX_COUNT
from flyball_server.jobs.records import ActivationRecord
from flyball_server.jobs.registry.inspection import get_plan, list_plans
from flyball_server.views.frontier import get_frontier, known_frontier
from flyball_server.views.history import known_summaries, plan_summaries
from flyball_wire import messages, read_models, routes
from flyball_wire.read_models import FrontierView, TimelineView

ROUTER = call_router("plans")


@ROUTER.get(
    routes.PLANS,
    summary="List a job's plans",
    responses=answers([examples.PLAN], 404, *READ_ERRORS, meaning="All versions, rising."),
)
def get_plans(state: State, job_id: JobId) -> list[messages.PlanView]:
    """Every version with its prediction and the clock of every instruction of every stage."""
    return [plan_view(record) for record in list_plans(state.services, job_id)]


@ROUTER.get(
    routes.PLAN,
    name="get_plan",
    summary="Inspect a plan",
    responses=answers(examples.PLAN, 404, *READ_ERRORS, meaning="This version."),
)
def get_one_plan(state: State, job_id: JobId, version: Version) -> messages.PlanView:
    """One version; `plan` is what `flyball plan --json` prints."""
    return plan_view(get_plan(state.services, job_id, version))


@ROUTER.get(
    routes.ACTIVATION,
    name="get_activation",
    summary="From which step does a plan hold?",
    responses=answers(
        examples.ACTIVATION, 404, *READ_ERRORS, meaning="From which step the version holds."
    ),
)
async def get_plan_activation(
    state: State, job_id: JobId, version: Version, wait_s: WaitS
) -> messages.Activation:
    """Waits until all ranks have acknowledged the version (long poll).

    `first_step` is null when some have not by then, and stays so for a version that a newer
    one has overtaken.
    """

    async def look() -> ActivationRecord | None:
        activations = await state.rank_calls.activations.submit(job_id, None)
        activation = activation_of(activations, job_id, version)
        return None if activation.first_step is None else activation

    named = await state.waiters.until(job_id, look, wait_s=wait_s)
    return activation_view(named or ActivationRecord(version=version, first_step=None))


@ROUTER.get(
    routes.HISTORY,
    name="get_history",
    summary="The history of a job's plan",
    response_model=list[read_models.PlanSummary],
    responses=answers(
        [view_examples.PLAN_SUMMARY], 404, *READ_ERRORS, meaning="All versions, rising."
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


@ROUTER.get(
    routes.TIMELINE,
    name="get_timeline",
    summary="When does what run?",
    response_model=TimelineView,
    responses=answers(
        view_examples.TIMELINE,
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


MAX_POINTS_OVER_HTTP = 1_000


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
