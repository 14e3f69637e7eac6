"""One iteration of a plan on a profile, predicted: when everything runs, and at which clock."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from flyball_profiles.stage_profile import StageProfile
from flyball_server.planning.documents.recorded_plan import models_of_merged_plan
from flyball_server.planning.errors import PlanningError
from flyball_server.planning.model.dag import nodes_in_order
from flyball_server.planning.model.data_parallel import JointSimulation, simulate_jointly
from flyball_server.planning.model.pipeline_model import Assignment, PipelineModel
from flyball_server.planning.model.simulator import Simulation, simulate
from flyball_server.planning.plan import DataParallelPlan, FrequencyPlan
from flyball_server.planning.stragglers.slowed_pipelines import (
    Slowdown,
    slowdown_classes,
    slowed_model,
)
from flyball_wire.read_models import TimelineRow


@dataclass(frozen=True, kw_only=True)
class PredictedTimeline:
    """One iteration of a plan, predicted on a profile.

    Attributes:
        plan: the plan as it was read.
        models, assignments: model and assignment of each pipeline, by `dp_rank`.
        simulation: simulated times; for one pipeline, whole and pipeline are the same.
    """

    plan: FrequencyPlan | DataParallelPlan
    models: tuple[PipelineModel, ...]
    assignments: tuple[Assignment, ...]
    simulation: JointSimulation

    @property
    def is_data_parallel(self) -> bool:
        """True if each pipeline has clocks of its own."""
        return isinstance(self.plan, DataParallelPlan)

    def baseline(self) -> PredictedTimeline:
        """Return the same instructions in the same order, each at its highest profiled clock."""
        return predicted_timeline(
            self.plan, [(model.with_requests({}), model.baseline()) for model in self.models]
        )


def predicted_timeline(
    plan: FrequencyPlan | DataParallelPlan, pipelines: Sequence[tuple[PipelineModel, Assignment]]
) -> PredictedTimeline:
    """The pipelines of a plan simulated: all together if it is data-parallel, else the one."""
    models, assignments = zip(*pipelines, strict=True)
    if isinstance(plan, DataParallelPlan):
        simulation = simulate_jointly(models, assignments)
    else:
        own = simulate(models[0], assignments[0])
        simulation = JointSimulation(whole=own, pipelines=(own,))
    return PredictedTimeline(
        plan=plan, models=models, assignments=assignments, simulation=simulation
    )


def timeline_rows(timeline: PredictedTimeline, dp_ranks: Sequence[int]) -> tuple[TimelineRow, ...]:
    """All rows, pipeline after pipeline, stage after stage.

    Args:
        timeline: timeline of one pipeline or several.
        dp_ranks: lowest data-parallel rank that each pipeline stands for.
    """
    whole = timeline.simulation.whole
    rows: list[TimelineRow] = []
    first_stage = first_node = 0
    for dp_rank, model, assignment in zip(
        dp_ranks, timeline.models, timeline.assignments, strict=True
    ):
        rows += _rows(model, assignment, whole, (first_stage, first_node), dp_rank)
        first_stage += model.schedule.num_stages
        first_node += model.dag.num_nodes
    return tuple(rows)


def critical_places(timeline: PredictedTimeline) -> tuple[tuple[int, int], ...]:
    """Row and position in it of each instruction on a longest path, in the order of time.

    Of several pipelines one path each, one after the other. Of a pipeline that never flushes all of
    its slowest stage.
    """
    places: list[tuple[int, int]] = []
    first_row = 0
    for model, simulation in zip(timeline.models, timeline.simulation.pipelines, strict=True):
        of_node: dict[int, list[tuple[int, int]]] = {}
        for row, nodes in enumerate(nodes_in_order(model.schedule, model.dag), first_row):
            for position, node in enumerate(nodes):
                of_node.setdefault(node, []).append((row, position))
        own = [place for node in simulation.critical_path for place in of_node[node]]
        places += sorted(own) if model.schedule.is_periodic else own
        first_row += model.schedule.num_stages
    return tuple(places)


def _rows(
    model: PipelineModel,
    assignment: Assignment,
    whole: Simulation,
    firsts: tuple[int, int],
    dp_rank: int,
) -> Iterator[TimelineRow]:
    """Each stage's row; where the pipeline never flushes, instructions run one after the other."""
    schedule = model.schedule
    first_stage, first_node = firsts  # in the whole
    num_runs = schedule.num_microbatches if schedule.is_periodic else 1  # of a node
    for stage, nodes in enumerate(nodes_in_order(schedule, model.dag)):
        kinds, microbatches, chunks = zip(*schedule.stages[stage], strict=True)
        in_whole = [first_node + node for node in nodes]
        durations_s = [whole.busy_s[node] / num_runs for node in in_whole]
        starts_s = (
            [0.0, *itertools.accumulate(durations_s[:-1])]
            if schedule.is_periodic
            else [whole.start_s[node] for node in in_whole]
        )
        yield TimelineRow(
            stage=stage,
            dp_rank=dp_rank,
            blocking_power_w=whole.waiting_power_w[first_stage + stage],
            kinds=tuple(kind.value for kind in kinds),
            microbatches=microbatches,
            chunks=chunks,
            clock_mhz=tuple(model.points[node][assignment[node]].frequency_mhz for node in nodes),
            start_s=tuple(starts_s),
            duration_s=tuple(durations_s),
            energy_j=tuple(whole.busy_j[node] / num_runs for node in in_whole),
            float_s=tuple(whole.float_s[node] for node in in_whole),
        )


