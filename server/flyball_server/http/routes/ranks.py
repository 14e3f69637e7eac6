"""Ranks: register, fetch a plan, acknowledge it, post what was measured."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query, Response

from flyball_server.http.call_router import call_router
from flyball_server.http.dependencies import JSON, JobId, JsonBody, Rank, State, WaitS
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
from flyball_server.jobs.activation.acknowledgements import HeldVersion
from flyball_server.jobs.activation.rank_plans import PlanAnswer, PlanQuestion
from flyball_server.jobs.bounds import MAX_COUNT
from flyball_server.jobs.outcomes import only
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
    return registered_view(only(await state.rank_calls.registrations.ask(job_id, (known,))))


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
    question = PlanQuestion(ranks=(rank,), after_version=after_version)

    async def look() -> PlanAnswer | None:
        answer = await state.rank_calls.plans.ask(job_id, question)
        return answer if answer.is_news else None

    found = await state.waiters.until(job_id, look, wait_s=wait_s)
    if found is None:
        state.services.seen(job_id, (rank,))
        return Response(status_code=204)
    for error in found.failures.values():
        raise error
    state.services.seen(job_id, (rank,))
    return Response(found.parts[0].rendered, media_type=JSON)


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
) -> messages.Activation:
    """The rank has this version ready. Once all ranks have, a step to come is named for it.

    `first_step` is null while other ranks are awaited: poll the version's activation.
    """
    held = HeldVersion(
        rank=rank,
        version=acknowledgement.version,
        current_step=acknowledgement.current_step,
        run_id=acknowledgement.run_id,
    )
    activation = only(await state.rank_calls.acknowledgements.ask(job_id, (held,)))
    state.services.seen(job_id, (rank,))
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
    stored = only(await state.rank_calls.measurements.ask(job_id, (post,)))
    state.services.seen(job_id, (rank,))
    return messages.Accepted(stored=stored)
