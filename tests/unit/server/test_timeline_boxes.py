"""Where boxes and critical paths of the timeline's picture lie."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from tests.unit.planning.tiny_pipelines import equal_profile

from flyball_server.cli.plots.timeline_plot import (
    ROW_HEIGHT,
    boxes_of,
    critical_lines,
    row_names,
)
from flyball_server.planning.documents.predicted_timeline import (
    PredictedTimeline,
    predicted_timeline,
)
from flyball_server.planning.documents.recorded_plan import (
    model_of_plan,
    models_of_data_parallel_plan,
)
from flyball_server.planning.model.data_parallel import DataParallelRequest, make_data_parallel_plan
from flyball_server.planning.planner import PlanRequest, make_plan
from flyball_server.planning.schedules._base import Instruction
from flyball_wire.plan_options import PlanOptions, Policy


def request_of(num_stages: int, num_microbatches: int) -> PlanRequest:
    return PlanRequest(
        profile=equal_profile(num_stages),
        num_microbatches=num_microbatches,
        options=PlanOptions(blocking_power_w=(5.0,), policy=Policy.ENVELOPE),
    )


def timeline_of(num_stages: int, num_microbatches: int) -> PredictedTimeline:
    request = request_of(num_stages, num_microbatches)
    plan = make_plan(request).plan
    return predicted_timeline(plan, [model_of_plan(request.profile, plan)])


def two_pipelines() -> PredictedTimeline:
    request = request_of(2, 2)
    plan = make_data_parallel_plan(DataParallelRequest(pipelines=(request, request))).plan
    return predicted_timeline(plan, models_of_data_parallel_plan([request.profile] * 2, plan))


def in_chunks(timeline: PredictedTimeline) -> PredictedTimeline:
    """A timeline whose microbatch m is shown as microbatch 0 of chunk m."""
    (model,) = timeline.models
    instructions = tuple(
        Instruction(item.kind, 0, item.microbatch) for item in model.dag.instruction
    )
    chunked = replace(model, dag=replace(model.dag, instruction=instructions))
    return replace(timeline, models=(chunked,))


def test_the_boxes_are_those_worked_out_by_hand() -> None:
    """Two stages, one microbatch: F 0-1 and 1-2, B 2-4 and 4-6 s, all at 1410 MHz."""
    boxes = list(boxes_of(timeline_of(2, 1)))
    shown = [(box.label, box.start_s, box.finish_s, box.clock_mhz) for box in boxes]
    assert shown == [("F0", 0, 1, 1410), ("B0", 4, 6, 1410), ("F0", 1, 2, 1410), ("B0", 2, 4, 1410)]
    assert [round(box.bottom - ROW_HEIGHT / 2) for box in boxes] == [0, 0, 1, 1]


def test_every_box_stays_within_its_row() -> None:
    for timeline in (timeline_of(3, 4), in_chunks(timeline_of(1, 3))):
        stages = timeline.models[0].dag.stage
        for box, stage in zip(boxes_of(timeline), stages, strict=True):
            assert box.bottom <= stage + ROW_HEIGHT / 2 + 1e-12
            assert box.bottom - box.height >= stage - ROW_HEIGHT / 2 - 1e-12
            assert box.height > 0


def test_data_parallel_pipelines_have_rows_of_their_own() -> None:
    timeline = two_pipelines()
    assert row_names(timeline) == [
        "dp 0, stage 0", "dp 0, stage 1", "dp 1, stage 0", "dp 1, stage 1",
    ]  # fmt: skip
    rows = {round(box.bottom - ROW_HEIGHT / 2) for box in boxes_of(timeline)}
    assert rows == {0, 1, 2, 3}


def test_the_critical_path_is_framed_from_begin_to_end_without_a_gap() -> None:
    timeline = timeline_of(3, 4)
    lines = list(critical_lines(timeline))
    frames = sorted((line[0][0], line[1][0]) for line in lines if len(line) > 2)
    assert frames[0][0] == 0
    assert frames[-1][1] == timeline.simulation.whole.iteration_time_s
    assert all(before[1] == after[0] for before, after in pairwise(frames))
