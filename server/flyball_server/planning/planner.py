"""From a request to a plan: the one entry of the planning core."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from operator import itemgetter

from flyball_profiles.stage_profile import StageProfile
from flyball_server.planning.cancellation import cancellation_point
from flyball_server.planning.documents.planned_instructions import (
    PlannedInstruction,
    in_stages,
    planned_instructions,
)
from flyball_server.planning.errors import PlanningError
from flyball_server.planning.memoize import kept_by_digest, profile_digest
from flyball_server.planning.model.finish_times import predicted_time_and_energy
from flyball_server.planning.model.pipeline_model import Assignment, PipelineModel, build_model
from flyball_server.planning.plan import FrequencyPlan
from flyball_server.planning.policies import choose
from flyball_server.planning.policies._base import PolicyChoice, PolicyRequest
from flyball_server.planning.request_options import (
    DEFAULT_POLICY,
    DEFAULT_RECONFIGURE,
    DEFAULT_RECONFIGURE_GRANULARITY_MHZ,
    DEFAULT_SCHEDULE,
    DEFAULT_TARGET,
    Effort,
    check_reserve,
)
from flyball_server.planning.schedule_choice import (
    ScheduleChoice,
    candidate_schedules,
    choose_schedule,
    is_auto,
)
from flyball_server.planning.schedules import make_schedule
from flyball_server.planning.schedules._base import (
    ActivationMemory,
    ExplicitOrder,
    Schedule,
    ScheduleContext,
    VirtualStages,
    one_chunk_each,
)

# What a report says.
BUILDING, SEARCHING = "building the pipeline", "searching for clocks"


@dataclass(frozen=True, kw_only=True)
class PlanRequest:
    """All that a plan depends on.

    Attributes:
        num_microbatches: of one iteration, at least 1.
        blocking_power_w: W of a waiting GPU, one value for all stages or one per stage.
        activation_memory: None: memory bounds nothing.
        reconfigure_granularity_mhz: what one reconfiguring step raises a clock by, at least;
            in the GPU table by GPU.
        checkpoint: which microbatches schedule `torchgpipe` computes forward again.
        order: the order of schedule `explicit`.
        reserve: by how much instructions may take longer than profiled without a longer
            iteration, as a share, 0 to MAX_RESERVE; only policy `frontier` looks at it.

    Raises:
        PlanningError: the reserve is out of its bounds.
    """

    profile: StageProfile
    num_microbatches: int
    blocking_power_w: tuple[float, ...]
    schedule: str = DEFAULT_SCHEDULE
    policy: str = DEFAULT_POLICY
    reconfigure: str = DEFAULT_RECONFIGURE
    target: str = DEFAULT_TARGET
    activation_memory: ActivationMemory | None = None
    reconfigure_granularity_mhz: int = DEFAULT_RECONFIGURE_GRANULARITY_MHZ
    effort: Effort = Effort.NORMAL
    checkpoint: str | None = None
    order: ExplicitOrder | None = None
    reserve: float = 0.0

    def __post_init__(self) -> None:
        check_reserve(self.reserve)


PhaseReport = Callable[[str], None]
"""Told what the planner is about to do, in a few words: `searching for clocks`."""


@dataclass(frozen=True, kw_only=True)
class SolvedPlan:
    """A plan with what it was made from: who prints or draws it builds no pipeline again.

    Attributes:
        model: the pipeline, under the plan's schedule.
        assignment: the plan's clocks, per node of the model's DAG the index of its point.
    """

    plan: FrequencyPlan
    model: PipelineModel
    assignment: Assignment


def make_plan(request: PlanRequest, report: PhaseReport = lambda _: None) -> SolvedPlan:
    """The plan that the request's policy makes.

    Raises:
        PlanningError: a part of the request cannot be used; names its field.
        TargetUnreachableError: no plan of this policy meets the target.
    """
    report(BUILDING)
    if is_auto(request.schedule):
        chosen = _chosen_schedule(request, report)
        choice = PolicyChoice(
            assignment=chosen.plan.assignment, lower_bound_j=chosen.plan.lower_bound_j
        )
        named = replace(request, schedule=chosen.name)
        plan = replace(plan_of_choice(named, chosen.model, choice), considered=chosen.considered)
        return SolvedPlan(plan=plan, model=chosen.model, assignment=choice.assignment)
    model = model_of_request(request)
    report(SEARCHING)
    choice = choose(request.policy, policy_request(request, model))
    plan = plan_of_choice(request, model, choice)
    return SolvedPlan(plan=plan, model=model, assignment=choice.assignment)


def make_plan_only(request: PlanRequest) -> FrequencyPlan:
    """The plan alone: what a store keeps, and what another process sends back.

    The model of 64 stages x 256 microbatches has some 20 MB, the plan less than one.

    Raises:
        PlanningError, TargetUnreachableError: as for `make_plan`.
    """
    return make_plan(request).plan


def with_named_schedule(request: PlanRequest) -> PlanRequest:
    """The request with the schedule that `auto` chooses for it, if that is what it asks for.

    Raises:
        PlanningError, TargetUnreachableError: as for `make_plan`.
    """
    if not is_auto(request.schedule):
        return request
    return replace(request, schedule=_chosen_schedule(request, lambda _: None).name)


def _chosen_schedule(request: PlanRequest, report: PhaseReport) -> ScheduleChoice:
    if request.policy != "frontier":
        raise PlanningError(
            f"auto compares frontiers, which policy {request.policy} has not", field="schedule"
        )
    models: dict[str, PipelineModel | PlanningError] = {}
    for name in candidate_schedules(request.schedule):
        cancellation_point()
        try:
            models[name] = model_of_request(replace(request, schedule=name))
        except PlanningError as error:
            models[name] = error
    return choose_schedule(models, request.target, request.effort, report, reserve=request.reserve)


def policy_request(request: PlanRequest, model: PipelineModel) -> PolicyRequest:
    """Return what the request asks of its policy."""
    return PolicyRequest(
        model=model,
        reconfigure=request.reconfigure,
        reconfigure_granularity_mhz=request.reconfigure_granularity_mhz,
        target=request.target,
        effort=request.effort,
        reserve=request.reserve,
    )


def _pipeline_digest(request: PlanRequest) -> bytes:
    rest = (
        request.num_microbatches,
        request.blocking_power_w,
        request.schedule,
        request.activation_memory,
        request.checkpoint,
        request.order,
    )
    return repr(rest).encode() + profile_digest(request.profile)


# Of 64 stages x 256 microbatches it takes half a second to build, and some 20 MB.
@kept_by_digest(_pipeline_digest, num_kept=2)
def model_of_request(request: PlanRequest) -> PipelineModel:
    """The pipeline that the request describes.

    Raises:
        PlanningError: a part of the request cannot be used; names its field.
    """
    context = ScheduleContext(
        profile=request.profile,
        num_microbatches=request.num_microbatches,
        activation_memory=request.activation_memory,
        checkpoint=request.checkpoint,
        order=request.order,
    )
    try:
        schedule = make_schedule(request.schedule, context)
        return build_model(request.profile, schedule, request.blocking_power_w)
    except PlanningError as error:
        if request.order is None or error.field != "schedule":
            raise
        raise PlanningError(error.message, field="order") from None


def plan_of_choice(
    request: PlanRequest, model: PipelineModel, choice: PolicyChoice
) -> FrequencyPlan:
    """Return what a policy chose for the model, with its prediction there."""
    iteration_time_s, energy_j = predicted_time_and_energy(model, choice.assignment)
    baseline_time_s, baseline_energy_j = predicted_time_and_energy(model, model.baseline())
    return FrequencyPlan(
        policy=request.policy,
        reconfigure=request.reconfigure,
        schedule=request.schedule,
        target=request.target,
        num_microbatches=request.num_microbatches,
        blocking_power_w=model.blocking_power_w,
        iteration_time_s=iteration_time_s,
        energy_j=energy_j,
        baseline_iteration_time_s=baseline_time_s,
        baseline_energy_j=baseline_energy_j,
        lower_bound_j=choice.lower_bound_j,
        virtual_stages=chunk_places(model.schedule),
        weight_versions=model.schedule.weight_versions,
        reserve=kept_reserve(request),
        stages=planned_stages(model, choice.assignment),
    )


def kept_reserve(request: PlanRequest) -> float:
    """The reserve that a plan for the request keeps: other policies than `frontier` keep none."""
    return request.reserve if request.policy == "frontier" else 0.0


def chunk_places(schedule: Schedule) -> VirtualStages:
    """Return the schedule's chunks for the plan; empty where stage s is virtual stage s."""
    is_plain = schedule.virtual_stages == one_chunk_each(schedule.num_stages)
    return () if is_plain else schedule.virtual_stages


def planned_stages(
    model: PipelineModel, assignment: Assignment
) -> tuple[tuple[PlannedInstruction, ...], ...]:
    """Per stage, its instructions in the order of execution, with their clocks."""
    nodes = model.dag.instruction
    clocks_mhz = [
        points[choice].frequency_mhz
        for points, choice in zip(model.points, assignment, strict=True)
    ]
    if not model.schedule.is_periodic:  # one node for each instruction, in their order
        columns = [map(itemgetter(column), nodes) for column in range(3)]
        planned = planned_instructions(columns[0], columns[1], clocks_mhz, columns[2])
        return in_stages(planned, map(len, model.schedule.stages))
    clock_of = dict(zip(zip(model.dag.stage, nodes, strict=True), clocks_mhz, strict=True))
    return tuple(
        tuple(
            PlannedInstruction(
                kind=instruction.kind,
                microbatch=instruction.microbatch,
                frequency_mhz=clock_of[stage, model.schedule.node_of(instruction)],
                chunk=instruction.chunk,
            )
            for instruction in instructions
        )
        for stage, instructions in enumerate(model.schedule.stages)
    )
