"""Ranks together: what several ranks of a job, usually those of a node, call as one.

Each rank is answered for itself, with the status that its own call would have had; so an unknown
job fails for each of them, and only a body that cannot be read is refused as a whole.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, TypeVar

from fastapi import Query, Response

from flyball_server.http.call_router import call_router
from flyball_server.http.dependencies import JSON, JobId, JsonBody, State, WaitS
from flyball_server.http.error_table import status_of
from flyball_server.http.mapping.jobs import launch, rank_post, rank_record, registered_view
from flyball_server.http.openapi import batch_examples as examples
from flyball_server.http.openapi.documentation import (
    JSON_BODY_ERRORS,
    READ_ERRORS,
    answers,
    json_body,
)
from flyball_server.http.problem_handlers import fault_detail
from flyball_server.jobs.activation.acknowledgements import HeldVersion
from flyball_server.jobs.activation.rank_plans import PlanAnswer, PlanQuestion
from flyball_server.jobs.bounds import MAX_COUNT
from flyball_server.jobs.errors import (
    InvalidFieldError,
    JobsError,
    PlannerFaultError,
    UnknownJobError,
)
from flyball_server.jobs.measurements.measurements import RankPost
from flyball_server.jobs.records import MAX_RANKS
from flyball_wire import batches, routes
from flyball_wire.codec import encode

ROUTER = call_router("ranks together")
T = TypeVar("T")
Made = TypeVar("Made")

_RANKS_PATTERN = "^[0-9]{1,7}(,[0-9]{1,7})*$"
_MAX_RANKS_CHARACTERS = 8 * batches.MAX_RANKS_PER_CALL


@ROUTER.put(
    routes.RANKS,
    summary="Register ranks",
    dependencies=[JsonBody],
    responses=answers(examples.RANKS, *JSON_BODY_ERRORS, meaning="Each rank is known, or why not."),
)
async def put_ranks(
    state: State,
    job_id: JobId,
    batch: Annotated[batches.RegistrationBatch, json_body(examples.REGISTRATIONS)],
) -> batches.RanksAnswer:
    """As if each rank registered itself."""
    _check_length(batch.ranks)
    newest = {entry.rank: entry.registration for entry in batch.ranks}
    made, failures = _made(
        newest, lambda rank: (rank_record(job_id, rank, newest[rank]), launch(newest[rank]))
    )
    outcomes = await state.rank_calls.registrations.ask(job_id, list(made.values()))
    known, failed = _parted(zip(made, outcomes, strict=True))
    return batches.RanksAnswer(
        ranks=tuple(registered_view(each) for each in known.values()), failures=(*failures, *failed)
    )


@ROUTER.get(
    routes.RANKS_PLANS,
    summary="Fetch ranks' newest plans",
    response_model=batches.PlansAnswer,
    responses={
        **answers(examples.PLANS, *READ_ERRORS, meaning="A newer plan, or unknown ranks."),
        204: {"description": "No newer plan within the time to wait."},
    },
)
async def get_ranks_plans(
    state: State,
    job_id: JobId,
    wait_s: WaitS,
    ranks: Annotated[
        str,
        Query(
            pattern=_RANKS_PATTERN,
            max_length=_MAX_RANKS_CHARACTERS,
            description="Rank numbers, at most 1024: `0,1,2`.",
            examples=["0,1"],
        ),
    ],
    after_version: Annotated[
        int, Query(ge=0, le=MAX_COUNT, description="The version that these ranks have; 0: none.")
    ] = 0,
) -> Response:
    """The newest version if it is newer than `after_version`; else waits for one (long poll).

    Ranks that run the same share a plan. Where a rank is not known the answer comes at once.
    """
    wanted = tuple(dict.fromkeys(int(rank) for rank in ranks.split(",")))
    _check_length(wanted)
    question = PlanQuestion(ranks=wanted, after_version=after_version)

    async def look() -> PlanAnswer | None:
        answer = await state.rank_calls.plans.ask(job_id, question)
        return answer if answer.is_news else None

    try:
        found = await state.waiters.until(job_id, look, wait_s=wait_s)
    except UnknownJobError as error:
        found = PlanAnswer(parts=(), failures=dict.fromkeys(wanted, error))
    else:
        failed = {} if found is None else found.failures
        state.services.seen(job_id, [rank for rank in wanted if rank not in failed])
    if found is None:
        return Response(status_code=204)
    return Response(_plans_body(found), media_type=JSON)


@ROUTER.post(
    routes.RANKS_ACKNOWLEDGEMENTS,
    summary="Acknowledge plan versions",
    dependencies=[JsonBody],
    responses=answers(
        examples.ACTIVATIONS, *JSON_BODY_ERRORS, meaning="From which steps the versions hold."
    ),
)
async def post_acknowledgements(
    state: State,
    job_id: JobId,
    batch: Annotated[batches.AcknowledgementBatch, json_body(examples.ACKNOWLEDGEMENTS)],
) -> batches.ActivationsAnswer:
    """As if each rank acknowledged its version; `first_step` is as it stands after them all."""
    _check_length(batch.ranks)
    held = {
        entry.rank: HeldVersion(
            rank=entry.rank,
            version=entry.version,
            current_step=entry.current_step,
            run_id=entry.run_id,
        )
        for entry in batch.ranks
    }
    outcomes = await state.rank_calls.acknowledgements.ask(job_id, list(held.values()))
    noted, failures = _parted(zip(held, outcomes, strict=True))
    state.services.seen(job_id, noted)
    return batches.ActivationsAnswer(
        ranks=tuple(
            batches.OneActivation(
                rank=rank, version=activation.version, first_step=activation.first_step
            )
            for rank, activation in noted.items()
        ),
        failures=failures,
    )


@ROUTER.post(
    routes.RANKS_MEASUREMENTS,
    summary="Post ranks' measured steps",
    dependencies=[JsonBody],
    responses=answers(
        examples.ACCEPTED, *JSON_BODY_ERRORS, meaning="Each rank's steps are stored, or why not."
    ),
)
async def post_ranks_measurements(
    state: State,
    job_id: JobId,
    batch: Annotated[batches.StepBatch, json_body(examples.STEPS)],
) -> batches.AcceptedAnswer:
    """As if each rank posted its own steps."""
    _check_length(batch.ranks)
    steps = {entry.rank: entry for entry in batch.ranks}
    if len(steps) < len(batch.ranks):
        raise InvalidFieldError("ranks", "must name each rank once")
    made, failures = _made(steps, lambda rank: rank_post(job_id, rank, steps[rank]))
    posts: list[RankPost] = list(made.values())
    outcomes = await state.rank_calls.measurements.ask(job_id, posts)
    stored, failed = _parted(zip(made, outcomes, strict=True))
    state.services.seen(job_id, stored)
    return batches.AcceptedAnswer(
        ranks=tuple(
            batches.OneAccepted(rank=rank, stored=number) for rank, number in stored.items()
        ),
        failures=(*failures, *failed),
    )


def _check_length(ranks: Sequence[object]) -> None:
    if not 1 <= len(ranks) <= batches.MAX_RANKS_PER_CALL:
        raise InvalidFieldError("ranks", f"must be 1 to {batches.MAX_RANKS_PER_CALL} of them")


def _made(
    ranks: Iterable[int], make: Callable[[int], Made]
) -> tuple[dict[int, Made], tuple[batches.RankFailure, ...]]:
    """By rank what could be made of it, and the ranks whose values are out of bounds."""
    made: dict[int, Made] = {}
    failures: list[batches.RankFailure] = []
    for rank in ranks:
        try:
            if not 0 <= rank < MAX_RANKS:
                raise InvalidFieldError("rank", f"must be 0 to {MAX_RANKS - 1}")
            made[rank] = make(rank)
        except InvalidFieldError as error:
            failures.append(_failure(rank, error))
    return made, tuple(failures)


def _parted(
    outcomes: Iterable[tuple[int, T | JobsError]],
) -> tuple[dict[int, T], tuple[batches.RankFailure, ...]]:
    """By rank what was done, and what was not."""
    done: dict[int, T] = {}
    failures: list[batches.RankFailure] = []
    for rank, outcome in outcomes:
        if isinstance(outcome, JobsError):
            failures.append(_failure(rank, outcome))
        else:
            done[rank] = outcome
    return done, tuple(failures)


def _failure(rank: int, error: JobsError) -> batches.RankFailure:
    detail = fault_detail(error) if isinstance(error, PlannerFaultError) else error.message
    return batches.RankFailure(rank=rank, status=status_of(error), detail=detail)


def _plans_body(answer: PlanAnswer) -> bytes:
    """A PlansAnswer, its parts as they were rendered before."""
    plans = b",".join(
        b'{"ranks":%b,"plan":%b}' % (json.dumps(part.ranks).encode(), part.rendered)
        for part in answer.parts
    )
    failures: Mapping[int, JobsError] = answer.failures
    told = [encode(_failure(rank, error)) for rank, error in failures.items()]
    return b'{"plans":[%b],"failures":%b}' % (plans, json.dumps(told).encode())
