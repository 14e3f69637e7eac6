"""Data-parallel pipelines planned together: the iteration ends when the slowest has finished.

Side by side they are one pipeline model: the stages of all, no edges between pipelines, one
iteration time. So what plans one pipeline plans them all, and a pipeline of faster GPUs may
stretch to the time of the slowest one; waiting until then is priced.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from flyball_pipeline.dag import NONE
from flyball_pipeline.schedule import Schedule, VirtualStages
from flyball_profiles.stage_profile import StageProfile
from flyball_server.planning.errors import PlanningError
from flyball_server.planning.model.array_dag import ArrayDag
from flyball_server.planning.model.clocked_instructions import ClockRequest
from flyball_server.planning.model.pipeline_model import Assignment, PipelineModel
from flyball_server.planning.model.simulator import (
    Simulation,
    iteration_energy_j,
    simulate,
    time_and_energy,
)
from flyball_server.planning.plan import DataParallelPlan, PlannedPipeline
from flyball_server.planning.planner import (
    BUILDING,
    SEARCHING,
    PhaseReport,
    PlanRequest,
    choose_clocks,
    model_of_request,
    planned_requests,
    planned_stages,
    prediction_of,
)
from flyball_server.planning.policies._base import PolicyChoice
from flyball_server.planning.policies.envpipe import ENVPIPE_POLICIES
from flyball_server.planning.schedule_choice import is_auto

ItemT = TypeVar("ItemT")


@dataclass(frozen=True, kw_only=True)
class DataParallelRequest:
    """Input of a plan for data-parallel pipelines.

    Attributes:
        pipelines: by `dp_rank`, at least one; alike but for profile and blocking power.
    """

    pipelines: tuple[PlanRequest, ...]


@dataclass(frozen=True, kw_only=True)
class JointSimulation:
    """One iteration of data-parallel pipelines, predicted.

    Attributes:
        whole: simulation of all pipelines as one model.
        pipelines: by `dp_rank`; `iteration_time_s`, floats and critical path are the
            pipeline's own, energy and bubbles count its waiting for the slowest one.
    """

    whole: Simulation
    pipelines: tuple[Simulation, ...]


def separate_pipelines(
    request: PlanRequest, profiles: Sequence[StageProfile]
) -> DataParallelRequest:
    """Return a request for pipelines of these profiles, by `dp_rank`; its own profile is unused.

    Its blocking power is one value, one per stage, or one per stage of each pipeline.

    Raises:
        PlanningError: it is another number of values, or the schedule is `auto`.
    """
    if is_auto(request.options.schedule):
        raise PlanningError(
            "auto plans one pipeline; name a schedule for separate pipelines", field="schedule"
        )
    power_w = blocking_power_by_pipeline(
        request.blocking_power_w, len(profiles), profiles[0].num_stages
    )
    return DataParallelRequest(
        pipelines=tuple(
            replace(request, profile=profile).with_options(blocking_power_w=of_pipeline_w)
            for profile, of_pipeline_w in zip(profiles, power_w, strict=True)
        )
    )


def blocking_power_by_pipeline(
    blocking_power_w: Sequence[float], num_pipelines: int, num_stages: int
) -> list[tuple[float, ...]]:
    """Each pipeline's values: the same for all, or its own part of one per stage of each.

    Raises:
        PlanningError: it is another number of values.
    """
    values_w = tuple(blocking_power_w)
    if len(values_w) in {1, num_stages}:
        return [values_w] * num_pipelines
    if len(values_w) != num_pipelines * num_stages:
        raise PlanningError(
            f"{len(values_w)} values for {num_pipelines} pipelines of {num_stages} stages; give"
            " one, one per stage, or one per stage of each pipeline",
            field="blocking_power_w",
        )
    return [values_w[first : first + num_stages] for first in range(0, len(values_w), num_stages)]


@dataclass(frozen=True, kw_only=True)
class SolvedDataParallelPlan:
    """Plan of several pipelines with its models and assignments, as `SolvedPlan`.

    Attributes:
        models: models of the plan's pipelines.
        joint: `join_pipelines` of these.
        assignment: for the joint model.
    """

    plan: DataParallelPlan
    models: tuple[PipelineModel, ...]
    joint: PipelineModel
    assignment: Assignment

    @property
    def assignments(self) -> list[Assignment]:
        """The assignment of each model."""
        return split_assignment(self.models, self.assignment)


def make_data_parallel_plan(
    request: DataParallelRequest, report: PhaseReport = lambda _: None
) -> SolvedDataParallelPlan:
    """Return the policy's plan for the request, with separate clocks for each pipeline.

    Raises:
        PlanningError: a part of the request cannot be used; names its field.
        TargetUnreachableError: no plan of this policy meets the target.
    """
    report(BUILDING)
    models = [model_of_request(pipeline) for pipeline in request.pipelines]
    return plan_models(request.pipelines[0], models, report)


def plan_models(
    request: PlanRequest,
    models: Sequence[PipelineModel],
    report: PhaseReport = lambda _: None,
    *,
    dp_ranks: Sequence[tuple[int, ...]] = (),
) -> SolvedDataParallelPlan:
    """Return the plan of pipelines whose models are made already; its own profile is not used.

    Args:
        request: options and inputs of the planning.
        models: models of the pipelines; all run the same schedule with as many microbatches.
        report: called before each phase.
        dp_ranks: data-parallel ranks that each model stands for; left out: one each.

    Raises:
        PlanningError, TargetUnreachableError: as for `make_data_parallel_plan`.
    """
    joint = join_pipelines(models)
    report(SEARCHING)
    choice = choose_jointly(request, models, joint)
    models = _with_requests(models, choice.requests)
    joint = joint.with_requests(choice.requests)
    prediction = prediction_of(request, joint, models[0].schedule, choice)
    pipelines = tuple(
        PlannedPipeline(
            dp_rank=stands_for[0],
            iteration_time_s=time_and_energy(model, assignment)[0],
            energy_j=iteration_energy_j(model, assignment, prediction.iteration_time_s),
            stages=planned_stages(model, assignment),
            requests=planned_requests(model),
            dp_ranks=stands_for if len(stands_for) > 1 else (),
        )
        for stands_for, model, assignment in zip(
            dp_ranks or [(dp_rank,) for dp_rank in range(len(models))],
            models,
            split_assignment(models, choice.assignment),
            strict=True,
        )
    )
    return SolvedDataParallelPlan(
        plan=DataParallelPlan(**vars(prediction), pipelines=pipelines),
        models=tuple(models),
        joint=joint,
        assignment=choice.assignment,
    )


def join_pipelines(models: Sequence[PipelineModel]) -> PipelineModel:
    """Pipelines side by side as one model: the one's stages and nodes after the other's.

    Args:
        models: at least one; all run the same schedule with as many microbatches, and change
            clocks as fast.
    """
    return PipelineModel(
        schedule=Schedule(
            name=models[0].schedule.name,
            num_microbatches=models[0].schedule.num_microbatches,
            stages=_chained(model.schedule.stages for model in models),
            virtual_stages=_joint_virtual_stages([model.schedule for model in models]),
            weight_versions=_chained(model.schedule.weight_versions or () for model in models)
            or None,
        ),
        dag=_joint_dag(models),
        points=_chained(model.points for model in models),
        blocking_power_w=_chained(model.blocking_power_w for model in models),
        num_ranks=_chained(model.num_ranks for model in models),
        transitions=models[0].transitions,
        requests={
            first + instruction: replace(request, after=first + request.after)
            for first, model in zip(_first_instructions(models), models, strict=True)
            for instruction, request in model.requests.items()
        },
    )


def _first_instructions(models: Sequence[PipelineModel]) -> list[int]:
    """Return the number that each pipeline's first instruction has in the joint model."""
    if not any(model.transitions for model in models):
        return [0] * len(models)
    return _offsets([model.clocked.num_instructions for model in models])


