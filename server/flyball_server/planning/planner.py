"""From a request to a plan: the one entry of the planning core."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from flyball_pipeline.dag import nodes_in_order
from flyball_pipeline.errors import PipelineError
from flyball_pipeline.schedule import Schedule, VirtualStages, one_chunk_each
from flyball_pipeline.schedules.explicit import explicit_order
from flyball_profiles.stage_profile import StageProfile
from flyball_server.planning.cancellation import cancellation_point
from flyball_server.planning.errors import PlanningError
from flyball_server.planning.model.pipeline_model import (
    Assignment,
    PipelineModel,
    build_model,
    check_draw,
)
from flyball_server.planning.model.simulator import time_and_energy
from flyball_server.planning.plan import (
    FrequencyPlan,
    PlannedInstruction,
    PlannedRequest,
    PlannedStages,
    PlanPrediction,
)
from flyball_server.planning.policies import choose
from flyball_server.planning.policies._base import PolicyChoice, PolicyRequest
from flyball_server.planning.policies.single_clocks import single_clock_plans
from flyball_server.planning.request_options import (
    DEFAULT_RECONFIGURE_GRANULARITY_MHZ,
    clock_transitions,
    iteration_delays_s,
)
from flyball_server.planning.schedule_choice import (
    ScheduleChoice,
    candidate_schedules,
    choose_schedule,
    is_auto,
)
from flyball_server.planning.scheduling import ActivationMemory, ScheduleContext, schedule_for
from flyball_wire.plan_options import PlanOptions, Policy

# What a report says.
BUILDING, SEARCHING = "building the pipeline", "searching for clocks"


@dataclass(frozen=True, kw_only=True)
class PlanRequest:
    """Inputs of a plan.

    Attributes:
        num_microbatches: number of microbatches per iteration, at least 1.
        options: options of the plan, checked where the request came in; `blocking_power_w` is
            given, `gpu` is not used, and the times of its clock changes are in `transitions`.
        reconfigure_granularity_mhz: least clock increase of one reconfiguration step in MHz; the
            GPU table has it per GPU.
    """

    profile: StageProfile
    num_microbatches: int
    options: PlanOptions
    reconfigure_granularity_mhz: int = DEFAULT_RECONFIGURE_GRANULARITY_MHZ

    @property
    def blocking_power_w(self) -> tuple[float, ...]:
        """Power of a waiting GPU in W, one value for all stages or one per stage."""
        assert self.options.blocking_power_w is not None  # noqa: S101 - the caller's
        return self.options.blocking_power_w

    def with_options(self, **changes: Any) -> PlanRequest:  # noqa: ANN401 - of any option
        """Return the request with some options changed."""
        return replace(self, options=replace(self.options, **changes))


PhaseReport = Callable[[str], None]
"""Told what the planner is about to do, in a few words: `searching for clocks`."""


@dataclass(frozen=True, kw_only=True)
class SolvedPlan:
    """Plan with its model and assignment, so that it can be printed or drawn without a rebuild.

    Attributes:
        model: the pipeline, under the plan's schedule.
        assignment: the plan's clocks, per node of the model's DAG the index of its point.
    """

    plan: FrequencyPlan
    model: PipelineModel
    assignment: Assignment


def make_plan(request: PlanRequest, report: PhaseReport = lambda _: None) -> SolvedPlan:
    """Return the plan that the request's policy makes.

    Raises:
        PlanningError: a part of the request cannot be used; names its field.
        TargetUnreachableError: no plan of this policy meets the target.
    """
    report(BUILDING)
    if is_auto(request.options.schedule):
        chosen = _chosen_schedule(request, report)
        choice, named = chosen.choice, request.with_options(schedule=chosen.name)
        if not chosen.is_final:
            choice = choose_clocks(named.with_options(target=chosen.target), chosen.model)
        model = chosen.model.with_requests(choice.requests)
        plan = replace(plan_of_choice(named, model, choice), considered=chosen.considered)
        return SolvedPlan(plan=plan, model=model, assignment=choice.assignment)
    model = model_of_request(request)
    report(SEARCHING)
    choice = choose_clocks(request, model)
    model = model.with_requests(choice.requests)
    plan = plan_of_choice(request, model, choice)
    return SolvedPlan(plan=plan, model=model, assignment=choice.assignment)


def make_plan_only(request: PlanRequest) -> FrequencyPlan:
    """Return the plan alone, for storage and for other processes.

    The model of 64 stages x 256 microbatches has some 20 MB, the plan less than one.

    Raises:
        PlanningError, TargetUnreachableError: as for `make_plan`.
    """
    return make_plan(request).plan


def with_named_schedule(request: PlanRequest) -> PlanRequest:
    """Return the request with its schedule, chosen by `auto` if requested.

    Raises:
        PlanningError, TargetUnreachableError: as for `make_plan`.
    """
    if not is_auto(request.options.schedule):
        return request
    return request.with_options(schedule=_chosen_schedule(request, lambda _: None).name)


def _chosen_schedule(request: PlanRequest, report: PhaseReport) -> ScheduleChoice:
    options = request.options
    if options.policy != Policy.FRONTIER:
        raise PlanningError(
            f"auto compares frontiers, which policy {options.policy} does not have",
            field="schedule",
        )
    models: dict[str, PipelineModel | PipelineError] = {}
    for name in candidate_schedules(options.schedule):
        cancellation_point()
        try:
            models[name] = model_of_request(request.with_options(schedule=name))
        except PipelineError as error:
            models[name] = error
    return choose_schedule(models, options, report)


def choose_clocks(request: PlanRequest, model: PipelineModel) -> PolicyChoice:
    """Return the clocks that the request's policy chooses for this model.

    Policy `frontier` alone chooses with the times of clock changes; the others are evaluated with
    them.

    Raises:
        PlanningError, TargetUnreachableError: as for `make_plan`.
    """
    policy = request.options.policy
    if policy != Policy.FRONTIER:
        model = model.without_transitions()
    return choose(
        policy,
        PolicyRequest(
            model=model,
            options=request.options,
            reconfigure_granularity_mhz=request.reconfigure_granularity_mhz,
        ),
    )


def model_of_request(request: PlanRequest) -> PipelineModel:
    """Return the pipeline that the request describes.

    Raises:
        PlanningError: a part of the request cannot be used; names its field.
    """
    options = request.options
    context = schedule_context(request)
    try:
        schedule = schedule_for(options.schedule, context)
        transitions = clock_transitions(options)
        model = build_model(request.profile, schedule, request.blocking_power_w)
    except PipelineError as error:
        if context.order is None or error.field != "schedule":
            raise
        raise PlanningError(error.message, field="order") from None
    check_draw(model)
    delays_s = iteration_delays_s(options, is_periodic=schedule.is_periodic)
    return replace(model.with_delays(*delays_s), transitions=transitions)


def schedule_context(request: PlanRequest) -> ScheduleContext:
    """Return the context of the request's order.

    Raises:
        PlanningError: a part of the request cannot be used; names its field.
    """
    options = request.options
    order = None
    if options.order is not None:
        order = explicit_order(options.order, options.virtual_stages)
    return ScheduleContext(
        profile=request.profile,
        num_microbatches=request.num_microbatches,
        activation_memory=_activation_memory(request),
        checkpoint=options.checkpoint,
        order=order,
        extra_forwards=options.extra_forwards,
    )


def _activation_memory(request: PlanRequest) -> ActivationMemory | None:
    options, num_stages = request.options, request.profile.num_stages
    if options.activation_bytes is None or options.free_memory_bytes is None:
        return None
    activation_bytes, free_bytes = (
        sizes * num_stages if len(sizes) == 1 else sizes
        for sizes in (options.activation_bytes, options.free_memory_bytes)
    )
    return ActivationMemory(activation_bytes=activation_bytes, free_bytes=free_bytes)


def plan_of_choice(
    request: PlanRequest, model: PipelineModel, choice: PolicyChoice
) -> FrequencyPlan:
    """Return the plan of a policy's choice, with its prediction on the model."""
    return FrequencyPlan(
        **vars(prediction_of(request, model, model.schedule, choice)),
        stages=planned_stages(model, choice.assignment),
        requests=planned_requests(model),
    )


