"""Saving of a plan for each step, on the steps that a job has measured; predicted."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from flyball_pipeline.retiming import RetimedPipeline, own_times, retime
from flyball_pipeline.step_curves import ClockPoint
from flyball_server.planning.model.array_dag import FloatArray
from flyball_server.planning.model.pipeline_model import Assignment, PipelineModel
from flyball_server.replay.steps.judged_steps import judged_at_once
from flyball_server.replay.steps.replayed_steps import compared, highest_steps
from flyball_server.replay.steps.step_models import PipelineStep, StepModel

# A large pipeline takes a third of a second a step.
_MOST_INSTRUCTIONS = 50_000


def step_plans_saving_percent(
    models: Sequence[tuple[PipelineModel, Assignment]], compute_s: FloatArray
) -> float:
    """Return the energy that clocks for each step save, no slower than the highest clocks, %.

    As many of the first steps count as have some 50,000 instructions.

    Args:
        models: model and assignment of each measured pipeline.
        compute_s: measured times of their instructions at the assigned clocks, s; shape (num_nodes,
            num_steps, num_pipelines).

    Raises:
        RetimingError: a pipeline has too many instructions.
    """
    num_nodes, num_steps, num_pipelines = compute_s.shape
    most_steps = max(1, _MOST_INSTRUCTIONS // (num_nodes * num_pipelines))
    of_models = {id(model): _step_model(model) for model, _ in models}
    steps = tuple(
        tuple(
            PipelineStep(
                dp_rank=dp_rank,
                model=of_models[id(model)],
                factors=tuple(
                    float(time_s) / planned_s
                    for time_s, planned_s in zip(
                        compute_s[:, step, dp_rank], model.durations_s(assignment), strict=True
                    )
                ),
            )
            for dp_rank, (model, assignment) in enumerate(models)
        )
        for step in range(min(num_steps, most_steps))
    )
    judged = [judged_at_once(step, _clocks(step)) for step in steps]
    return compared(highest_steps(steps), judged).saved_percent


def _clocks(step: Sequence[PipelineStep]) -> list[tuple[int, ...]]:
    own_s = [own_times(pipeline.model.retimed, pipeline.factors) for pipeline in step]
    deadline_s = max(itertools.chain(*own_s))
    return [retime(pipeline.model.retimed, pipeline.factors, (deadline_s,)) for pipeline in step]


def _step_model(model: PipelineModel) -> StepModel:
    points = {
        id(of_node): tuple(
            ClockPoint(point.frequency_mhz, point.time_s, point.energy_j) for point in of_node
        )
        for of_node in model.points
    }
    of_nodes = tuple(points[id(of_node)] for of_node in model.points)
    power_w = model.stage_blocking_power_w
    return StepModel(
        dag=model.dag,
        retimed=RetimedPipeline(dag=model.dag, points=of_nodes, waiting_power_w=power_w),
        points=of_nodes,
        power_w=power_w,
    )