def _with_requests(
    models: Sequence[PipelineModel], requests: Mapping[int, ClockRequest]
) -> list[PipelineModel]:
    """Return the pipelines with their parts of the joint model's requests."""
    return [
        model.with_requests(
            {
                instruction - first: replace(request, after=request.after - first)
                for instruction, request in requests.items()
                if first <= instruction < first + model.clocked.num_instructions
            }
        )
        if requests
        else model
        for first, model in zip(_first_instructions(models), models, strict=True)
    ]


def split_assignment(
    models: Sequence[PipelineModel], assignment: Sequence[int]
) -> list[Assignment]:
    """Each pipeline's part of an assignment of the joint model."""
    nodes = iter(assignment)
    return [list(itertools.islice(nodes, model.dag.num_nodes)) for model in models]


def simulate_jointly(
    models: Sequence[PipelineModel],
    assignments: Sequence[Assignment],
    joint: PipelineModel | None = None,
) -> JointSimulation:
    """Run one iteration of all pipelines on paper, each with its own assignment.

    Args:
        models: models of the pipelines.
        assignments: assignment of each model.
        joint: `join_pipelines` of these, where it is at hand.
    """
    whole = simulate(joint or join_pipelines(models), list(itertools.chain(*assignments)))
    return JointSimulation(
        whole=whole,
        pipelines=tuple(
            _simulate_until(whole.iteration_time_s, model, assignment)
            for model, assignment in zip(models, assignments, strict=True)
        ),
    )


