"""Zeus's four calls: register a job and its ranks, fetch a rank's plan, post measured iterations.

A job of Zeus's client is a job like any other; what its calls do not have comes from
`job_metadata.py`. The client holds the plan that it fetches at its start until it ends, so all
ranks of a start receive the same version.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from pydantic import BeforeValidator
from starlette.concurrency import run_in_threadpool

from flyball_server.http.dependencies import (
    JobId,
    PlannerState,
    State,
    check_size,
    check_waiting,
    in_digits,
)
from flyball_server.http.edge_errors import AccessError
from flyball_server.http.middleware.token_access import CallerAccess
from flyball_server.http.zeus.job_metadata import generated_name, read_metadata, zeus_job_spec
from flyball_server.http.zeus.messages import (
    REGISTER_JOB,
    REGISTER_RANK,
    RESULT,
    SCHEDULE,
    FrequencySchedule,
    JobInfo,
    PostedIterations,
    RankInfo,
)
from flyball_server.jobs.errors import InvalidFieldError, PlanningStoppedError
from flyball_server.jobs.measurements.measurements import RankPost
from flyball_server.jobs.records import RankRecord
from flyball_server.jobs.step_records import StepRecord
from flyball_server.jobs.versions.single_plan_starts import CommonPart, claim_steps, start_job
from flyball_server.kit.checked_documents import adapter_of
from flyball_wire.messages import MAX_RANKS, JobSpec

ROUTER = APIRouter(include_in_schema=False)
JSON = "application/json"
# Period of a waiting rank's heartbeats, s; then a client that has gone is noticed too.
_PERIOD_S = 15.0
_NOT_SENT = "unknown"
_CLIENT = "Zeus"
_RankQuery = Annotated[int, Query(ge=0, lt=MAX_RANKS), BeforeValidator(in_digits)]


@ROUTER.post(REGISTER_JOB)
async def register_job(state: State, info: JobInfo, access: CallerAccess) -> str:
    """Register a job, or the next start of a registered one; return its ID."""
    own = read_metadata(info.job_metadata)
    defaults = read_metadata(state.settings.zeus_defaults)
    job_id = own.name or defaults.name or generated_name(info, state.services.now())
    if not access.opens(job_id):
        raise AccessError(job_id=access.job_id)

    def specified(registered: JobSpec | None) -> JobSpec:
        spec = zeus_job_spec(info, own, defaults, registered)
        check_size(state, spec)
        return spec

    await run_in_threadpool(start_job, state.services, job_id, specified, client=_CLIENT)
    return job_id


@ROUTER.post(REGISTER_RANK)
async def register_rank(state: State, request: Request, job_id: JobId, info: RankInfo) -> None:
    """Register a rank."""
    record = RankRecord(
        job_id=job_id,
        rank=info.rank,
        stage=info.pp_rank,
        dp_rank=info.dp_rank,
        tp_rank=info.tp_rank,
        host=_NOT_SENT if request.client is None else request.client.host,
        gpu_name=_NOT_SENT,
        gpu_uuid=_NOT_SENT,
        emulated=False,
        client_version=_CLIENT,
        sm_clocks_mhz=info.available_frequencies,
    )
    await state.rank_calls.registrations.submit(job_id, record)


@ROUTER.get(SCHEDULE)
async def get_schedule(state: State, request: Request, job_id: JobId, rank: _RankQuery) -> Response:
    """Return the rank's plan once the job has one, however long that takes.

    Zeus's client waits without a time limit and does not try again.
    """
    check_waiting(state)
    part = await _awaited(state, request, job_id, rank)
    schedule = FrequencySchedule(rank=rank, frequencies=_frequencies(part))
    return Response(adapter_of(FrequencySchedule).dump_json(schedule), media_type=JSON)


@ROUTER.post(RESULT)
async def post_result(state: State, job_id: JobId, result: PostedIterations) -> None:
    """Store time and energy of iterations as the rank's next steps."""
    if len(result.iter_time) != len(result.iter_energy):
        raise InvalidFieldError("iter_energy", "must have as many values as iter_time")
    claimed = await run_in_threadpool(
        claim_steps, state.services, job_id, result.rank, len(result.iter_time)
    )
    steps = tuple(
        StepRecord(
            job_id=job_id,
            rank=result.rank,
            step=claimed.first_step + position,
            plan_version=claimed.plan_version,
            time_s=time_s,
            energy_j=energy_j,
        )
        for position, (time_s, energy_j) in enumerate(
            zip(result.iter_time, result.iter_energy, strict=True)
        )
    )
    await state.rank_calls.measurements.submit(job_id, RankPost(rank=result.rank, steps=steps))
    state.services.record_heartbeat(job_id, (result.rank,))


async def _awaited(state: PlannerState, request: Request, job_id: str, rank: int) -> CommonPart:
    async def part() -> CommonPart | None:
        return await state.rank_calls.common_versions.submit(job_id, rank)

    while True:
        found = await state.waiters.until(job_id, part, wait_s=_PERIOD_S)
        state.services.record_heartbeat(job_id, (rank,))
        if found is not None:
            return found
        if state.waiters.is_closed or await request.is_disconnected():
            raise PlanningStoppedError(job_id=job_id)


def _frequencies(part: CommonPart) -> tuple[tuple[str, int], ...]:
    """Return name and clock of each instruction: the next clock that the GPU has, or its highest.

    So does Flyball's own client.
    """
    rising_mhz = sorted(part.rank.sm_clocks_mhz or ())
    last = len(rising_mhz) - 1
    return tuple(
        (
            str(instruction.kind),
            rising_mhz[min(bisect_left(rising_mhz, instruction.frequency_mhz), last)]
            if rising_mhz
            else instruction.frequency_mhz,
        )
        for instruction in part.instructions
    )
