"""A plan held against a profile: the model and assignment that a stored plan stands for."""

from __future__ import annotations

from flyball_profiles.stage_profile import OperatingPoint, StageProfile
from flyball_server.planning.errors import PlanningError
from flyball_server.planning.pipeline_model import Assignment, PipelineModel, build_model
from flyball_server.planning.plan import FrequencyPlan
from flyball_server.planning.schedules._base import Instruction, Schedule


def model_of_plan(
    profile: StageProfile,
    plan: FrequencyPlan,
    blocking_power_w: tuple[float, ...] | None = None,
) -> tuple[PipelineModel, Assignment]:
    """The plan's own order on this profile, and its clocks as an assignment.

    Args:
        profile: measured points; may be another than the plan was made from.
        plan: the plan; its order need not be one that Flyball generates.
        blocking_power_w: W, one value or one per stage; None: the plan's own.

    Raises:
        PlanningError: the plan's order cannot run, or uses what the profile does not have.
    """
    schedule = Schedule(
        name=plan.schedule,
        num_microbatches=plan.num_microbatches,
        stages=tuple(
            tuple(Instruction(item.kind, item.microbatch, item.chunk) for item in stage)
            for stage in plan.stages
        ),
    )
    model = build_model(profile, schedule, blocking_power_w or plan.blocking_power_w)
    clocks_mhz = [item.frequency_mhz for stage in plan.stages for item in stage]
    assignment = [
        _index_of(model.points[node], clock_mhz, model, node)
        for node, clock_mhz in enumerate(clocks_mhz)
    ]
    return model, assignment


def _index_of(
    points: tuple[OperatingPoint, ...], clock_mhz: int, model: PipelineModel, node: int
) -> int:
    for index, point in enumerate(points):
        if point.frequency_mhz == clock_mhz:
            return index
    raise PlanningError(
        f"{model.dag.instruction[node].kind} of stage {model.dag.stage[node]} runs at"
        f" {clock_mhz} MHz, which the profile does not have",
        field="stages",
    )
