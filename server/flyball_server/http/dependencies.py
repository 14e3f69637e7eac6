"""Dependencies of the routes: the planner's parts, the kind of body, checked parameters."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, cast

from anyio import CapacityLimiter
from fastapi import APIRouter, Depends, Path, Query, Request, Security
from fastapi.routing import APIRoute
from pydantic import BeforeValidator

from flyball_profiles.stage_profile import StageProfile
from flyball_server.http.edge_errors import ContentTypeError, TooManyWaitingError
from flyball_server.http.events.live_events import LiveEvents
from flyball_server.http.mapping.jobs import rank_plan, rendered
from flyball_server.http.middleware.token_access import TOKEN_SCHEME
from flyball_server.http.overviews import Overviews
from flyball_server.http.readiness import Readiness
from flyball_server.http.request_batcher import RequestBatcher
from flyball_server.http.timeline_answers import TimelineAnswers
from flyball_server.jobs.activation.plan_versions import (
    HeldVersion,
    acknowledge_together,
    list_activations,
)
from flyball_server.jobs.activation.rank_plans import PlanQuestion, RankPlans, StagePlan
from flyball_server.jobs.auth.access import TokenGate
from flyball_server.jobs.bounds import MAX_COUNT
from flyball_server.jobs.errors import InvalidFieldError
from flyball_server.jobs.lifecycle.heartbeats import Heartbeats
from flyball_server.jobs.measurements.measurements import RankPost, StoredPost, store_together
from flyball_server.jobs.reconcile.loop import ReconcileLoop
from flyball_server.jobs.records import (
    ANY_JOB_ID_PATTERN,
    JOB_ID_PATTERN,
    MAX_RANKS,
    ActivationRecord,
    JobSpec,
    RankRecord,
)
from flyball_server.jobs.registry.launch import Launch
from flyball_server.jobs.registry.registration import KnownRank, register_together
from flyball_server.jobs.replanning.plan_job import PlanCoalescer
from flyball_server.jobs.services import JobServices
from flyball_server.jobs.waiters import JobWaiters
from flyball_server.prometheus.process_metrics import ProcessMetrics
from flyball_server.settings import (
    Settings,
)
from flyball_server.views.frontier import FrontierMemory
from flyball_server.views.history import HistoryMemory
from flyball_wire.messages import RankPlan


def call_router(tag: str, *, is_open: bool = False) -> APIRouter:
    """A router of calls with this tag in the API's description.

    Args:
        tag: what its calls are about.
        is_open: whether they need no token.
    """
    return APIRouter(
        tags=[tag],
        dependencies=[] if is_open else [Security(TOKEN_SCHEME)],
        generate_unique_id_function=_operation_id,
    )


def _operation_id(route: APIRoute) -> str:
    return route.name


class RankCalls:
    """Batchers of the ranks' calls, for all jobs.

    Attributes:
        registrations: ranks, with the start that each belongs to.
        plans: questions for a newer plan; the rendered plan, or None where there is none.
        activations: questions for the first steps of a job's versions.
        acknowledgements: versions that ranks hold.
        measurements: posts.
    """

    def __init__(self, services: JobServices) -> None:
        rank_plans = RankPlans(_rendered)
        self.registrations: RequestBatcher[tuple[RankRecord, Launch], KnownRank] = RequestBatcher(
            functools.partial(register_together, services)
        )
        self.plans: RequestBatcher[PlanQuestion, bytes | None] = RequestBatcher(
            functools.partial(rank_plans.answer, services)
        )
        self.activations: RequestBatcher[None, tuple[ActivationRecord, ...]] = RequestBatcher(
            functools.partial(_activations, services)
        )
        self.acknowledgements: RequestBatcher[HeldVersion, ActivationRecord] = RequestBatcher(
            functools.partial(acknowledge_together, services)
        )
        self.measurements: RequestBatcher[RankPost, StoredPost] = RequestBatcher(
            functools.partial(store_together, services)
        )


def _activations(
    services: JobServices, job_id: str, questions: Sequence[None]
) -> Sequence[tuple[ActivationRecord, ...]]:
    return [list_activations(services, job_id)] * len(questions)


def _rendered(part: StagePlan) -> bytes:
    return rendered(RankPlan, rank_plan(part))


JSON = "application/json"
# When a call that cannot be held is to come again, s.
RETRY_AFTER_S = 5
# Streams of no time that are held at once, beside the calls that wait: who is refused a stream asks
# for these. Each lasts as long as a look, which may be a minute where the history is read first.
MOST_ANSWERED_AT_ONCE = 256


@dataclass(frozen=True, kw_only=True)
class PlannerState:
    """State of one app, under `app.state.planner`."""

    settings: Settings
    services: JobServices
    waiters: JobWaiters
    heartbeats: Heartbeats
    reconcile_loop: ReconcileLoop
    frontiers: FrontierMemory
    histories: HistoryMemory
    timelines: TimelineAnswers
    history_threads: CapacityLimiter
    plan_coalescer: PlanCoalescer
    frontier_threads: CapacityLimiter
    gate: TokenGate
    rank_calls: RankCalls
    metrics: ProcessMetrics
    readiness: Readiness
    overviews: Overviews
    live_events: LiveEvents


# These are async, though they await nothing: each other would take a thread for every call.
async def planner_state(request: Request) -> PlannerState:
    """The state of the app that serves this call."""
    return cast("PlannerState", request.app.state.planner)


State = Annotated[PlannerState, Depends(planner_state)]


def content_type(request: Request) -> str:
    """The body's content type without its parameters, in lower case."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def require_content_type(request: Request, *wanted: str) -> str:
    """The body's content type, which must be one of those wanted, and the body not compressed.

    Raises:
        ContentTypeError: it says something else, or nothing.
    """
    kind = content_type(request)
    names = " or ".join(wanted)
    if kind not in wanted:
        raise ContentTypeError(wanted=names)
    if request.headers.get("content-encoding", "identity").strip().lower() != "identity":
        raise ContentTypeError(wanted=f"{names} and without a content encoding")
    return kind