# The same sums in another order differ by rounding alone.
_RELATIVE_TOLERANCE = 1e-6

_Slowdowns = tuple[Slowdown, ...]


def job_timeline(
    profile: StageProfile,
    plan: FrequencyPlan | DataParallelPlan,
    *,
    slowdowns: Sequence[Slowdown] = (),
    num_pipelines: int = 1,
) -> tuple[PredictedTimeline, bool]:
    """Return the plan's iteration on this profile, a pipeline for each class of them.

    Args:
        profile: current profile of the job.
        plan: plan of the job.
        slowdowns: that the plan may have been made for.
        num_pipelines: data-parallel ones, at least 1.

    Returns:
        It, and whether it is as the plan was made. If not, the profile was another one or the
        slowdown factors are not known: then it is without slowdown factors.

    Raises:
        PlanningError: the plan does not fit the profile.
    """
    of_plan = models_of_merged_plan(profile, plan)
    no_slowdowns: list[_Slowdowns] = [()] * len(of_plan)
    without = _slowed_timeline(plan, of_plan, no_slowdowns)
    if _is_as_planned(without):
        return without, True
    own_slowdowns = _slowdowns_of_plan(plan, slowdowns, num_pipelines)
    if own_slowdowns is not None and own_slowdowns != no_slowdowns:
        try:
            slowed = _slowed_timeline(plan, of_plan, own_slowdowns)
        except PlanningError:  # they are of another profile: on this one they lead too far
            return without, False
        if _is_as_planned(slowed):
            return slowed, True
    return without, False


def own_dp_ranks(plan: FrequencyPlan | DataParallelPlan) -> tuple[int, ...]:
    """Return the lowest data-parallel rank of each pipeline in the timeline."""
    if isinstance(plan, FrequencyPlan):
        return (0,)
    return tuple(pipeline.dp_rank for pipeline in plan.pipelines)


def _slowdowns_of_plan(
    plan: FrequencyPlan | DataParallelPlan, slowdowns: Sequence[Slowdown], num_pipelines: int
) -> list[_Slowdowns] | None:
    """Return those of each class of pipelines in the plan; None: they make other classes."""
    if isinstance(plan, FrequencyPlan):
        classes = list(slowdown_classes(slowdowns, num_pipelines))
        return classes if len(classes) == 1 else None
    by_pipelines = {
        dp_ranks: own for own, dp_ranks in slowdown_classes(slowdowns, len(plan.by_dp_rank)).items()
    }
    own_slowdowns = [by_pipelines.get(pipeline.stands_for) for pipeline in plan.pipelines]
    found = [own for own in own_slowdowns if own is not None]
    return found if len(found) == len(own_slowdowns) else None


def _slowed_timeline(
    plan: FrequencyPlan | DataParallelPlan,
    of_plan: Sequence[tuple[PipelineModel, Assignment]],
    slowdowns: Sequence[_Slowdowns],
) -> PredictedTimeline:
    """Return the slowed pipelines, each with its share of the ranks that the profile merges."""
    if isinstance(plan, FrequencyPlan):
        shares = [1.0]
    else:
        num_pipelines = len(plan.by_dp_rank)
        shares = [len(pipeline.stands_for) / num_pipelines for pipeline in plan.pipelines]
    return predicted_timeline(
        plan,
        [
            (slowed_model(model, own, share=share) if own or share != 1 else model, assignment)
            for (model, assignment), own, share in zip(of_plan, slowdowns, shares, strict=True)
        ],
    )


def _is_as_planned(timeline: PredictedTimeline) -> bool:
    plan, whole = timeline.plan, timeline.simulation.whole
    return math.isclose(
        whole.iteration_time_s, plan.iteration_time_s, rel_tol=_RELATIVE_TOLERANCE
    ) and math.isclose(whole.energy_j, plan.energy_j, rel_tol=_RELATIVE_TOLERANCE)
