"""Plans that ranks wait for: of a large pipeline a first plan, of any other the ordinary one.

A GPU has become slow, and with the clocks from before every iteration takes longer than it need.
A plan at T' is wanted now; a better one may follow (`make_paced_plan` with the job's own effort).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flyball_server.planning.cancellation import cancellation_point
from flyball_server.planning.data_parallel import planned_pipelines
from flyball_server.planning.errors import PlanningError
from flyball_server.planning.frontier.event_arcs import EventArcs, event_arcs
from flyball_server.planning.frontier.first_plan import FirstPlan, FirstPlanner
from flyball_server.planning.frontier.targets import Target, parse_target
from flyball_server.planning.paced_pipelines import (
    PacedRequest,
    make_paced_plan,
    pace_classes,
    paced_model,
)
from flyball_server.planning.pipeline_model import Assignment, PipelineModel
from flyball_server.planning.plan import DataParallelPlan, FrequencyPlan
from flyball_server.planning.planner import (
    SEARCHING,
    PhaseReport,
    PlanRequest,
    chunk_places,
    model_of_request,
    plan_of_choice,
)
from flyball_server.planning.policies._base import PolicyChoice
from flyball_server.planning.running_clocks import RunningClocks
from flyball_server.planning.schedule_choice import is_auto
from flyball_server.planning.simulator import iteration_energy_j, time_and_energy

# Of all pipelines that are planned apart: below, the search with the least effort takes no more
# than half a second, and comes nearer to the bound.
FIRST_PLANS_FROM = 3_000


@dataclass(frozen=True, kw_only=True)
class _Running:
    """Clocks that some of the pipelines that are alike run at now.

    Attributes:
        num_pipelines: how many of them.
        assignment: the clocks.
    """

    num_pipelines: int
    assignment: Assignment


@dataclass(frozen=True, kw_only=True)
class _PacedPipeline:
    """Pipelines that are alike, as they are now.

    Attributes:
        dp_ranks: those that they are.
        model: with their paces.
        planner: of first plans.
        running: the clocks they run at, of all of them; empty: not known.
        running_s: durations of the clocks that most of them run at, as they were profiled and as
            they are now, s.
    """

    dp_ranks: tuple[int, ...]
    model: PipelineModel
    planner: FirstPlanner
    running: tuple[_Running, ...]
    running_s: tuple[list[float], ...]


def make_plan_at_once(
    paced: PacedRequest,
    running: RunningClocks | None = None,
    report: PhaseReport = lambda _: None,
) -> FrequencyPlan | DataParallelPlan:
    """A plan for these paces, in the time that ranks may wait for it.

    Args:
        paced: as for `make_paced_plan`, with the least effort.
        running: what the ranks run now; None: not known. A first plan is begun from it. If these
            clocks were planned for no longer an iteration and are known of all ranks, the plan is
            given only if it needs no more energy than they do by now.
        report: told what is about to be done.

    Returns:
        A plan that meets the target; its bound is proven, and looser where it is a first plan.

    Raises:
        PlanningError, TargetUnreachableError: as for `make_paced_plan`.
    """
    return make_first_plan(paced, running, report) or make_paced_plan(paced, report)


def make_first_plan(
    paced: PacedRequest,
    running: RunningClocks | None = None,
    report: PhaseReport = lambda _: None,
) -> FrequencyPlan | DataParallelPlan | None:
    """The first plan for these paces; None: none is of use, or none is needed.

    Arguments and errors as for `make_plan_at_once`.
    """
    request = paced.request
    target = _target(request)
    if target is None:
        return None
    classes = pace_classes(paced.paces, paced.num_pipelines)
    profiled = model_of_request(request)
    if profiled.dag.num_nodes * len(classes) < FIRST_PLANS_FROM:
        return None
    report(SEARCHING)
    arcs = event_arcs(profiled.dag)
    pipelines = [
        _paced_pipeline(
            dp_ranks,
            profiled,
            paced_model(profiled, paces, share=len(dp_ranks) / paced.num_pipelines),
            arcs,
            running if running is not None and running.schedule == request.schedule else None,
        )
        for paces, dp_ranks in classes.items()
    ]
    fastest_s = max(pipeline.planner.fastest_time_s for pipeline in pipelines)
    deadline_s = _deadline_s(target, pipelines)
    if deadline_s < fastest_s:
        return None  # the search says what can be met
    first = [pipeline.planner.plan(deadline_s, pipeline.running_s) for pipeline in pipelines]
    plan = _plan(request, pipelines, first)
    is_late = plan.iteration_time_s > deadline_s
    if is_late or (running is not None and _is_dearer(plan, pipelines, running)):
        return None
    return plan


def _paced_pipeline(
    dp_ranks: tuple[int, ...],
    profiled: PipelineModel,
    model: PipelineModel,
    arcs: EventArcs,
    running: RunningClocks | None,
) -> _PacedPipeline:
    cancellation_point()
    now = () if running is None else _running(dp_ranks, model, running)
    durations_s: tuple[list[float], ...] = ()
    if now:
        of_most = max(now, key=lambda one: one.num_pipelines).assignment
        durations_s = (profiled.durations_s(of_most), model.durations_s(of_most))
    return _PacedPipeline(
        dp_ranks=dp_ranks,
        model=model,
        planner=FirstPlanner(model, arcs),
        running=now,
        running_s=durations_s,
    )


def _running(
    dp_ranks: tuple[int, ...], model: PipelineModel, running: RunningClocks
) -> tuple[_Running, ...]:
    """What each of the pipelines runs now; empty where it is not known of one of them."""
    now: list[_Running] = []
    for alike in running.alike(dp_ranks):
        assignment = running.assignment(alike[0], model)
        if assignment is None:
            return ()
        now.append(_Running(num_pipelines=len(alike), assignment=assignment))
    return tuple(now)


def _target(request: PlanRequest) -> Target | None:
    """What is aimed at; None: nothing for which a first plan can be made."""
    if request.policy != "frontier" or request.reserve or is_auto(request.schedule):
        return None
    try:
        target = parse_target(request.target)
    except PlanningError:
        return None  # the search says so
    return target if target.kind in {"fastest", "slowdown", "deadline"} else None


def _deadline_s(target: Target, pipelines: Sequence[_PacedPipeline]) -> float:
    if target.kind == "deadline":
        return target.value
    baseline_s = max(
        pipeline.planner.iteration_time_s(pipeline.model.baseline()) for pipeline in pipelines
    )
    return baseline_s * (1 + target.value)


def _is_dearer(
    plan: FrequencyPlan | DataParallelPlan,
    pipelines: Sequence[_PacedPipeline],
    running: RunningClocks,
) -> bool:
    """Whether the clocks that run now need less energy, in whatever time they take by now.

    Clocks that were planned for slower iterations than are wanted now may: that is no fault. Nor
    is anything found of clocks that are not known.
    """
    is_known = all(pipeline.running for pipeline in pipelines)
    if not is_known or running.iteration_time_s > plan.iteration_time_s:
        return False
    time_s = max(
        pipeline.planner.iteration_time_s(now.assignment)
        for pipeline in pipelines
        for now in pipeline.running
    )
    energy_j = sum(
        # The model's energies are those of all the pipelines that it stands for.
        now.num_pipelines
        / len(pipeline.dp_ranks)
        * iteration_energy_j(pipeline.model, now.assignment, time_s)
        for pipeline in pipelines
        for now in pipeline.running
    )
    return plan.energy_j > energy_j


def _plan(
    request: PlanRequest, pipelines: Sequence[_PacedPipeline], first: Sequence[FirstPlan]
) -> FrequencyPlan | DataParallelPlan:
    lower_bound_j = sum(one.lower_bound_j for one in first)
    if len(pipelines) == 1:
        choice = PolicyChoice(assignment=first[0].assignment, lower_bound_j=lower_bound_j)
        return plan_of_choice(request, pipelines[0].model, choice)
    models = [pipeline.model for pipeline in pipelines]
    assignments = [one.assignment for one in first]
    iteration_time_s, energy_j = _joint_time_and_energy(models, assignments)
    baseline_time_s, baseline_energy_j = _joint_time_and_energy(
        models, [model.baseline() for model in models]
    )
    model = model_of_request(request)
    return DataParallelPlan(
        policy=request.policy,
        reconfigure=request.reconfigure,
        schedule=request.schedule,
        target=request.target,
        num_microbatches=request.num_microbatches,
        blocking_power_w=model.blocking_power_w * len(models),
        iteration_time_s=iteration_time_s,
        energy_j=energy_j,
        baseline_iteration_time_s=baseline_time_s,
        baseline_energy_j=baseline_energy_j,
        lower_bound_j=lower_bound_j,
        virtual_stages=chunk_places(model.schedule),
        weight_versions=model.schedule.weight_versions,
        pipelines=planned_pipelines(
            models,
            assignments,
            iteration_time_s,
            [pipeline.dp_ranks for pipeline in pipelines],
        ),
    )


def _joint_time_and_energy(
    models: Sequence[PipelineModel], assignments: Sequence[Assignment]
) -> tuple[float, float]:
    """Of an iteration that ends with the slowest pipeline, s and J."""
    of_each = list(zip(models, assignments, strict=True))
    time_s = max(time_and_energy(model, assignment)[0] for model, assignment in of_each)
    return time_s, sum(iteration_energy_j(*one, time_s) for one in of_each)
