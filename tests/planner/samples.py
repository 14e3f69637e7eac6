"""Small, valid things that tests of the planner start from."""

from __future__ import annotations

from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from tests.planner.sample_plans import frequency_plan
from tests.planner.solved_once import SolvesOnce
from tests.planner.stores import opened_store

from flyball_pipeline.instruction import Instruction, InstructionKind
from flyball_pipeline.schedule import Schedule
from flyball_profiles.stage_profile import StageProfile
from flyball_profiles.stage_profile_csv import parse_stage_profile
from flyball_server.jobs.records import JobRecord, PlanRecord, RankRecord
from flyball_server.jobs.services import JobServices, Planner
from flyball_server.jobs.step_records import StepRecord
from flyball_server.planning.planner import PlanRequest
from flyball_wire import messages
from flyball_wire.messages import JobSpec
from flyball_wire.plans.plan import Plan

MOMENT = datetime(2026, 1, 5, 9, 30, 0, 123456, tzinfo=UTC)
HEADER = "stage,instruction,frequency,time,energy\n"


def planned_instructions(rank_plan: dict[str, Any]) -> list[list[Any]]:
    """`[kind, microbatch, MHz, chunk]` of each instruction of a rank's plan, as it was received."""
    kinds, clocks_mhz = rank_plan["kinds"], rank_plan["sm_clocks_mhz"]
    return [
        [kinds[kind], microbatch, clocks_mhz[clock], chunk]
        for kind, microbatch, chunk, clock in rank_plan["instructions"]
    ]


def profile_csv(num_stages: int = 2, *, forward_energy_j: float = 30.0) -> str:
    """A profile of two clocks per instruction; every stage the same."""
    return HEADER + "".join(
        f"{stage},forward,1410,0.1,{forward_energy_j}\n{stage},forward,1200,0.11,26\n"
        f"{stage},backward,1410,0.2,62\n{stage},backward,1200,0.22,54\n"
        for stage in range(num_stages)
    )


def profile(num_stages: int = 2, *, forward_energy_j: float = 30.0) -> StageProfile:
    """The profile of `profile_csv`."""
    return parse_stage_profile(profile_csv(num_stages, forward_energy_j=forward_energy_j))


def job_spec(**changes: Any) -> JobSpec:  # noqa: ANN401 - of any field
    """Two stages, two microbatches, all else as a rank would send it."""
    spec = JobSpec(
        num_stages=2, num_microbatches=2, num_ranks=2, blocking_power_w=(70.0,), emulated=True
    )
    return replace(spec, **changes)


def job_record(job_id: str = "job", *, seconds_later: float = 0.0, **changes: object) -> JobRecord:
    """A job that waits for its profile."""
    record = JobRecord(
        job_id=job_id,
        registered=job_spec(),
        spec=job_spec(),
        created_at=MOMENT + timedelta(seconds=seconds_later),
    )
    return record.evolve(**changes)


def rank_record(rank: int = 0, *, job_id: str = "job", **changes: object) -> RankRecord:
    """A rank that has just registered, on the stage of its own number."""
    record = RankRecord(
        job_id=job_id,
        rank=rank,
        stage=rank,
        host="node-1",
        gpu_name="emulated A100",
        gpu_uuid=f"EMULATED-{rank}",
        emulated=True,
        client_version="0.1.0",
    )
    return record.evolve(**changes)


def one_microbatch(num_stages: int) -> Schedule:
    """One forward and one backward in each stage."""
    stage = (Instruction(InstructionKind.FORWARD, 0), Instruction(InstructionKind.BACKWARD, 0))
    return Schedule(name="1f1b", num_microbatches=1, stages=(stage,) * num_stages)


def plan_record(version: int = 1, *, job_id: str = "job", **changes: object) -> PlanRecord:
    """A version of a plan."""
    record = PlanRecord(
        job_id=job_id, version=version, created_at=MOMENT, solve_s=0.01, plan=frequency_plan()
    )
    return record.evolve(**changes)


def step_record(step: int = 0, rank: int = 0, **changes: object) -> StepRecord:
    """A measured step."""
    record = StepRecord(
        job_id="job", rank=rank, step=step, plan_version=None, time_s=0.9, energy_j=100.0
    )
    return record.evolve(**changes)


class CountingPlanner:
    """A planner that counts what it is asked and answers with a fixed plan."""

    def __init__(self, *, iteration_time_s: float = 0.9) -> None:
        self.requests: list[PlanRequest] = []
        self._iteration_time_s = iteration_time_s

    def __call__(self, request: PlanRequest) -> Plan:
        self.requests.append(request)
        return frequency_plan(
            iteration_time_s=self._iteration_time_s, num_stages=request.profile.num_stages
        )


def job_services(**changes: Any) -> JobServices:  # noqa: ANN401 - fields of JobServices
    """Use-case services over a new store, whose clock stands at `MOMENT`."""
    given: dict[str, Any] = {
        "store": opened_store(),
        "notify_pollers": lambda _: None,
        "now": lambda: MOMENT,
        "executor": SolvesOnce(),
    }
    return JobServices(**given | changes)


class Services:
    """Use-case services over a store of their own, which remember which jobs were woken."""

    def __init__(self, planner: Planner) -> None:
        self.woken: list[str] = []
        self.jobs = job_services(notify_pollers=self.woken.append, planner=planner)


def registration(**changes: object) -> dict[str, Any]:
    """A job's registration as JSON, two stages of emulated GPUs."""
    body = messages.JobRegistration(
        num_stages=2, num_microbatches=2, blocking_power_w=(70.0,), emulated=True
    )
    return {**asdict(body), **changes}


def rank_registration(stage: int, **changes: object) -> dict[str, Any]:
    """A rank's registration as JSON."""
    body = messages.RankRegistration(
        stage=stage,
        host="node-1",
        gpu_name="emulated A100",
        gpu_uuid=f"EMULATED-{stage}",
        emulated=True,
        client_version="0.1.0",
    )
    return {**asdict(body), **changes}
