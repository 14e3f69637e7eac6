"""Flyball's plan files: read without their figures, written with figures predicted anew."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from flyball_profiles.stage_profile import StageProfile
from flyball_server.cli.convert.foreign_plan import ForeignPlan, KernelSchedules
from flyball_server.planning.documents.plan_document import (
    plan_document,
    plan_from_document,
    read_part,
)
from flyball_server.planning.documents.recorded_plan import model_of_plan
from flyball_server.planning.errors import PlanningError
from flyball_server.planning.model.pipeline_model import Assignment, PipelineModel
from flyball_server.planning.model.simulator import simulate
from flyball_server.planning.planner import predicted
from flyball_wire.plans.plan import PipelinePlan, Plan, Prediction, clocked_stages

POLICY = "converted"


@dataclass(frozen=True, kw_only=True)
class _PlanFile:
    """Part of a plan file that is no part of a plan."""

    kernels: KernelSchedules | None = None


_UNPREDICTED = Prediction(energy_j=1.0, baseline_iteration_time_s=1.0, baseline_energy_j=1.0)


def plan_of_document(document: object, dp_rank: int | None) -> ForeignPlan:
    """Read a plan file.

    Args:
        document: its JSON.
        dp_rank: pipeline to read of a plan of separate ones.

    Raises:
        PlanningError: it is no plan, or none that another format can hold.
    """
    plan = plan_from_document(document)
    pipelines = plan.by_dp_rank
    if plan.is_separate and (dp_rank is None or dp_rank >= len(pipelines)):
        raise PlanningError(
            f"has pipelines 0 to {len(pipelines) - 1}; choose one with --pipeline",
            field="pipelines",
        )
    if dp_rank is not None and not plan.is_separate:
        raise PlanningError("has one pipeline; remove --pipeline", field="pipelines")
    if plan.is_probe:
        raise PlanningError("changes its clocks from step to step", field="policy")
    if plan.weight_versions is not None:
        raise PlanningError(
            f"{plan.schedule} never flushes, which no other format can hold", field="schedule"
        )
    pipeline = pipelines[dp_rank or 0]
    return ForeignPlan(
        schedule=plan.order_of(pipeline),
        clocks_mhz=pipeline.clocks_mhz,
        kernels=read_part(_PlanFile, document, "plan").kernels,
    )


def document_of(
    plan: ForeignPlan, profile: StageProfile, blocking_power_w: tuple[float, ...]
) -> dict[str, Any]:
    """Return the plan file, its figures predicted on a profile; kernel schedules are kept beside.

    Raises:
        PlanningError: the profile lacks an instruction or a clock of the plan, or it has none.
    """
    frequency_plan = _predicted(plan, profile, blocking_power_w)[0]
    kernels = {} if plan.kernels is None else {"kernels": plan.kernels}
    return {**plan_document(frequency_plan, solve_s=0.0), **kernels}


def model_of(
    plan: ForeignPlan, profile: StageProfile, blocking_power_w: tuple[float, ...]
) -> tuple[PipelineModel, Assignment]:
    """Return the plan's model on a profile, and its clocks as an assignment.

    Raises:
        PlanningError: as `document_of`.
    """
    return _predicted(plan, profile, blocking_power_w)[1:]


def _predicted(
    plan: ForeignPlan, profile: StageProfile, blocking_power_w: tuple[float, ...]
) -> tuple[Plan, PipelineModel, Assignment]:
    order = plan.order
    unpredicted = Plan(
        policy=POLICY,
        reconfigure="default",
        schedule=plan.schedule.name,
        target="",
        num_microbatches=plan.schedule.num_microbatches,
        blocking_power_w=blocking_power_w,
        iteration_time_s=1.0,
        pipelines=(PipelinePlan(stages=clocked_stages(order.stages, plan.clocks)),),
        prediction=_UNPREDICTED,
        virtual_stages=order.virtual_stages,
    )
    model, assignment = model_of_plan(profile, unpredicted)
    own = simulate(model, assignment)
    plan_file = replace(
        unpredicted,
        target=f"deadline:{own.iteration_time_s!r}",
        blocking_power_w=model.blocking_power_w,
        iteration_time_s=own.iteration_time_s,
        prediction=predicted(model, assignment, own),
    )
    return plan_file, model, assignment
