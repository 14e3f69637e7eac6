"""Dependencies of the routes: the planner's state and checked parameters."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, TypeVar, cast

from anyio import CapacityLimiter
from fastapi import Depends, Path, Query, Request
from pydantic import BeforeValidator
from starlette.concurrency import run_in_threadpool

from flyball_profiles.stage_profile import StageProfile
from flyball_server.http.edge_errors import RETRY_AFTER_S, TooManyWaitingError
from flyball_server.http.events.live_events import LiveEvents
from flyball_server.http.mapping import job_view
from flyball_server.http.overviews import Overviews
from flyball_server.http.readiness import Readiness
from flyball_server.http.timeline_answers import TimelineAnswers
from flyball_server.jobs.auth.access import TokenGate
from flyball_server.jobs.bounds import MAX_COUNT
from flyball_server.jobs.errors import InvalidFieldError, JobsError, PlanningStoppedError
from flyball_server.jobs.job_state import JobInput
from flyball_server.jobs.lifecycle.heartbeats import Heartbeats
from flyball_server.jobs.measurements.measurements import RankPost, store_together
from flyball_server.jobs.reconcile.loop import ReconcileLoop
from flyball_server.jobs.records import ANY_JOB_ID_PATTERN, JOB_ID_PATTERN, RankRecord
from flyball_server.jobs.registry.inspection import JobSummary, get_job
from flyball_server.jobs.registry.registration import KnownRank, register_together
from flyball_server.jobs.services import JobServices
from flyball_server.jobs.versions.plan_versions import (
    HeldVersion,
    acknowledge_together,
    list_versions,
)
from flyball_server.jobs.versions.planning import answer, answer_together
from flyball_server.jobs.versions.rank_plans import PlanQuestion, RankPlans
from flyball_server.jobs.versions.single_plan_starts import CommonPart, hold_common_version
from flyball_server.jobs.waiters import JobWaiters
from flyball_server.kit.batcher import Batcher
from flyball_server.kit.checked_documents import adapter_of
from flyball_server.prometheus.process_metrics import ProcessMetrics
from flyball_server.settings import Settings
from flyball_server.views.frontier import FrontierMemory
from flyball_server.views.history import HistoryMemory
from flyball_server.views.job_figures import SharedReading
from flyball_wire.measurements import Accepted
from flyball_wire.messages import MAX_RANKS, JobSpec, JobView, PlanVersion
from flyball_wire.plans.rank_plan import RankPlan


class RankCalls:
    """Batchers of the ranks' calls, for all jobs.

    Attributes:
        registrations: registrations.
        plans: requests for a newer plan; rendered, None: there is none.
        versions: requests for the first steps of a job's versions.
        acknowledgements: acknowledged versions.
        measurements: posted measurements.
        common_versions: requests of ranks that fetch one plan; None: there is none yet.
        answers: requests that wait for a plan, by the input that they have stored; false: not yet.
    """

    def __init__(self, services: JobServices) -> None:
        rank_plans = RankPlans(adapter_of(RankPlan).dump_json)
        self.registrations: Batcher[RankRecord, KnownRank] = _batcher(services, register_together)
        self.plans: Batcher[PlanQuestion, bytes | None] = _batcher(services, rank_plans.answer)
        self.versions: Batcher[None, tuple[PlanVersion, ...]] = _batcher(services, _versions)
        self.acknowledgements: Batcher[HeldVersion, PlanVersion] = _batcher(
            services, acknowledge_together
        )
        self.measurements: Batcher[RankPost, Accepted] = _batcher(services, store_together)
        self.common_versions: Batcher[int, CommonPart | None] = _batcher(
            services, hold_common_version
        )
        self.answers: Batcher[JobInput, bool] = _batcher(services, answer_together)


Item = TypeVar("Item")
Outcome = TypeVar("Outcome")


def _batcher(
    services: JobServices,
    work: Callable[[JobServices, str, Sequence[Item]], Sequence[Outcome | JobsError]],
) -> Batcher[Item, Outcome]:
    return Batcher(functools.partial(work, services), shared_error=JobsError)


def _versions(
    services: JobServices, job_id: str, questions: Sequence[None]
) -> Sequence[tuple[PlanVersion, ...]]:
    return [list_versions(services, job_id)] * len(questions)


# Limit of concurrent streams with `wait_s` 0, beside the calls that wait: a client that is refused
# a stream falls back to these. Each takes up to a minute when the history is read first.
MAX_SNAPSHOTS = 256


@dataclass(frozen=True, kw_only=True)
class PlannerState:
    """Parts of one planner, kept in `app.state.planner`."""

    settings: Settings
    services: JobServices
    waiters: JobWaiters
    heartbeats: Heartbeats
    reconcile_loop: ReconcileLoop
    frontiers: FrontierMemory
    histories: HistoryMemory
    timelines: TimelineAnswers
    history_threads: CapacityLimiter
    frontier_threads: CapacityLimiter
    gate: TokenGate
    rank_calls: RankCalls
    metrics: ProcessMetrics
    readiness: Readiness
    reading: SharedReading
    overviews: Overviews
    live_events: LiveEvents


# Async without await: FastAPI runs other dependencies on a thread for each call.
async def planner_state(request: Request) -> PlannerState:
    """Return the state of the app that serves this call."""
    return cast("PlannerState", request.app.state.planner)


State = Annotated[PlannerState, Depends(planner_state)]


async def granted_wait_s(
    state: State,
    wait_s: Annotated[
        float,
        Query(
            ge=0,
            description="Time to wait for an answer, s; at most FLYBALL_MAX_WAIT_S (default: 60).",
            examples=[30],
        ),
    ] = 0,
) -> float:
    """Return the time that a long poll waits, s.

    Raises:
        TooManyWaitingError: the limit of waiting calls is reached.
    """
    granted_s = min(wait_s, state.settings.max_wait_s)
    if granted_s > 0:
        check_waiting(state)
    return granted_s


async def granted_stream_s(
    state: State,
    wait_s: Annotated[
        float | None,
        Query(
            ge=0,
            description="Duration of the stream, s; at most FLYBALL_MAX_WAIT_S, which is the"
            " default. 0: end after the current state.",
            examples=[30],
        ),
    ] = None,
) -> float:
    """Return the duration of a stream of events, s.

    Streams with `wait_s` 0 last until the state has been read; they have a limit of their own.

    Raises:
        TooManyWaitingError: the limit of streams is reached.
    """
    granted_s = min(math.inf if wait_s is None else wait_s, state.settings.max_wait_s)
    if granted_s > 0:
        check_waiting(state)
    else:
        _check_waiting(state.waiters.num_at_once, MAX_SNAPSHOTS)
    return granted_s


def check_waiting(state: PlannerState) -> None:
    """Check that another call may wait.

    Raises:
        TooManyWaitingError: the limit of waiting calls is reached.
    """
    _check_waiting(state.waiters.num_waiting, state.settings.max_waiting)


def _check_waiting(num_waiting: int, limit: int) -> None:
    if num_waiting >= limit:
        raise TooManyWaitingError(retry_after_s=RETRY_AFTER_S)


def in_digits(text: str) -> str:
    """Return the text, so that each rank has one address: pydantic also reads `+1` and `1_0`.

    Raises:
        ValueError: it has other characters than digits; pydantic reports it.
    """
    if not text.removeprefix("-").isdigit():
        raise ValueError("write it in digits")
    return text


AfterStep = Annotated[
    int,
    Query(ge=-1, le=MAX_COUNT, description="Last step that the client has; -1: none."),
    BeforeValidator(in_digits),
]
WaitS = Annotated[float, Depends(granted_wait_s)]
StreamS = Annotated[float, Depends(granted_stream_s)]
_NAME_RULE = "Name of the job: 1 to 128 of A-Z a-z 0-9 . _ + -, no dot or plus first"
JobId = Annotated[
    str,
    Path(
        pattern=ANY_JOB_ID_PATTERN,
        description=f"{_NAME_RULE}; of an earlier run with `@` and its number.",
        examples=["gpt2-demo"],
    ),
]
NewJobId = Annotated[
    str, Path(pattern=JOB_ID_PATTERN, description=f"{_NAME_RULE}.", examples=["gpt2-demo"])
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
    """Check the number of instructions of a job.

    Raises:
        InvalidFieldError: it exceeds FLYBALL_MAX_INSTRUCTIONS.
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
    """Check the number of points of a profile.

    Raises:
        InvalidFieldError: it exceeds FLYBALL_MAX_PROFILE_POINTS.
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


# Limit of the wait for a plan, s; clients give up long before.
_LONGEST_PLANNING_S = 86_400.0


async def planned_view(state: PlannerState, stored: JobSummary, asked_by: JobInput) -> JobView:
    """Return the job once it is planned from what the caller has stored, or from later inputs.

    The reconcile loop plans it, of this planner or of another on the store.

    Args:
        state: state of the planner.
        stored: job after the change.
        asked_by: changed input.

    Raises:
        PlanningFailedError: no plan meets the inputs.
        UnknownJobError: the job has been deleted.
        PlanningStoppedError: the planner shuts down.
    """
    job_id = stored.job.job_id
    if answer(state.services, stored.planning, asked_by) is not True:

        async def answered() -> bool | None:
            return await state.rank_calls.answers.submit(job_id, asked_by) or None

        if not await state.waiters.until(job_id, answered, wait_s=_LONGEST_PLANNING_S):
            raise PlanningStoppedError(job_id=job_id)
        stored = await run_in_threadpool(get_job, state.services, job_id)
    return await run_in_threadpool(job_view, state.services, stored)
