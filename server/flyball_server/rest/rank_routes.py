"""Ranks: register, fetch a plan, acknowledge it, post what was measured."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Response
from starlette.concurrency import run_in_threadpool

from flyball_client import routes, wire
from flyball_server.jobs.activation import StagePlan, acknowledge, newer_plan
from flyball_server.jobs.bounds import MAX_COUNT
from flyball_server.jobs.measurements import store_measurements
from flyball_server.jobs.registration import register_rank
from flyball_server.rest import examples
from flyball_server.rest.dependencies import JobId, JsonBody, Rank, State, WaitS
from flyball_server.rest.documentation import JSON_BODY_ERRORS, READ_ERRORS, answers, json_body
from flyball_server.rest.mapping import (
    activation_view,
    rank_plan,
    rank_record,
    rank_view,
    step_details,
    step_records,
)

ROUTER = APIRouter(tags=["ranks"])


@ROUTER.put(
    routes.RANK,
    summary="Register a rank",
    dependencies=[JsonBody],
    responses=answers(examples.RANK, 404, *JSON_BODY_ERRORS, meaning="The rank is known."),
)
def put_rank(
    state: State,
    job_id: JobId,
    rank: Rank,
    registration: Annotated[wire.RankRegistration, json_body(examples.RANK_REGISTRATION)],
) -> wire.RankView:
    """A rank that registers again (it was restarted) takes its old place, without a plan."""
    record = rank_record(job_id, rank, registration)
    return rank_view(register_rank(state.services, record))


@ROUTER.get(
    routes.RANK_PLAN,
    summary="Fetch a rank's newest plan",
    response_model=wire.RankPlan,
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
) -> wire.RankPlan | Response:
    """The newest version if it is newer than `after_version`; else waits for one (long poll)."""

    async def look() -> StagePlan | None:
        return await run_in_threadpool(
            newer_plan, state.services, job_id, rank, after_version=after_version
        )

    found = await state.waiters.until(job_id, look, wait_s=wait_s)
    return Response(status_code=204) if found is None else rank_plan(found)


@ROUTER.post(
    routes.RANK_ACKNOWLEDGEMENT,
    summary="Acknowledge a plan version",
    dependencies=[JsonBody],
    responses=answers(
        examples.ACTIVATION, 404, *JSON_BODY_ERRORS, meaning="From which step the version holds."
    ),
)
def post_acknowledgement(
    state: State,
    job_id: JobId,
    rank: Rank,
    acknowledgement: Annotated[wire.Acknowledgement, json_body(examples.ACKNOWLEDGEMENT)],
) -> wire.Activation:
    """The rank has this version ready. Once all ranks have, a step to come is named for it.

    `first_step` is null while other ranks are awaited: poll the version's activation.
    """
    activation = acknowledge(
        state.services,
        job_id,
        rank,
        version=acknowledgement.version,
        current_step=acknowledgement.current_step,
    )
    return activation_view(activation)


@ROUTER.post(
    routes.RANK_MEASUREMENTS,
    summary="Post measured steps",
    dependencies=[JsonBody],
    responses=answers(examples.ACCEPTED, 404, *JSON_BODY_ERRORS, meaning="They are stored."),
)
def post_measurements(
    state: State,
    job_id: JobId,
    rank: Rank,
    batch: Annotated[wire.MeasurementBatch, json_body(examples.MEASUREMENTS)],
) -> wire.Accepted:
    """Time and energy of this rank's steps; a step posted again replaces the older one.

    Where the rank's plan asks for it (`report`), also what their instructions took.
    """
    stored = store_measurements(
        state.services,
        job_id,
        rank,
        step_records(job_id, rank, batch),
        step_details(job_id, rank, batch),
    )
    return wire.Accepted(stored=stored)
