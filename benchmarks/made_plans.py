"""Plans that are stored without being solved."""

from __future__ import annotations

from flyball_pipeline.instruction import InstructionKind
from flyball_wire.plans.plan import PipelinePlan, Plan, PlannedInstruction, Prediction


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
