"""Jobs and plans that are stored directly: no calls, no solving."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from types import MappingProxyType

from flyball_pipeline.instruction import InstructionKind
from flyball_server.jobs.records import JobRecord, PlanRecord, RankRecord
from flyball_server.jobs.store.sql.job_writer import JobWriter
from flyball_wire.messages import JobSpec
from flyball_wire.plans.plan import PipelinePlan, Plan, PlannedInstruction, Prediction

MOMENT = datetime(2026, 1, 1, tzinfo=UTC)
"""Time at which jobs and plans were created."""


def store_job(
    writer: JobWriter,
    spec: JobSpec,
    plans: Iterable[Plan] = (),
    baseline_cycles: Mapping[int, tuple[bool, ...]] = MappingProxyType({}),
    *,
    job_id: str = "job",
) -> None:
    """Store a job with all its ranks, equally many per stage, and its plan versions.

    Args:
        writer: open transaction.
        spec: specification of the job.
        plans: by version, from 1.
        baseline_cycles: cycles of versions that are compared with the highest clocks, by version.
        job_id: ID of the job.
    """
    writer.save_job(JobRecord(job_id=job_id, registered=spec, spec=spec, created_at=MOMENT))
    writer.save_ranks(
        RankRecord(
            job_id=job_id,
            rank=rank,
            stage=rank * spec.num_stages // spec.num_expected_ranks,
            host="node-1",
            gpu_name="NVIDIA H100 80GB HBM3",
            gpu_uuid=f"GPU-{rank:08x}",
            emulated=spec.emulated,
            client_version="0.1.0",
            last_seen_at=MOMENT,
        )
        for rank in range(spec.num_expected_ranks)
    )
    for version, plan in enumerate(plans, start=1):
        writer.add_plan(
            PlanRecord(
                job_id=job_id,
                version=version,
                created_at=MOMENT,
                solve_s=0.1,
                plan=plan,
                baseline_cycle=baseline_cycles.get(version, ()),
            )
        )


def made_plan(
    num_stages: int,
    num_microbatches: int,
    *,
    iteration_time_s: float,
    energy_j: float,
    baseline_energy_j: float,
) -> Plan:
    """Return a plan of equal stages, all at 1410 MHz, as fast as its baseline."""
    stage = tuple(
        PlannedInstruction(kind=kind, microbatch=microbatch, frequency_mhz=1410)
        for microbatch in range(num_microbatches)
        for kind in (InstructionKind.FORWARD, InstructionKind.BACKWARD)
    )
    return Plan(
        policy="frontier",
        reconfigure="balanced",
        schedule="1f1b",
        target="fastest",
        num_microbatches=num_microbatches,
        blocking_power_w=(70.0,) * num_stages,
        iteration_time_s=iteration_time_s,
        pipelines=(PipelinePlan(stages=(stage,) * num_stages),),
        prediction=Prediction(
            energy_j=energy_j,
            baseline_iteration_time_s=iteration_time_s,
            baseline_energy_j=baseline_energy_j,
            lower_bound_j=0.998 * energy_j,
        ),
    )
