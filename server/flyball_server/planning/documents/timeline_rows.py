"""A predicted iteration row by row: of each stage what runs when, at which clock, for how much.

Of a pipeline that never flushes it is one period of each stage, from its own begin: the DAG has
one node for all microbatches of a kind there, which are told apart again.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from flyball_server.planning.documents.predicted_timeline import PredictedTimeline
from flyball_server.planning.model.pipeline_model import Assignment, PipelineModel
from flyball_server.planning.model.simulator import Simulation
from flyball_server.planning.schedules._base import Instruction


@dataclass(frozen=True, kw_only=True)
class TimelineRow:
    """The instructions of one stage in the order of execution; all lists as long.

    Attributes:
        dp_rank: of data-parallel pipelines with clocks of their own, the lowest that the row
            stands for; else 0.
        blocking_power_w: of all its ranks together while they wait, W.
        start_s, duration_s: s from the iteration's begin.
        energy_j: of all its ranks while it runs, J.
        float_s: by how much it could end later without a longer iteration, s.
    """

    stage: int
    dp_rank: int
    blocking_power_w: float
    instructions: tuple[Instruction, ...]
    clock_mhz: tuple[int, ...]
    start_s: tuple[float, ...]
    duration_s: tuple[float, ...]
    energy_j: tuple[float, ...]
    float_s: tuple[float, ...]


def timeline_rows(timeline: PredictedTimeline, dp_ranks: Sequence[int]) -> tuple[TimelineRow, ...]:
    """All rows, pipeline after pipeline, stage after stage.

    Args:
        timeline: of one pipeline or several.
        dp_ranks: of each pipeline, the lowest that it stands for.
    """
    whole = timeline.simulation.whole
    rows: list[TimelineRow] = []
    first_node = 0
    for dp_rank, model, assignment in zip(
        dp_ranks, timeline.models, timeline.assignments, strict=True
    ):
        of_stage = _periods if model.schedule.is_periodic else _stages
        rows += of_stage(model, assignment, whole, first_node, dp_rank)
        first_node += model.dag.num_nodes
    return tuple(rows)


def critical_places(timeline: PredictedTimeline) -> tuple[tuple[int, int], ...]:
    """Row and position in it of each instruction on a longest path, in the order of time.

    Of several pipelines one path each, one after the other.
    """
    places: list[tuple[int, int]] = []
    first_row = 0
    for model, simulation in zip(timeline.models, timeline.simulation.pipelines, strict=True):
        if model.schedule.is_periodic:
            places += _period_places(model, simulation, first_row)
        else:
            first_of = _first_nodes(model)
            places += (
                (first_row + model.dag.stage[node], node - first_of[model.dag.stage[node]])
                for node in simulation.critical_path
            )
        first_row += model.schedule.num_stages
    return tuple(places)


def _first_nodes(model: PipelineModel) -> list[int]:
    """Of each stage; nodes are numbered stage after stage."""
    first_of = [0] * model.schedule.num_stages
    for node in reversed(range(model.dag.num_nodes)):
        first_of[model.dag.stage[node]] = node
    return first_of


def _stages(
    model: PipelineModel, assignment: Assignment, whole: Simulation, first_node: int, dp_rank: int
) -> Iterator[TimelineRow]:
    power_w = model.stage_blocking_power_w
    for stage, of_stage in itertools.groupby(
        range(model.dag.num_nodes), key=model.dag.stage.__getitem__
    ):
        nodes = list(of_stage)
        points = [model.points[node][assignment[node]] for node in nodes]
        in_whole = slice(first_node + nodes[0], first_node + nodes[-1] + 1)
        yield TimelineRow(
            stage=stage,
            dp_rank=dp_rank,
            blocking_power_w=power_w[stage],
            instructions=tuple(model.dag.instruction[node] for node in nodes),
            clock_mhz=tuple(point.frequency_mhz for point in points),
            start_s=whole.start_s[in_whole],
            duration_s=tuple(point.time_s for point in points),
            energy_j=tuple(point.energy_j for point in points),
            float_s=whole.float_s[in_whole],
        )


def _periods(
    model: PipelineModel, assignment: Assignment, whole: Simulation, first_node: int, dp_rank: int
) -> Iterator[TimelineRow]:
    """Each stage runs its instructions one after the other; all have the stage's float."""
    schedule = model.schedule
    node_of = {
        (stage, instruction): node
        for node, (stage, instruction) in enumerate(
            zip(model.dag.stage, model.dag.instruction, strict=True)
        )
    }
    power_w = model.stage_blocking_power_w
    for stage, instructions in enumerate(schedule.stages):
        nodes = [node_of[stage, schedule.node_of(instruction)] for instruction in instructions]
        points = [model.points[node][assignment[node]] for node in nodes]
        durations_s = [point.time_s / schedule.num_microbatches for point in points]
        yield TimelineRow(
            stage=stage,
            dp_rank=dp_rank,
            blocking_power_w=power_w[stage],
            instructions=instructions,
            clock_mhz=tuple(point.frequency_mhz for point in points),
            start_s=(0.0, *itertools.accumulate(durations_s[:-1])),
            duration_s=tuple(durations_s),
            energy_j=tuple(point.energy_j / schedule.num_microbatches for point in points),
            float_s=(whole.float_s[first_node + nodes[0]],) * len(nodes),
        )


def _period_places(
    model: PipelineModel, simulation: Simulation, first_row: int
) -> Iterator[tuple[int, int]]:
    """All of the slowest stage."""
    stage = model.dag.stage[simulation.critical_path[-1]]
    for position in range(len(model.schedule.stages[stage])):
        yield first_row + stage, position
