"""The predicted iteration of a job's stored plan, at the paces that it was made for.

A job's profile is merged over all of its pipelines, and a plan does not say for which paces of
the GPUs it was made: those are right that give the time and the energy which it was planned with.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from flyball_profiles.stage_profile import StageProfile
from flyball_server.planning.documents.predicted_timeline import (
    PredictedTimeline,
    predicted_timeline,
)
from flyball_server.planning.documents.recorded_plan import models_of_merged_plan
from flyball_server.planning.errors import PlanningError
from flyball_server.planning.model.pipeline_model import Assignment, PipelineModel
from flyball_server.planning.plan import DataParallelPlan, FrequencyPlan
from flyball_server.planning.stragglers.slowed_pipelines import Pace, pace_classes, paced_model

# The same sums in another order differ by rounding alone.
_RELATIVE_TOLERANCE = 1e-6

_Paces = tuple[Pace, ...]


def job_timeline(
    profile: StageProfile,
    plan: FrequencyPlan | DataParallelPlan,
    *,
    paces: Sequence[Pace] = (),
    num_pipelines: int = 1,
) -> tuple[PredictedTimeline, bool]:
    """The plan's iteration on this profile, a pipeline for each class of them.

    Args:
        profile: of the job, as it is now.
        plan: of the job.
        paces: that the plan may have been made for.
        num_pipelines: data-parallel ones, at least 1.

    Returns:
        It, and whether it is as the plan was made. If not, the profile was another one or the
        paces are not known: then it is without paces.

    Raises:
        PlanningError: the plan does not fit the profile.
    """
    of_plan = models_of_merged_plan(profile, plan)
    no_paces: list[_Paces] = [()] * len(of_plan)
    without = _paced_timeline(plan, of_plan, no_paces)
    if _is_as_planned(without):
        return without, True
    own_paces = _paces_of_plan(plan, paces, num_pipelines)
    if own_paces is not None and own_paces != no_paces:
        try:
            paced = _paced_timeline(plan, of_plan, own_paces)
        except PlanningError:  # they are of another profile: on this one they lead too far
            return without, False
        if _is_as_planned(paced):
            return paced, True
    return without, False


def own_dp_ranks(plan: FrequencyPlan | DataParallelPlan) -> tuple[int, ...]:
    """Of each of the timeline's pipelines, the lowest data-parallel rank that it stands for."""
    if isinstance(plan, FrequencyPlan):
        return (0,)
    return tuple(pipeline.dp_rank for pipeline in plan.pipelines)


def _paces_of_plan(
    plan: FrequencyPlan | DataParallelPlan, paces: Sequence[Pace], num_pipelines: int
) -> list[_Paces] | None:
    """Of each class of pipelines in the plan; None: these paces make other classes."""
    if isinstance(plan, FrequencyPlan):
        classes = list(pace_classes(paces, num_pipelines))
        return classes if len(classes) == 1 else None
    by_pipelines = {
        dp_ranks: own for own, dp_ranks in pace_classes(paces, len(plan.by_dp_rank)).items()
    }
    own_paces = [by_pipelines.get(pipeline.stands_for) for pipeline in plan.pipelines]
    found = [own for own in own_paces if own is not None]
    return found if len(found) == len(own_paces) else None


def _paced_timeline(
    plan: FrequencyPlan | DataParallelPlan,
    of_plan: Sequence[tuple[PipelineModel, Assignment]],
    paces: Sequence[_Paces],
) -> PredictedTimeline:
    """The pipelines at these paces, each with its share of the ranks that the profile merges."""
    if isinstance(plan, FrequencyPlan):
        shares = [1.0]
    else:
        num_pipelines = len(plan.by_dp_rank)
        shares = [len(pipeline.stands_for) / num_pipelines for pipeline in plan.pipelines]
    return predicted_timeline(
        plan,
        [
            (paced_model(model, own, share=share) if own or share != 1 else model, assignment)
            for (model, assignment), own, share in zip(of_plan, paces, shares, strict=True)
        ],
    )


def _is_as_planned(timeline: PredictedTimeline) -> bool:
    plan, whole = timeline.plan, timeline.simulation.whole
    return math.isclose(
        whole.iteration_time_s, plan.iteration_time_s, rel_tol=_RELATIVE_TOLERANCE
    ) and math.isclose(whole.energy_j, plan.energy_j, rel_tol=_RELATIVE_TOLERANCE)
