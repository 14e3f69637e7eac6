"""From a request to a plan: the one entry of the planning core."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from flyball_pipeline.errors import PipelineError
from flyball_pipeline.schedules.explicit import explicit_order
from flyball_profiles.stage_profile import StageProfile
from flyball_server.planning.cancellation import cancellation_point
from flyball_server.planning.errors import PlanningError
from flyball_server.planning.frontier.saving_sources import saving_sources
from flyball_server.planning.model.joint_model import (
    join_pipelines,
    split_assignment,
    with_joint_requests,
)
from flyball_server.planning.model.pipeline_model import (
    Assignment,
    PipelineModel,
    build_model,
    check_draw,
)
from flyball_server.planning.model.simulator import (
    Simulation,
    iteration_energy_j,
    simulate,
    simulate_jointly,
)
from flyball_server.planning.policies import POLICIES
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
from flyball_server.planning.simulated_plan import SimulatedPlan
from flyball_wire.closed_loop import ComparedPlan
from flyball_wire.plan_options import PlanOptions, Policy
from flyball_wire.plans.plan import (
    PipelinePlan,
    Plan,
    PlannedRequest,
    PlannedStages,
    Prediction,
    StagePrediction,
    chunk_places,
    clocked_stages,
)

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


def make_plan(request: PlanRequest, report: PhaseReport = lambda _: None) -> SimulatedPlan:
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
        solved = simulated_choice(named, [chosen.model], choice)
        return replace(solved, plan=replace(solved.plan, considered=chosen.considered))
    model = model_of_request(request)
    report(SEARCHING)
    return simulated_choice(request, [model], choose_clocks(request, model))


def make_plan_only(request: PlanRequest) -> Plan:
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
    return POLICIES[policy](
        PolicyRequest(
            model=model,
            options=request.options,
            reconfigure_granularity_mhz=request.reconfigure_granularity_mhz,
        )
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


def simulated_choice(
    request: PlanRequest,
    models: Sequence[PipelineModel],
    choice: PolicyChoice,
    *,
    dp_ranks: Sequence[tuple[int, ...]] = ((),),
) -> SimulatedPlan:
    """Return the plan of a policy's choice with its simulation.

    Args:
        request: request that it was planned for; its profile is not used.
        models: model of each pipeline, without the requests of the choice.
        choice: choice of the policy, for `join_pipelines` of the models.
        dp_ranks: data-parallel ranks that each model stands for; empty: all ranks, of one model.
    """
    options, schedule = request.options, models[0].schedule
    models = with_joint_requests(models, choice.requests)
    joint, assignments = join_pipelines(models), split_assignment(models, choice.assignment)
    simulation = simulate_jointly(models, assignments, joint)
    plan = Plan(
        policy=options.policy,
        reconfigure=options.reconfiguration,
        schedule=options.schedule,
        target=options.target,
        num_microbatches=request.num_microbatches,
        blocking_power_w=joint.blocking_power_w,
        iteration_time_s=simulation.whole.iteration_time_s,
        pipelines=tuple(
            PipelinePlan(
                stages=planned_stages(model, assignment),
                requests=planned_requests(model),
                dp_ranks=own_ranks,
                iteration_time_s=own.iteration_time_s if own_ranks else None,
                energy_j=own.energy_j if own_ranks else None,
            )
            for model, assignment, own, own_ranks in zip(
                models, assignments, simulation.pipelines, dp_ranks, strict=True
            )
        ),
        prediction=predicted(
            joint,
            choice.assignment,
            simulation.whole,
            lower_bound_j=choice.lower_bound_j,
            at_once_j=choice.at_once_j,
            compared=single_clock_plans(joint.with_requests({}), options),
        ),
        virtual_stages=chunk_places(schedule),
        weight_versions=schedule.weight_versions,
        reserve=choice.reserve,
        transitions=joint.transitions,
        tail_s=joint.dag.tail_s,
        transfer_s=options.transfer_s,
    )
    return SimulatedPlan(
        plan=plan, models=tuple(models), assignments=tuple(assignments), simulation=simulation
    )


def predicted(
    model: PipelineModel,
    assignment: Assignment,
    simulation: Simulation,
    *,
    lower_bound_j: float | None = None,
    at_once_j: float | None = None,
    compared: tuple[ComparedPlan, ...] = (),
) -> Prediction:
    """Return the prediction of a simulated plan, beside that of its baseline.

    Args:
        model: model of the plan, of all pipelines together.
        assignment: clocks of the plan.
        simulation: an iteration of the plan.
        lower_bound_j: as in `Prediction`.
        at_once_j: as in `PolicyChoice`.
        compared: as in `Prediction`.
    """
    baseline = simulate(model.with_requests({}), model.baseline())
    return Prediction(
        energy_j=simulation.energy_j,
        baseline_iteration_time_s=baseline.iteration_time_s,
        baseline_energy_j=baseline.energy_j,
        lower_bound_j=lower_bound_j,
        compared=compared,
        saving_sources=saving_sources(model, simulation, baseline),
        late_changes_j=_late_changes_j(model, assignment, simulation, at_once_j),
        stages=_stage_predictions(model, simulation),
    )


def _late_changes_j(
    model: PipelineModel, assignment: Assignment, simulation: Simulation, at_once_j: float | None
) -> float:
    if model.transitions is None:
        return 0.0
    if at_once_j is None:
        at_once_j = iteration_energy_j(
            model.without_transitions(), assignment, simulation.iteration_time_s
        )
    return simulation.energy_j - at_once_j


def _stage_predictions(model: PipelineModel, simulation: Simulation) -> tuple[StagePrediction, ...]:
    power_w = model.stage_blocking_power_w
    busy_s = [0.0] * len(power_w)
    energy_j = [simulation.iteration_time_s * of_stage_w for of_stage_w in power_w]
    for stage, node_s, node_j in zip(
        model.dag.stage, simulation.busy_s, simulation.busy_j, strict=True
    ):
        busy_s[stage] += node_s
        energy_j[stage] += node_j - power_w[stage] * node_s
    return tuple(
        StagePrediction(busy_s=busy, energy_j=energy)
        for busy, energy in zip(busy_s, energy_j, strict=True)
    )


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
    points, schedule = model.points, model.schedule
    return clocked_stages(
        schedule.stages,
        [
            [points[node][assignment[node]].frequency_mhz for node in nodes]
            for nodes in model.dag.nodes_of(schedule)
        ],
    )
