"""Model and assignment of a stored plan on a profile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from flyball_pipeline.dag import NONE
from flyball_pipeline.errors import PipelineError
from flyball_profiles.stage_profile import OperatingPoint, StageProfile
from flyball_server.planning.data_parallel import blocking_power_by_pipeline
from flyball_server.planning.errors import PlanningError
from flyball_server.planning.model.clocked_instructions import ClockRequest
from flyball_server.planning.model.pipeline_model import Assignment, PipelineModel, build_model
from flyball_wire.plans.plan import PipelinePlan, Plan, PlannedRequest


def model_of_plan(
    profile: StageProfile, plan: Plan, blocking_power_w: tuple[float, ...] | None = None
) -> tuple[PipelineModel, Assignment]:
    """Return the own order of a plan's one pipeline on this profile, and its clocks.

    Args:
        profile: measured points; may be another than the plan was made from.
        plan: the plan; its order need not be one that Flyball generates.
        blocking_power_w: W, one value or one per stage; None: the plan's own.

    Raises:
        PlanningError: the plan's order cannot run, or uses what the profile does not have.
    """
    power_w = blocking_power_w or plan.blocking_power_w
    return _model_of_pipeline(profile, plan, plan.pipelines[0], power_w)


def models_by_dp_rank(
    profiles: Sequence[StageProfile],
    plan: Plan,
    blocking_power_w: tuple[float, ...] | None = None,
) -> list[tuple[PipelineModel, Assignment]]:
    """Return model and assignment of each pipeline, by `dp_rank`, equal pipelines included.

    Args:
        profiles: measured points of each pipeline.
        plan: the plan.
        blocking_power_w: W, one value, one per stage or one per stage of each pipeline; None:
            the plan's own.

    Raises:
        PlanningError: there are more or fewer profiles than pipelines, or as `model_of_plan`.
    """
    by_dp_rank = plan.by_dp_rank
    if len(profiles) != len(by_dp_rank):
        raise PlanningError(
            f"has {len(by_dp_rank)} pipelines, the profile {len(profiles)}", field="pipelines"
        )
    num_stages = profiles[0].num_stages
    if blocking_power_w:
        power_w = blocking_power_by_pipeline(blocking_power_w, len(profiles), num_stages)
    else:
        planned_w = blocking_power_by_pipeline(
            plan.blocking_power_w, len(plan.pipelines), num_stages
        )
        power_w = [planned_w[plan.pipelines.index(pipeline)] for pipeline in by_dp_rank]
    return [
        _model_of_pipeline(profile, plan, pipeline, of_pipeline_w)
        for profile, pipeline, of_pipeline_w in zip(profiles, by_dp_rank, power_w, strict=True)
    ]


def models_of_plan(profile: StageProfile, plan: Plan) -> list[tuple[PipelineModel, Assignment]]:
    """Return model and assignment of each of the plan's pipelines.

    Args:
        profile: measured points, merged over the ranks of all pipelines.
        plan: plan of a job.

    Raises:
        PlanningError: as `model_of_plan`.
    """
    power_w = blocking_power_by_pipeline(
        plan.blocking_power_w, len(plan.pipelines), profile.num_stages
    )
    return [
        _model_of_pipeline(profile, plan, pipeline, of_pipeline_w)
        for pipeline, of_pipeline_w in zip(plan.pipelines, power_w, strict=True)
    ]


def _model_of_pipeline(
    profile: StageProfile, plan: Plan, pipeline: PipelinePlan, blocking_power_w: tuple[float, ...]
) -> tuple[PipelineModel, Assignment]:
    if plan.is_probe:
        raise PlanningError("changes its clocks from step to step", field="policy")
    try:
        return _model_of_clocks(profile, plan, pipeline, blocking_power_w=blocking_power_w)
    except PipelineError as error:
        # Blocking powers are of all pipelines, and an option's.
        if error.field == "blocking_power_w" or not plan.is_separate:
            raise
        where = f"pipelines[{plan.pipelines.index(pipeline)}]"
        raise PlanningError(error.message, field=f"{where}.{error.field}") from None


def _model_of_clocks(
    profile: StageProfile,
    plan: Plan,
    part: PipelinePlan,
    *,
    blocking_power_w: tuple[float, ...],
) -> tuple[PipelineModel, Assignment]:
    order = plan.order_of(part)
    model = build_model(profile, order, blocking_power_w)
    if len(plan.transfer_s) > 1 and len(plan.transfer_s) != profile.num_stages - 1:
        raise PlanningError(
            f"{len(plan.transfer_s)} values for {profile.num_stages} stages", field="transfer_ms"
        )
    model = model.with_delays(plan.tail_s, plan.transfer_s)
    model = replace(model, transitions=plan.transitions)
    if part.requests:
        model = model.with_requests(_requests_of(model, part.requests))
    assignment = [NONE] * model.dag.num_nodes
    nodes = model.dag.nodes_of(order)
    for stage, items in enumerate(part.stages):
        for item, node in zip(items, nodes[stage], strict=True):
            choice = _index_of(model.points[node], item.frequency_mhz, model, node)
            if assignment[node] not in (NONE, choice):
                raise PlanningError(
                    f"stage {stage} runs {item.kind} at several clocks; where a pipeline never"
                    " flushes, all microbatches of a stage must run at the same clocks",
                    field="stages",
                )
            assignment[node] = choice
    return model, assignment


def _requests_of(
    model: PipelineModel, requests: Sequence[PlannedRequest]
) -> dict[int, ClockRequest]:
    """Return a plan's requests by instruction; the inverse of `planned_requests`."""
    first, last = model.clocked.first, model.clocked.last
    return {
        first[stage] + position % (last[stage] - first[stage] + 1): ClockRequest(
            after=first[stage] + after_position, offset_s=offset_s
        )
        for stage, position, after_position, offset_s in requests
    }


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
