"""Records to rows of the SQL tables and back."""

from __future__ import annotations

import functools
import json
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Any, cast

from sqlalchemy import Row

from flyball_profiles.stage_profile import InstructionKind, OperatingPoint, StageProfile
from flyball_server.jobs.job_state import JobInput, JobState
from flyball_server.jobs.loop_state import JobLoopState
from flyball_server.jobs.records import (
    AnyPlan,
    JobRecord,
    PlanRecord,
    RankRecord,
    StageTotals,
    StepDetail,
    StepRecord,
    StepReport,
    StepTotals,
    TokenRecord,
)
from flyball_server.jobs.replanning.plan_documents import any_plan_document, any_plan_from_document
from flyball_server.kit.lru import Lru
from flyball_wire.messages import JobSpec

if TYPE_CHECKING:
    from pydantic import TypeAdapter


def profile_document(profile: StageProfile) -> dict[str, Any]:
    """The profile as JSON-ready data: `points` in rows `[stage, kind, MHz, s, J]`.

    Where it has model chunks, `chunks` is a list of such documents.
    """
    chunks = [profile_document(chunk) for chunk in profile.chunks]
    return ({"chunks": chunks} if chunks else {}) | {
        "num_ranks_per_stage": list(profile.num_ranks_per_stage),
        "points": [
            [stage, str(kind), point.frequency_mhz, point.time_s, point.energy_j]
            for (stage, kind), points in profile.points.items()
            for point in points
        ],
    }


# Each version's ranks ask for their job's profile, and one of 64 stages takes 0.3 s to read.
@functools.lru_cache(maxsize=8)
def profile_from_text(text: str) -> StageProfile:
    """The profile whose document this is the JSON of; the same object to all who ask."""
    return profile_from_document(json.loads(text))


def profile_from_document(document: dict[str, Any]) -> StageProfile:
    """The profile that `profile_document` wrote."""
    points: dict[tuple[int, InstructionKind], tuple[OperatingPoint, ...]] = {}
    for stage, kind, frequency_mhz, time_s, energy_j in document["points"]:
        key = (int(stage), InstructionKind(kind))
        point = OperatingPoint(frequency_mhz=frequency_mhz, time_s=time_s, energy_j=energy_j)
        points[key] = (*points.get(key, ()), point)
    return StageProfile(
        points=points,
        num_ranks_per_stage=tuple(document["num_ranks_per_stage"]),
        chunks=tuple(profile_from_document(chunk) for chunk in document.get("chunks", ())),
    )


def job_values(job: JobRecord) -> dict[str, Any]:
    """The row of a job, but for its name and what its rows refer to it by."""
    return {
        "created_at": job.created_at.isoformat(),
        "state": str(job.state),
        "problem": job.problem,
        "registered": json.dumps(asdict(job.registered)),
        "in_force": json.dumps(asdict(job.in_force)),
        "changed_input": str(job.changed_input),
        "inputs_revision": job.inputs_revision,
        "planned_revision": job.planned_revision,
        "run": job.run,
        "restart_count": job.restart_count,
    }


def job_of(row: Row[Any]) -> JobRecord:
    """The job of a row."""
    return JobRecord(
        job_id=row.name,
        created_at=datetime.fromisoformat(row.created_at),
        state=JobState(row.state),
        problem=row.problem,
        registered=_spec_of(row.registered),
        in_force=_spec_of(row.in_force),
        changed_input=JobInput(row.changed_input),
        inputs_revision=row.inputs_revision,
        planned_revision=row.planned_revision,
        run=row.run,
        restart_count=row.restart_count,
    )


def rank_values(rank: RankRecord) -> dict[str, Any]:
    """The row of a rank."""
    clocks_mhz = rank.sm_clocks_mhz
    return vars(rank) | {
        "sm_clocks_mhz": None if clocks_mhz is None else json.dumps(clocks_mhz),
        "last_seen_at": None if rank.last_seen_at is None else rank.last_seen_at.isoformat(),
    }


def rank_of(row: Row[Any], job_id: str) -> RankRecord:
    """The rank of a row of this job, by its name."""
    return RankRecord(
        job_id=job_id,
        rank=row.rank,
        stage=row.stage,
        host=row.host,
        gpu_name=row.gpu_name,
        gpu_uuid=row.gpu_uuid,
        emulated=row.emulated,
        client_version=row.client_version,
        acknowledged_version=row.acknowledged_version,
        current_step=row.current_step,
        dp_rank=row.dp_rank,
        tp_rank=row.tp_rank,
        cp_rank=row.cp_rank,
        sm_clocks_mhz=None if row.sm_clocks_mhz is None else _clocks_of(row.sm_clocks_mhz),
        last_seen_at=(
            None if row.last_seen_at is None else datetime.fromisoformat(row.last_seen_at)
        ),
        has_left=row.has_left,
    )


@functools.lru_cache(maxsize=256)
def _clocks_of(text: str) -> tuple[int, ...]:
    """A GPU's clocks; thousands of ranks have the same."""
    return tuple(json.loads(text))


def token_values(token: TokenRecord) -> dict[str, Any]:
    """The row of a token."""
    return asdict(token) | {"created_at": token.created_at.isoformat()}


def token_of(row: Row[Any]) -> TokenRecord:
    """The token of a row."""
    return TokenRecord(
        token_id=row.token_id,
        digest=row.digest,
        job_id=row.job_id,
        created_at=datetime.fromisoformat(row.created_at),
        note=row.note,
    )


