"""Plans: their versions, first steps, history, timeline and frontier."""

from __future__ import annotations

from typing import Annotated

from anyio import to_thread
from fastapi import Query, Request, Response
from starlette.concurrency import run_in_threadpool

from flyball_server.http.dependencies import JobId, State, Version, WaitS
from flyball_server.http.mapping import plan_view
from flyball_server.http.openapi.documentation import JSON, call_router, problems
from flyball_server.http.timeline_answers import accepts_gzip, uncompressed
from flyball_server.jobs.bounds import MAX_COUNT
from flyball_server.jobs.registry import inspection
from flyball_server.jobs.versions.plan_versions import version_of
from flyball_server.kit.checked_documents import adapter_of
from flyball_server.views import frontier
from flyball_server.views.history import known_summaries, plan_summaries
from flyball_server.views.job_power import get_power
from flyball_wire import messages, routes
from flyball_wire.messages import PlanVersion
from flyball_wire.read_models import JobFrontier, JobPower, PlanSummary, PlanTimeline

ROUTER = call_router("plans")


@ROUTER.get(
    routes.PLANS,
    summary="List a job's plans",
    response_description="All versions, in ascending order.",
)
def get_plans(state: State, job_id: JobId) -> list[messages.PlanView]:
    """Return each version with its prediction and the clock of every instruction."""
    return [plan_view(record) for record in inspection.list_plans(state.services, job_id)]


@ROUTER.get(routes.PLAN, summary="Get a plan", response_description="The plan version.")
def get_plan(state: State, job_id: JobId, version: Version) -> messages.PlanView:
    """Return one version; `plan` has the format of `flyball plan --json`."""
    return plan_view(inspection.get_plan(state.services, job_id, version))


@ROUTER.get(
    routes.FIRST_STEP,
    summary="Get the first step of a plan",
    response_description="The first step of the version.",
)
async def get_first_step(
    state: State, job_id: JobId, version: Version, wait_s: WaitS
) -> messages.PlanVersion:
    """Wait until all ranks have acknowledged the version (long poll).

    `first_step` is null if some have not acknowledged it by then; it stays null for a version
    that a newer one replaced before.
    """

    async def version_with_first_step() -> PlanVersion | None:
        found = version_of(await state.rank_calls.versions.submit(job_id, None), job_id, version)
        return None if found.first_step is None else found

    named = await state.waiters.until(job_id, version_with_first_step, wait_s=wait_s)
    return named or PlanVersion(version=version, first_step=None)


@ROUTER.get(
    routes.HISTORY,
    summary="Get the history of a job's plan",
    response_model=list[PlanSummary],
    response_description="All versions, in ascending order.",
)
async def get_history(state: State, job_id: JobId) -> Response:
    """Return each version with its prediction and the mean clock of each stage.

    Summaries are cached; the first call for a job with hundreds of large versions takes a minute
    or more.
    """
    asked = (state.services, job_id, state.histories)
    found = await run_in_threadpool(known_summaries, *asked)
    if found is None:
        found = await to_thread.run_sync(plan_summaries, *asked, limiter=state.history_threads)
    history = await run_in_threadpool(adapter_of(tuple[PlanSummary, ...]).dump_json, found)
    return Response(history, media_type=JSON)


@ROUTER.get(
    routes.POWER,
    summary="Get the planned power of a job's GPUs",
    response_description="Planned power and enforced limit of each rank's GPU.",
)
def get_job_power(state: State, job_id: JobId) -> JobPower:
    """Return planned watts by rank, for a tool that divides a power budget.

    They are averages over an iteration, predicted from the profile. To give the job a budget, set
    its target: `PUT /api/v1/jobs/{job_id}/target` with `power:` and W, or `power:limit` where the
    tool sets the GPUs' power limits.
    """
    return get_power(state.services, job_id)


@ROUTER.get(
    routes.TIMELINE,
    summary="Get the timeline of a plan",
    response_model=PlanTimeline,
    response_description="An iteration on the plan, and one at the highest clocks; compressed by"
    " gzip if the client accepts that.",
    responses=problems(409),
)
async def get_timeline(
    state: State,
    request: Request,
    job_id: JobId,
    version: Annotated[
        int | None,
        Query(
            ge=1,
            le=MAX_COUNT,
            description="Plan version, from 1; default: the active version, or the newest if none"
            " is active.",
        ),
    ] = None,
) -> Response:
    """Return predicted start, duration, energy, clock and float of every instruction of a plan.

    The prediction uses the job's current profile. A job without a plan or a profile is a 409, and
    so is a probe version, one that the profile does not fit, and one of more than 131072
    instructions. A long pipeline takes seconds; timelines are cached.
    """
    found = await state.timelines.ask(state.services, job_id, version)
    headers = {"Vary": "Accept-Encoding"}
    if accepts_gzip(request.headers.get("accept-encoding", "")):
        headers["Content-Encoding"] = "gzip"
    else:
        found = await run_in_threadpool(uncompressed, found)
    return Response(found, media_type=JSON, headers=headers)


@ROUTER.get(
    routes.FRONTIER,
    summary="Get the time-energy frontier of a job",
    response_description="Plans from the fastest to the least-energy one.",
    responses=problems(409),
)
async def get_frontier(
    state: State,
    job_id: JobId,
    points: Annotated[int, Query(ge=2, le=1000, description="Number of plans to find.")] = 50,
) -> JobFrontier:
    """Return plans in rising time and falling energy, each with its lower bound.

    If the job has a reserve, the bounds are on plans that keep it and are no faster. To run one of
    the plans, set the target `deadline:` with its `deadline_s`. A job without a profile is a 409.
    The answer takes as long as planning, much longer with effort `high`; it is cached until the
    job's profile, schedule or effort changes.
    """
    asked = (state.services, state.frontiers, job_id, points)
    found = await run_in_threadpool(frontier.known_frontier, *asked)
    if found is None:
        found = await to_thread.run_sync(
            frontier.get_frontier, *asked, limiter=state.frontier_threads
        )
    return found
