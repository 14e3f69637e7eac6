"""Data-parallel pipelines planned together: the iteration ends when the slowest has finished.

Side by side they are one pipeline model: the stages of all, no edges between pipelines, one
iteration time. So what plans one pipeline plans them all, and a pipeline of faster GPUs may
stretch to the time of the slowest pipeline; waiting until then is priced.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

from flyball_profiles.stage_profile import StageProfile
from flyball_server.planning.errors import PlanningError
from flyball_server.planning.model.joint_model import join_pipelines
from flyball_server.planning.model.pipeline_model import PipelineModel
from flyball_server.planning.planner import (
    BUILDING,
    SEARCHING,
    PhaseReport,
    PlanRequest,
    choose_clocks,
    model_of_request,
    simulated_choice,
)
from flyball_server.planning.policies._base import PolicyChoice
from flyball_server.planning.policies.envpipe import ENVPIPE_POLICIES
from flyball_server.planning.schedule_choice import is_auto
from flyball_server.planning.simulated_plan import SimulatedPlan


def separate_pipelines(
    request: PlanRequest, profiles: Sequence[StageProfile]
) -> tuple[PlanRequest, ...]:
    """Return a request for each pipeline, by `dp_rank`; the profile of `request` is not used.

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
    return tuple(
        replace(request, profile=profile).with_options(blocking_power_w=of_pipeline_w)
        for profile, of_pipeline_w in zip(profiles, power_w, strict=True)
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


def make_data_parallel_plan(
    pipelines: Sequence[PlanRequest], report: PhaseReport = lambda _: None
) -> SimulatedPlan:
    """Return the policy's plan with separate clocks for each pipeline.

    Args:
        pipelines: by `dp_rank`, at least one; alike but for profile and blocking power.
        report: called before each phase.

    Raises:
        PlanningError: a part of the request cannot be used; names its field.
        TargetUnreachableError: no plan of this policy meets the target.
    """
    report(BUILDING)
    models = [model_of_request(pipeline) for pipeline in pipelines]
    return plan_models(pipelines[0], models, report)


def plan_models(
    request: PlanRequest,
    models: Sequence[PipelineModel],
    report: PhaseReport = lambda _: None,
    *,
    dp_ranks: Sequence[tuple[int, ...]] = (),
) -> SimulatedPlan:
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
    dp_ranks = dp_ranks or [(dp_rank,) for dp_rank in range(len(models))]
    return simulated_choice(request, models, choice, dp_ranks=dp_ranks)


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