def step_of(row: Row[Any], job_id: str) -> StepRecord:
    """The measured step of a row of this job, by its name."""
    return StepRecord(
        job_id=job_id,
        rank=row.rank,
        step=row.step,
        plan_version=row.plan_version,
        time_s=row.time_s,
        energy_j=row.energy_j,
        num_unplanned=row.num_unplanned,
        num_overruns=row.num_overruns,
        num_clock_misses=row.num_clock_misses,
        num_power_capped=row.num_power_capped,
        num_thermally_capped=row.num_thermally_capped,
        sm_clock_mhz=row.sm_clock_mhz,
    )


def totals_of(row: Row[Any]) -> StepTotals:
    """The totals of a row of STEP_TOTALS."""
    return StepTotals(
        step=row.step,
        num_ranks=row.num_ranks,
        lowest_version=row.lowest_version,
        newest_version=row.newest_version,
        num_with_plan=row.num_with_plan,
        time_s=row.time_s,
        energy_j=row.energy_j if row.num_with_energy == row.num_ranks else None,
        # PostgreSQL's sums of whole numbers are decimals.
        num_unplanned=int(row.num_unplanned),
        num_clock_misses=int(row.num_clock_misses),
        num_power_capped=int(row.num_power_capped),
        num_thermally_capped=int(row.num_thermally_capped),
    )


def stage_totals_of(row: Row[Any]) -> StageTotals:
    """The totals of a row of STAGE_TOTALS."""
    return StageTotals(
        step=row.step,
        stage=row.stage,
        plan_version=row.plan_version,
        num_ranks=row.num_ranks,
        time_s=row.time_s,
        energy_j=row.energy_j if row.num_with_energy == row.num_ranks else None,
        num_clock_misses=int(row.num_clock_misses),
        num_power_capped=int(row.num_power_capped),
        num_thermally_capped=int(row.num_thermally_capped),
        num_with_clock=row.num_with_clock,
        sm_clock_mhz=row.sm_clock_mhz,
    )


# The plans that were written or read last, by their text: all ranks of a job want the same. Of
# 64 stages x 256 microbatches one takes a third of a second to read, and some 10 MB.
_PLANS = Lru[str, AnyPlan](8)


def _plan_text(plan: PlanRecord) -> str:
    text = json.dumps(any_plan_document(plan.plan, solve_s=plan.solve_s))
    _PLANS.put(text, plan.plan)
    return text


def _plan_of_text(text: str) -> AnyPlan:
    plan = _PLANS.get(text)
    if plan is None:
        plan = any_plan_from_document(json.loads(text))
        _PLANS.put(text, plan)
    return plan


def plan_values(plan: PlanRecord) -> dict[str, Any]:
    """The row of a plan version."""
    return {
        "job_id": plan.job_id,
        "version": plan.version,
        "created_at": plan.created_at.isoformat(),
        "first_step": plan.first_step,
        "solve_s": plan.solve_s,
        "document": _plan_text(plan),
        "report": str(plan.report),
        "baseline_cycle": json.dumps(plan.baseline_cycle),
    }


def plan_of(row: Row[Any], job_id: str) -> PlanRecord:
    """The plan version of a row of this job, by its name."""
    return PlanRecord(
        job_id=job_id,
        version=row.version,
        created_at=datetime.fromisoformat(row.created_at),
        first_step=row.first_step,
        solve_s=row.solve_s,
        plan=_plan_of_text(row.document),
        report=StepReport(row.report),
        baseline_cycle=tuple(json.loads(row.baseline_cycle)),
    )


def detail_values(detail: StepDetail) -> dict[str, Any]:
    """The row of a step's details."""
    return {
        "job_id": detail.job_id,
        "step": detail.step,
        "rank": detail.rank,
        "document": json.dumps([detail.by_clock, detail.instructions]),
    }


def detail_of(row: Row[Any], job_id: str) -> StepDetail:
    """The details of a row of this job, by its name."""
    by_clock, instructions = _with_tuples(json.loads(row.document))
    return StepDetail(
        job_id=job_id,
        rank=row.rank,
        step=row.step,
        by_clock=by_clock,
        instructions=instructions,
    )


def loop_state_values(loop_state: JobLoopState) -> dict[str, Any]:
    """The row of a job's control."""
    return {
        "job_id": loop_state.job_id,
        "document": _reader_of(JobLoopState).dump_json(loop_state).decode(),
    }


def loop_state_of(document: str, job_id: str) -> JobLoopState:
    """The control of a row of this job, by its name, which may have been another."""
    loop_state = _loop_state_of(document)
    return loop_state if loop_state.job_id == job_id else loop_state.evolve(job_id=job_id)


def _with_tuples(value: Any) -> Any:  # noqa: ANN401 - any JSON
    return tuple(map(_with_tuples, value)) if isinstance(value, list) else value


@functools.lru_cache(maxsize=64)
def _loop_state_of(document: str) -> JobLoopState:
    """Return what is written there; one that holds a measured profile takes long to read."""
    return cast("JobLoopState", _reader_of(JobLoopState).validate_json(document))


@functools.lru_cache(maxsize=64)
def _spec_of(document: str) -> JobSpec:
    return cast("JobSpec", _reader_of(JobSpec).validate_json(document))


@functools.cache
def _reader_of(record: type) -> TypeAdapter[Any]:
    # Here, because it takes a quarter of a second to import, and few commands read these.
    from pydantic import TypeAdapter  # noqa: PLC0415

    return TypeAdapter(record)
