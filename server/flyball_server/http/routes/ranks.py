"""Ranks: register, fetch a plan, acknowledge it, post what was measured."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query, Response

from flyball_server.http.dependencies import JSON, JobId, JsonBody, Rank, State, WaitS, call_router
from flyball_server.http.mapping.jobs import (
    activation_view,
    launch,
    rank_post,
    rank_record,
    registered_view,
)
from flyball_server.http.openapi import examples
from flyball_server.http.openapi.documentation import (
    JSON_BODY_ERRORS,
    READ_ERRORS,
    answers,
    json_body,
)
from flyball_server.jobs.activation.plan_versions import HeldVersion, activation_of
from flyball_server.jobs.activation.rank_plans import PlanQuestion
from flyball_server.jobs.bounds import MAX_COUNT
from flyball_server.jobs.records import ActivationRecord
from flyball_wire import messages, routes

ROUTER = call_router("ranks")


@ROUTER.put(
    routes.RANK,
    summary="Register a rank",
    dependencies=[JsonBody],
    responses=answers(
        examples.REGISTERED_RANK, 404, *JSON_BODY_ERRORS, meaning="The rank is known."
    ),
)
async def put_rank(
    state: State,
    job_id: JobId,
    rank: Rank,
    registration: Annotated[messages.RankRegistration, json_body(examples.RANK_REGISTRATION)],
) -> messages.RegisteredRank:
    """A rank that registers again (it was restarted) takes its old place, without a plan."""
    known = (rank_record(job_id, rank, registration), launch(registration))
    return registered_view(await state.rank_calls.registrations.submit(job_id, known))


@ROUTER.get(
    routes.RANK_PLAN,
    summary="Fetch a rank's newest plan",
    response_model=messages.RankPlan,
    responses={
        **answers(examples.RANK_PLAN, 404, *READ_ERRORS, meaning="A newer plan."),
        204: {"description": "No newer plan within the time to wait."},
    },
)
async def get_rank_plan(
    state: State,
    job_id: JobId,
    rank: Rank,
    wait_s: WaitS,
    after_version: Annotated[
        int, Query(ge=0, le=MAX_COUNT, description="The version that the rank has; 0: none.")
    ] = 0,
) -> Response:
    """The newest version if it is newer than `after_version`; else waits for one (long poll)."""
    question = PlanQuestion(rank=rank, after_version=after_version)

    async def look() -> bytes | None:
        return await state.rank_calls.plans.submit(job_id, question)

    found = await state.waiters.until(job_id, look, wait_s=wait_s)
    state.services.record_heartbeat(job_id, (rank,))
    return Response(status_code=204) if found is None else Response(found, media_type=JSON)


@ROUTER.post(
    routes.RANK_ACKNOWLEDGEMENT,
    summary="Acknowledge a plan version",
    dependencies=[JsonBody],
    responses=answers(
        examples.ACTIVATION,
        404,
        409,
        *JSON_BODY_ERRORS,
        meaning="From which step the version holds.",
    ),
)
async def post_acknowledgement(
    state: State,
    job_id: JobId,
    rank: Rank,
    acknowledgement: Annotated[messages.Acknowledgement, json_body(examples.ACKNOWLEDGEMENT)],
    wait_s: WaitS,
) -> messages.Activation:
    """The rank has this version ready. Once all ranks have, a step to come is named for it.

    Waits until that step is named, or a newer version is there (long poll). `first_step` is
    null where other ranks are still awaited: acknowledge again, which changes nothing else.
    """
    held = HeldVersion(
        rank=rank,
        version=acknowledgement.version,
        current_step=acknowledgement.current_step,
        run_id=acknowledgement.run_id,
    )
    activation = await state.rank_calls.acknowledgements.submit(job_id, held)
    state.services.record_heartbeat(job_id, (rank,))

    async def look() -> ActivationRecord | None:
        activations = await state.rank_calls.activations.submit(job_id, None)
        found = activation_of(activations, job_id, held.version)
        is_newest = activations[-1].version == held.version
        return None if found.first_step is None and is_newest else found

    if activation.first_step is None:
        activation = await state.waiters.until(job_id, look, wait_s=wait_s) or activation
        state.services.record_heartbeat(job_id, (rank,))
    return activation_view(activation)


@ROUTER.post(
    routes.RANK_MEASUREMENTS,
    summary="Post measured steps",
    dependencies=[JsonBody],
    responses=answers(examples.ACCEPTED, 404, 409, *JSON_BODY_ERRORS, meaning="They are stored."),
)
async def post_measurements(
    state: State,
    job_id: JobId,
    rank: Rank,
    batch: Annotated[messages.MeasurementBatch, json_body(examples.MEASUREMENTS)],
) -> messages.Accepted:
    """Time and energy of this rank's steps; a step posted again replaces the older one.

    Where the rank's plan asks for it (`report`), also what their instructions took.
    """
    post = rank_post(job_id, rank, batch)
    stored = await state.rank_calls.measurements.submit(job_id, post)
    state.services.record_heartbeat(job_id, (rank,))
    return messages.Accepted(stored=stored.num_steps, next_post_s=stored.next_post_s)