def _simulate_until(end_s: float, model: PipelineModel, assignment: Assignment) -> Simulation:
    own, tail_s = simulate(model, assignment), model.dag.tail_s
    return replace(
        own,
        energy_j=iteration_energy_j(model, assignment, end_s),
        bubble_fraction=1
        - (1 - own.bubble_fraction) * (own.iteration_time_s - tail_s) / (end_s - tail_s),
    )


def choose_jointly(
    request: PlanRequest, models: Sequence[PipelineModel], joint: PipelineModel
) -> PolicyChoice:
    """Return the clocks that the request's policy chooses for all pipelines together.

    Args:
        request: its policy and options.
        models: models of the pipelines.
        joint: these as one; of a single pipeline its model.

    Raises:
        PlanningError, TargetUnreachableError: as for `make_data_parallel_plan`.
    """
    policy = request.options.policy
    # EnvPipe's policies find the outer envelope of one pipeline, the frontier the deadline of all.
    if policy in ENVPIPE_POLICIES:
        choices = [choose_clocks(request, model).assignment for model in models]
        return PolicyChoice(assignment=list(itertools.chain(*choices)))
    return choose_clocks(request, joint)


def _joint_dag(models: Sequence[PipelineModel]) -> ArrayDag:
    """Return the disjoint union of the pipelines' DAGs."""
    dags = [model.dag for model in models]
    first_stage = _offsets([model.schedule.num_stages for model in models])
    first_node = _offsets([dag.num_nodes for dag in dags])

    def shifted(per_pipeline: Sequence[Sequence[int]], by: Sequence[int]) -> tuple[int, ...]:
        return tuple(
            NONE if number == NONE else number + offset
            for numbers, offset in zip(per_pipeline, by, strict=True)
            for number in numbers
        )

    return ArrayDag(
        stage=shifted([dag.stage for dag in dags], first_stage),
        instruction=_chained(dag.instruction for dag in dags),
        order_predecessor=shifted([dag.order_predecessor for dag in dags], first_node),
        data_predecessor=shifted([dag.data_predecessor for dag in dags], first_node),
        topological_order=shifted([dag.topological_order for dag in dags], first_node),
        tail_s=dags[0].tail_s,
        transfer_s=_chained(dag.transfer_s for dag in dags),
    )


def _joint_virtual_stages(schedules: Sequence[Schedule]) -> VirtualStages:
    """Return the one pipeline's virtual stages after the other's."""
    first = _offsets([schedule.num_stages * schedule.num_chunks for schedule in schedules])
    return tuple(
        tuple(virtual + offset for virtual in of_stage)
        for schedule, offset in zip(schedules, first, strict=True)
        for of_stage in schedule.virtual_stages
    )


def _offsets(counts: Sequence[int]) -> list[int]:
    """Return how many come before each."""
    return [0, *itertools.accumulate(counts[:-1])]


def _chained(parts: Iterable[Iterable[ItemT]]) -> tuple[ItemT, ...]:
    return tuple(itertools.chain.from_iterable(parts))
