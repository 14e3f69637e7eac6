"""Where boxes and critical paths of the timeline's picture lie."""

from __future__ import annotations

from itertools import pairwise

from tests.unit.planning.tiny_pipelines import equal_profile

from flyball_server.cli.plots.timeline_plot import (
    ROW_HEIGHT,
    boxes_of,
    critical_lines,
)
from flyball_server.planning.documents.predicted_timeline import (
    PredictedTimeline,
    predicted_timeline,
)
from flyball_server.planning.documents.recorded_plan import (
    model_of_plan,
)
from flyball_server.planning.planner import PlanRequest, make_plan
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


def test_the_boxes_are_those_worked_out_by_hand() -> None:
    """Two stages, one microbatch: F 0-1 and 1-2, B 2-4 and 4-6 s, all at 1410 MHz."""
    boxes = list(boxes_of(timeline_of(2, 1)))
    shown = [(box.label, box.start_s, box.finish_s, box.clock_mhz) for box in boxes]
    assert shown == [("F0", 0, 1, 1410), ("B0", 4, 6, 1410), ("F0", 1, 2, 1410), ("B0", 2, 4, 1410)]
    assert [round(box.bottom - ROW_HEIGHT / 2) for box in boxes] == [0, 0, 1, 1]


def test_the_critical_path_is_framed_from_begin_to_end_without_a_gap() -> None:
    timeline = timeline_of(3, 4)
    lines = list(critical_lines(timeline))
    frames = sorted((line[0][0], line[1][0]) for line in lines if len(line) > 2)
    assert frames[0][0] == 0
    assert frames[-1][1] == timeline.simulation.whole.iteration_time_s
    assert all(before[1] == after[0] for before, after in pairwise(frames))
