"""A plan made by hand; a light module, so that planning processes load it at once."""

from __future__ import annotations

from flyball_pipeline.instruction import InstructionKind
from flyball_wire.plans.plan import PipelinePlan, Plan, PlannedInstruction, Prediction


def frequency_plan(*, iteration_time_s: float = 0.9, num_stages: int = 2) -> Plan:
    """A plan of one microbatch, all at one clock."""
    stage = tuple(
        PlannedInstruction(kind=kind, microbatch=0, frequency_mhz=1410)
        for kind in (InstructionKind.FORWARD, InstructionKind.BACKWARD)
    )
    prediction = Prediction(
        energy_j=0.1 + 0.2, baseline_iteration_time_s=0.9, baseline_energy_j=1 / 3
    )
    return Plan(
        policy="envelope",
        reconfigure="balanced",
        schedule="1f1b",
        target="fastest",
        num_microbatches=1,
        blocking_power_w=(70.0,) * num_stages,
        iteration_time_s=iteration_time_s,
        pipelines=(PipelinePlan(stages=(stage,) * num_stages),),
        prediction=prediction,
    )
