"""Reconfiguration, move by move, on pipelines whose critical path is plain to see."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flyball_server.planning.model.pipeline_model import PipelineModel
from flyball_server.planning.model.simulator import simulate
from flyball_server.planning.policies.reconfigure import RECONFIGURATIONS, reconfigure
from flyball_wire.plan_options import Reconfigure

from .oracles import event_driven_finish_s
from .tiny_pipelines import (
    B,
    F,
    Points,
    assigned_models,
    model_of,
    node_of,
    profile_of,
    refuses,
    two_by_two,
)

HUNDREDS: Points = [(mhz, 1000 / mhz, 1.0) for mhz in (500, 400, 300, 200, 100)]


GPU_STEPS: Points = [(mhz, 1000 / mhz, 1.0) for mhz in (130, 115, 100)]
GAPS: Points = [(mhz, 1.0, 1.0) for mhz in (1410, 1395, 1380, 1300, 1290, 1275)]
GREEDY, BALANCED = Reconfigure.GREEDY, Reconfigure.BALANCED


@pytest.mark.parametrize(
    ("manner", "points", "granularity_mhz", "before_mhz", "after_mhz"),
    [
        # Greedy: the last unit below the highest clock, three steps.
        (GREEDY, HUNDREDS, 100, (100, 100, 100, 100), (100, 100, 100, 400)),
        (GREEDY, HUNDREDS, 100, (100, 100, 100, 400), (100, 100, 100, 500)),
        (GREEDY, HUNDREDS, 100, (100, 100, 200, 500), (100, 100, 500, 500)),
        (GREEDY, HUNDREDS, 100, (500, 500, 500, 500), None),
        # Balanced: every unit with the lowest clock, one step.
        (BALANCED, HUNDREDS, 100, (100, 200, 100, 500), (200, 200, 200, 500)),
        (BALANCED, HUNDREDS, 100, (500, 400, 500, 500), (500, 500, 500, 500)),
        (BALANCED, HUNDREDS, 100, (500, 500, 500, 500), None),
        # 115 MHz, one small step of a GPU above the lowest clock, is not the lowest.
        (BALANCED, GPU_STEPS, 15, (100, 115, 100, 130), (115, 115, 115, 130)),
        # A step goes to the first profiled clock at least a granularity higher.
        *(
            (BALANCED, GAPS, 30, (before, 1410), (after, 1410))
            for before, after in ((1275, 1380), (1290, 1380), (1300, 1380), (1380, 1410))
        ),
        (BALANCED, GAPS, 30, (1395, 1410), (1410, 1410)),
        # 1275 -> 1290 -> 1300 -> 1380 at 10 MHz, though 1275 + 3 * 10 is 1305.
        (GREEDY, GAPS, 10, (1410, 1275), (1410, 1380)),
    ],
)
def test_one_move_on_a_stage_that_is_all_critical(
    manner: Reconfigure,
    points: Points,
    granularity_mhz: int,
    before_mhz: tuple[int, ...],
    after_mhz: tuple[int, ...] | None,
) -> None:
    """F0 B0 F1 B1 on one stage; no clocks after: nothing can be raised."""
    model = model_of(profile_of([{F: points, B: points}]), len(before_mhz) // 2)
    clocks = [point.frequency_mhz for point in model.points[0]]
    assignment = [clocks.index(clock) for clock in before_mhz]
    path = simulate(model, assignment).critical_path
    is_raised = RECONFIGURATIONS[manner](model, assignment, path, granularity_mhz)
    assert is_raised == (after_mhz is not None)
    assert tuple(clocks[choice] for choice in assignment) == (after_mhz or before_mhz)


def test_balanced_looks_for_the_lowest_clock_among_units_that_can_be_raised() -> None:
    """Forward stops at 200 MHz: the lowest clock of the path, and no way up from it."""
    stage = {F: [(200, 1.0, 1.0), (100, 2.0, 1.0)], B: HUNDREDS}
    model = model_of(profile_of([stage]), 1)
    assignment = [0, 2]  # F0 at its highest, 200 MHz; B0 at 300 MHz
    assert RECONFIGURATIONS[Reconfigure.BALANCED](model, assignment, (0, 1), 100)
    assert assignment == [0, 1]


def test_default_raises_nothing() -> None:
    model = model_of(profile_of([{F: HUNDREDS, B: HUNDREDS}]), 2)
    assert reconfigure(model, [4, 3, 2, 1], Reconfigure.DEFAULT, 30) == [4, 3, 2, 1]


@pytest.mark.parametrize(
    ("slow_backward_s", "final_mhz"),
    [
        # B0 ends at 7 s, when B1's input arrives too: it is on the path, and raised.
        (3.0, 200),
        # B0 ends at 6.5 s: B1 waits for its input, the path is the envelope, B0 stays slow.
        (2.5, 100),
    ],
)
@pytest.mark.parametrize("manner", ["greedy", "balanced"])
def test_only_what_delays_the_iteration_is_raised(
    manner: Reconfigure, slow_backward_s: float, final_mhz: int
) -> None:
    model, start = two_by_two(slow_backward_s)
    f1, b0 = node_of(model, 0, F, 1), node_of(model, 0, B, 0)
    result = reconfigure(model, start, manner, 30)
    assert model.points[b0][result[b0]].frequency_mhz == final_mhz
    assert model.points[f1][result[f1]].frequency_mhz == 100
    assert simulate(model, result).iteration_time_s == 9
    assert start[b0] == 1, "what it was given must stay as it is"


@pytest.mark.parametrize("manner", sorted(RECONFIGURATIONS))
def test_a_step_of_nothing_is_refused_rather_than_taken_for_ever(
    manner: Reconfigure,
) -> None:
    model, start = two_by_two(3.0)
    with refuses("reconfigure_granularity_mhz", "must be at least 1 MHz"):
        reconfigure(model, start, manner, 0)


@given(
    assigned_models(), st.sampled_from(["greedy", "balanced"]), st.sampled_from([1, 15, 30, 5000])
)
def test_it_ends_no_slower_than_baseline_with_a_critical_path_at_the_highest_clocks(
    assigned: tuple[PipelineModel, list[int]], manner: Reconfigure, granularity_mhz: int
) -> None:
    model, start = assigned
    result = reconfigure(model, start, manner, granularity_mhz)
    assert all(choice <= before for choice, before in zip(result, start, strict=True))
    assert all(result[node] == 0 for node in simulate(model, result).critical_path)
    time_s, baseline_s = (
        max(event_driven_finish_s(model.schedule, model.durations_s(assignment)))
        for assignment in (result, model.baseline())
    )
    assert time_s <= baseline_s
