"""One iteration of a plan on a profile, predicted: when everything runs, and at which clock."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

from flyball_profiles.stage_profile import StageProfile
from flyball_server.planning.documents.recorded_plan import models_of_plan
from flyball_server.planning.model.pipeline_model import Assignment, PipelineModel
from flyball_server.planning.model.simulator import Simulation
from flyball_server.planning.simulated_plan import SimulatedPlan, simulated_plan
from flyball_server.planning.stragglers.slowed_pipelines import slowed_model
from flyball_wire.plans.plan import Plan
from flyball_wire.read_models import TimelineRow


def timeline_rows(timeline: SimulatedPlan) -> tuple[TimelineRow, ...]:
    """All rows, pipeline after pipeline, stage after stage."""
    whole = timeline.simulation.whole
    rows: list[TimelineRow] = []
    first_node = 0
    for pipeline, model, assignment in zip(
        timeline.plan.pipelines, timeline.models, timeline.assignments, strict=True
    ):
        rows += _rows(model, assignment, whole, first_node, pipeline.stands_for[0])
        first_node += model.dag.num_nodes
    return tuple(rows)


def critical_places(timeline: SimulatedPlan) -> tuple[tuple[int, int], ...]:
    """Row and position in it of each instruction on a longest path, in the order of time.

    Of several pipelines one path each, one after the other. Of a pipeline that never flushes all of
    its slowest stage.
    """
    places: list[tuple[int, int]] = []
    first_row = 0
    for model, simulation in zip(timeline.models, timeline.simulation.pipelines, strict=True):
        of_node: dict[int, list[tuple[int, int]]] = {}
        for row, nodes in enumerate(model.dag.nodes_of(model.schedule), first_row):
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
    first_node: int,
    dp_rank: int,
) -> Iterator[TimelineRow]:
    """Each stage's row; where the pipeline never flushes, instructions run one after the other."""
    schedule = model.schedule
    num_runs = schedule.num_microbatches if schedule.is_periodic else 1  # of a node
    for stage, nodes in enumerate(model.dag.nodes_of(schedule)):
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
            blocking_power_w=model.stage_blocking_power_w[stage],
            kinds=tuple(kind.value for kind in kinds),
            microbatches=microbatches,
            chunks=chunks,
            clock_mhz=tuple(model.points[node][assignment[node]].frequency_mhz for node in nodes),
            start_s=tuple(starts_s),
            duration_s=tuple(durations_s),
            energy_j=tuple(whole.busy_j[node] / num_runs for node in in_whole),
            float_s=tuple(whole.float_s[node] for node in in_whole),
        )


def planned_models(profile: StageProfile, plan: Plan) -> list[tuple[PipelineModel, Assignment]]:
    """Return model and assignment of each pipeline, with the slowdown factors of the plan.

    Args:
        profile: measured points, merged over the ranks of all pipelines.
        plan: plan of a job.

    Raises:
        PlanningError: the plan does not fit the profile.
    """
    num_pipelines = len(plan.by_dp_rank)
    pipelines: list[tuple[PipelineModel, Assignment]] = []
    for part, (model, assignment) in zip(
        plan.pipelines, models_of_plan(profile, plan), strict=True
    ):
        share = len(part.stands_for) / num_pipelines
        is_as_profiled = share == 1 and not part.slowdowns
        own = model if is_as_profiled else slowed_model(model, part.slowdowns, share=share)
        pipelines.append((own, assignment))
    return pipelines


# The same sums in another order differ by rounding alone.
_RELATIVE_TOLERANCE = 1e-6


def job_timeline(profile: StageProfile, plan: Plan) -> tuple[SimulatedPlan, bool]:
    """Return the plan's iteration on this profile, with the slowdown factors it was planned with.

    Args:
        profile: current profile of the job.
        plan: plan of the job.

    Returns:
        It, and whether it is as the plan was made; if not, the profile was another.

    Raises:
        PlanningError: the plan does not fit the profile.
    """
    timeline = simulated_plan(plan, planned_models(profile, plan))
    whole = timeline.simulation.whole
    is_as_planned = math.isclose(
        whole.iteration_time_s, plan.iteration_time_s, rel_tol=_RELATIVE_TOLERANCE
    ) and math.isclose(whole.energy_j, plan.predicted.energy_j, rel_tol=_RELATIVE_TOLERANCE)
    return timeline, is_as_planned