async def require_json(request: Request) -> None:
    """Refuse a body that does not say it is JSON.

    Raises:
        ContentTypeError: it says something else, or nothing.
    """
    require_content_type(request, JSON)


async def granted_wait_s(
    state: State,
    wait_s: Annotated[
        float,
        Query(
            ge=0,
            description="Wait so long for an answer, s; never longer than the planner's limit"
            " (60 unless FLYBALL_MAX_WAIT_S says otherwise).",
            examples=[30],
        ),
    ] = 0,
) -> float:
    """Return how long a long poll waits, s: as asked, or as long as the planner grants.

    Raises:
        TooManyWaitingError: it would have to be held, and no more are.
    """
    granted_s = min(wait_s, state.settings.max_wait_s)
    if granted_s > 0:
        _refuse_too_many(state.waiters.num_waiting, state.settings.max_waiting)
    return granted_s


async def granted_stream_s(
    state: State,
    wait_s: Annotated[
        float | None,
        Query(
            ge=0,
            description="End after so long, s; never later than the planner's limit, which it is"
            " where nothing is given (60 unless FLYBALL_MAX_WAIT_S says otherwise). 0: with what"
            " there is now.",
            examples=[30],
        ),
    ] = None,
) -> float:
    """Return how long a stream of events lasts, s: as asked, or as long as the planner grants.

    Also one of no time is held, until what it tells has been looked at: these have a limit of
    their own.

    Raises:
        TooManyWaitingError: no more are held.
    """
    granted_s = min(math.inf if wait_s is None else wait_s, state.settings.max_wait_s)
    if granted_s > 0:
        _refuse_too_many(state.waiters.num_waiting, state.settings.max_waiting)
    else:
        _refuse_too_many(state.waiters.num_at_once, MOST_ANSWERED_AT_ONCE)
    return granted_s


def _refuse_too_many(num_held: int, most: int) -> None:
    if num_held >= most:
        raise TooManyWaitingError(retry_after_s=RETRY_AFTER_S)


def in_digits(text: str) -> str:
    """The same, so that a rank has one address: pydantic also reads `+1`, `1.0` and `1_0`.

    Raises:
        ValueError: it is not written in digits alone, which pydantic takes for its error.
    """
    if not text.removeprefix("-").isdigit():
        raise ValueError("write it in digits")
    return text


JsonBody = Depends(require_json)
AfterStep = Annotated[
    int,
    Query(ge=-1, le=MAX_COUNT, description="Only steps after this one; -1: all."),
    BeforeValidator(in_digits),
]
WaitS = Annotated[float, Depends(granted_wait_s)]
StreamS = Annotated[float, Depends(granted_stream_s)]
JobId = Annotated[
    str,
    Path(
        pattern=ANY_JOB_ID_PATTERN,
        description="The job's name: 1 to 128 of A-Z a-z 0-9 . _ -, no dot first; of an earlier run"
        " with @ and its number behind it.",
        examples=["gpt2-demo"],
    ),
]
NewJobId = Annotated[
    str,
    Path(
        pattern=JOB_ID_PATTERN,
        description="The job's name: 1 to 128 of A-Z a-z 0-9 . _ -, no dot first.",
        examples=["gpt2-demo"],
    ),
]
Rank = Annotated[
    int,
    Path(ge=0, lt=MAX_RANKS, description="Rank number, from 0.", examples=[0]),
    BeforeValidator(in_digits),
]
Version = Annotated[
    int,
    Path(ge=1, le=MAX_COUNT, description="Plan version, from 1.", examples=[1]),
    BeforeValidator(in_digits),
]


def check_size(state: PlannerState, spec: JobSpec) -> None:
    """Refuse a job of more instructions than the planner takes.

    Raises:
        InvalidFieldError: it has too many instructions.
    """
    limit = state.settings.max_instructions
    if 2 * spec.num_stages * spec.num_microbatches > limit:
        raise InvalidFieldError(
            "num_microbatches",
            f"must be at most {limit // (2 * spec.num_stages)} with"
            f" {spec.num_stages} stages; FLYBALL_MAX_INSTRUCTIONS allows {limit}"
            " forwards and backwards",
        )


def check_profile(state: PlannerState, profile: StageProfile) -> None:
    """Check that a profile has no more points than the planner takes.

    Raises:
        InvalidFieldError: it has more.
    """
    limit = state.settings.max_profile_points
    num_points = sum(
        len(points) for part in (profile, *profile.chunks) for points in part.points.values()
    )
    if num_points > limit:
        raise InvalidFieldError(
            "profile",
            f"must have at most {limit} points (FLYBALL_MAX_PROFILE_POINTS), not {num_points}",
        )