def prediction_of(
    request: PlanRequest, model: PipelineModel, schedule: Schedule, choice: PolicyChoice
) -> PlanPrediction:
    """Return the inputs and predictions of a plan.

    Args:
        request: request that it was planned for; its profile is not used.
        model: model that the choice was made for, of all pipelines together.
        schedule: schedule of each pipeline.
        choice: choice of the policy.
    """
    options = request.options
    iteration_time_s, energy_j = time_and_energy(model, choice.assignment)
    by_default = model.with_requests({})
    baseline_time_s, baseline_energy_j = time_and_energy(by_default, model.baseline())
    return PlanPrediction(
        policy=options.policy,
        reconfigure=options.reconfiguration,
        schedule=options.schedule,
        target=options.target,
        num_microbatches=request.num_microbatches,
        blocking_power_w=model.blocking_power_w,
        iteration_time_s=iteration_time_s,
        energy_j=energy_j,
        baseline_iteration_time_s=baseline_time_s,
        baseline_energy_j=baseline_energy_j,
        lower_bound_j=choice.lower_bound_j,
        virtual_stages=_chunk_places(schedule),
        weight_versions=schedule.weight_versions,
        reserve=choice.reserve,
        transitions=model.transitions,
        tail_s=model.dag.tail_s,
        transfer_s=iteration_delays_s(options)[1],
        compared=single_clock_plans(by_default, options),
    )


def _chunk_places(schedule: Schedule) -> VirtualStages:
    """Return the schedule's chunks for the plan; empty where stage s is virtual stage s."""
    is_plain = schedule.virtual_stages == one_chunk_each(schedule.num_stages)
    return () if is_plain else schedule.virtual_stages


def planned_requests(model: PipelineModel) -> tuple[PlannedRequest, ...]:
    """Return the model's requests as positions in their stages."""
    clocked = model.clocked
    rows: list[PlannedRequest] = []
    for instruction, request in sorted(model.requests.items()):
        stage = clocked.dag.stage[instruction]
        first = clocked.first[stage]
        next_position = clocked.last[stage] - first + 1  # of the next iteration
        rows.append(
            PlannedRequest(
                stage=stage,
                position=instruction - first or next_position,
                after_position=request.after - first,
                offset_s=request.offset_s,
            )
        )
    return tuple(sorted(rows))


def planned_stages(model: PipelineModel, assignment: Assignment) -> PlannedStages:
    """Per stage, its instructions in the order of execution, with their clocks."""
    clocks_mhz = [
        points[choice].frequency_mhz
        for points, choice in zip(model.points, assignment, strict=True)
    ]
    schedule = model.schedule
    return tuple(
        tuple(
            PlannedInstruction(kind, microbatch, clocks_mhz[node], chunk)
            for (kind, microbatch, chunk), node in zip(instructions, nodes, strict=True)
        )
        for instructions, nodes in zip(
            schedule.stages, nodes_in_order(schedule, model.dag), strict=True
        )
    )
