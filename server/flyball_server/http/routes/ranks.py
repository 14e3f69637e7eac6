"""Ranks: register, fetch a plan, acknowledge it, post measurements, leave."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query, Response

from flyball_server.http.dependencies import JobId, Rank, State, WaitS
from flyball_server.http.mapping import rank_post, rank_record, registered_view
from flyball_server.http.middleware.token_access import CallerAccess
from flyball_server.http.openapi.documentation import JSON, call_router, problems
from flyball_server.jobs.bounds import MAX_COUNT, MAX_TEXT_CHARACTERS
from flyball_server.jobs.registry.registration import leave_rank
from flyball_server.jobs.versions.plan_versions import HeldVersion, version_of
from flyball_server.jobs.versions.rank_plans import PlanQuestion
from flyball_wire import messages, routes
from flyball_wire.measurements import Accepted, MeasurementBatch
from flyball_wire.messages import PlanVersion
from flyball_wire.plans.rank_plan import RankPlan

ROUTER = call_router("ranks")


@ROUTER.put(routes.RANK, summary="Register a rank", response_description="The rank is registered.")
async def put_rank(
    state: State, job_id: JobId, rank: Rank, registration: messages.RankRegistration
) -> messages.RegisteredRank:
    """Register a rank; a restarted rank registers again and takes its place, without a plan."""
    record = rank_record(job_id, rank, registration)
    return registered_view(await state.rank_calls.registrations.submit(job_id, record))


@ROUTER.get(
    routes.RANK_PLAN,
    summary="Fetch a rank's newest plan",
    response_model=RankPlan,
    response_description="A newer plan.",
    responses={204: {"description": "No newer plan within the time to wait."}, **problems(409)},
)
async def get_rank_plan(
    state: State,
    job_id: JobId,
    rank: Rank,
    wait_s: WaitS,
    after_version: Annotated[
        int, Query(ge=0, le=MAX_COUNT, description="Version that the rank has; 0: none.")
    ] = 0,
    *,
    access: CallerAccess,
    plan_id: Annotated[
        str | None,
        Query(max_length=64, description="`plan_id` of the plan that the rank has."),
    ] = None,
    start_id: Annotated[
        str | None,
        Query(
            max_length=MAX_TEXT_CHARACTERS,
            description="`start_id` in the answer to the rank's registration.",
        ),
    ] = None,
) -> Response:
    """Return the newest version if it is newer than `after_version`; else wait (long poll).

    With `plan_id`, any other plan is newer than that plan: after the planner's database was
    restored to an older state, its newest version may have a lower number.
    """
    question = PlanQuestion(
        rank=rank, after_version=after_version, plan_id=plan_id, start_id=start_id
    )

    async def newer_plan() -> bytes | None:
        return await state.rank_calls.plans.submit(job_id, question)

    found = await state.waiters.until(job_id, newer_plan, wait_s=wait_s)
    if not access.is_read_only:  # a reader is not the rank
        state.services.record_heartbeat(job_id, (rank,))
    return Response(status_code=204) if found is None else Response(found, media_type=JSON)


@ROUTER.post(
    routes.RANK_ACKNOWLEDGEMENT,
    summary="Acknowledge a plan version",
    response_description="The first step of the version.",
    responses=problems(409),
)
async def post_acknowledgement(
    state: State,
    job_id: JobId,
    rank: Rank,
    acknowledgement: messages.Acknowledgement,
    wait_s: WaitS,
) -> messages.PlanVersion:
    """Acknowledge that the rank holds a version; after all ranks have, its first step is named.

    Waits for the first step or a newer version (long poll). `first_step` is null while other
    ranks are missing: acknowledge again, which changes nothing else.
    """
    held = HeldVersion(
        rank=rank,
        version=acknowledgement.version,
        current_step=acknowledgement.current_step,
        start_id=acknowledgement.start_id,
    )
    acknowledged = await state.rank_calls.acknowledgements.submit(job_id, held)
    state.services.record_heartbeat(job_id, (rank,))

    async def named_or_replaced() -> PlanVersion | None:
        versions = await state.rank_calls.versions.submit(job_id, None)
        found = version_of(versions, job_id, held.version)
        is_newest = versions[-1].version == held.version
        return None if found.first_step is None and is_newest else found

    if acknowledged.first_step is None:
        named = await state.waiters.until(job_id, named_or_replaced, wait_s=wait_s)
        acknowledged = named or acknowledged
        state.services.record_heartbeat(job_id, (rank,))
    return acknowledged


@ROUTER.post(
    routes.RANK_MEASUREMENTS,
    summary="Post measured steps",
    response_description="The steps are stored.",
    responses=problems(409),
)
async def post_measurements(
    state: State, job_id: JobId, rank: Rank, batch: MeasurementBatch
) -> Accepted:
    """Store time and energy of the rank's steps; a step posted again replaces the older.

    A step counts once in the report, with its first measurement if it had counted before. After the
    training has started over it is another step, and counts too.

    If `measurement_detail` of the rank's plan asks for it, steps have their instructions' times.
    A `plan_version` that the job does not have is a 422 without a `plan_id`; with one the step is
    kept apart as run on an unknown plan, and counts in no total.
    """
    post = rank_post(job_id, rank, batch)
    accepted = await state.rank_calls.measurements.submit(job_id, post)
    state.services.record_heartbeat(job_id, (rank,))
    return accepted


@ROUTER.post(
    routes.RANK_DEPARTURE,
    summary="End a rank's training",
    status_code=204,
    response_description="The rank has left.",
    responses=problems(409),
)
def post_departure(state: State, job_id: JobId, rank: Rank, departure: messages.Departure) -> None:
    """Mark the rank as left and keep its measurements; after all ranks the job is `ended`.

    The departure of an unknown rank is no error.
    """
    leave_rank(state.services, job_id, rank, departure.start_id)
