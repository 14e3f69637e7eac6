"""Where the timeline's boxes and critical paths lie in a picture; no drawing.

Across is time in s, downwards rows: row r, a stage, is around r on the vertical axis.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby, pairwise

from flyball_profiles.stage_profile import InstructionKind
from flyball_server.cli.timeline import instruction_label
from flyball_server.planning.documents.predicted_timeline import PredictedTimeline
from flyball_server.planning.model.pipeline_model import Assignment, PipelineModel
from flyball_server.planning.model.simulator import Simulation

Point = tuple[float, float]

ROW_HEIGHT = 0.86  # of the distance between two rows
_CHUNK_SHIFT = 0.2  # of the row's height, from the first chunk to the last


@dataclass(frozen=True, kw_only=True)
class Look:
    """What tells a kind without colour: its share of the row's height, hatching, and in words."""

    height: float
    hatch: str
    words: str


LOOKS = {
    InstructionKind.FORWARD: Look(height=0.7, hatch="", words="lower"),
    InstructionKind.BACKWARD: Look(height=1.0, hatch="", words="full height"),
    InstructionKind.BACKWARD_INPUT: Look(height=1.0, hatch="////", words="full height"),
    InstructionKind.BACKWARD_WEIGHT: Look(height=0.7, hatch="\\\\\\\\", words="lower"),
    InstructionKind.RECOMPUTE: Look(height=0.45, hatch="", words="lowest"),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Box:
    """An instruction in the picture; `bottom` and `height` in rows."""

    start_s: float
    finish_s: float
    bottom: float
    height: float
    clock_mhz: int
    kind: InstructionKind
    label: str


def row_names(timeline: PredictedTimeline) -> list[str]:
    """The stages, pipeline after pipeline."""
    return [
        f"dp {dp_rank}, stage {stage}" if timeline.is_data_parallel else f"stage {stage}"
        for dp_rank, model in enumerate(timeline.models)
        for stage in range(model.schedule.num_stages)
    ]


def num_chunks(timeline: PredictedTimeline) -> int:
    """The most model chunks of a stage."""
    return 1 + max(item.chunk for model in timeline.models for item in model.dag.instruction)


def boxes_of(timeline: PredictedTimeline) -> Iterator[Box]:
    """A box an instruction; where there are chunks, later ones sit higher."""
    chunks = num_chunks(timeline)
    shift = ROW_HEIGHT * _CHUNK_SHIFT / (chunks - 1) if chunks > 1 else 0.0
    tallest = ROW_HEIGHT * (1 - _CHUNK_SHIFT) if chunks > 1 else ROW_HEIGHT
    for first_row, model, assignment, simulation in _pipelines(timeline):
        for node, choice in enumerate(assignment):
            instruction = model.dag.instruction[node]
            row = first_row + model.dag.stage[node]
            yield Box(
                start_s=simulation.start_s[node],
                finish_s=simulation.finish_s[node],
                bottom=row + ROW_HEIGHT / 2 - instruction.chunk * shift,
                height=tallest * LOOKS[instruction.kind].height,
                clock_mhz=model.points[node][choice].frequency_mhz,
                kind=instruction.kind,
                label=instruction_label(instruction),
            )


def critical_lines(timeline: PredictedTimeline) -> Iterator[list[Point]]:
    """Each pipeline's path: a frame around what runs on end, a line from stage to stage."""
    for first_row, model, _, simulation in _pipelines(timeline):
        by_stage = groupby(simulation.critical_path, key=model.dag.stage.__getitem__)
        runs = [(first_row + stage, list(nodes)) for stage, nodes in by_stage]
        for row, nodes in runs:
            left, right = simulation.start_s[nodes[0]], simulation.finish_s[nodes[-1]]
            top, bottom = row - ROW_HEIGHT / 2, row + ROW_HEIGHT / 2
            corners = [(left, bottom), (right, bottom), (right, top), (left, top)]
            yield [*corners, *corners[:2]]
        for (row, nodes), (next_row, _) in pairwise(runs):
            time_s = simulation.finish_s[nodes[-1]]
            yield [(time_s, row), (time_s, next_row)]


def _pipelines(
    timeline: PredictedTimeline,
) -> Iterator[tuple[int, PipelineModel, Assignment, Simulation]]:
    """Each pipeline with the row of its first stage."""
    first_row = 0
    for model, assignment, simulation in zip(
        timeline.models, timeline.assignments, timeline.simulation.pipelines, strict=True
    ):
        yield first_row, model, assignment, simulation
        first_row += model.schedule.num_stages
