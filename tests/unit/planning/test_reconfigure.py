"""Reconfiguration, move by move, on pipelines whose critical path is plain to see."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flyball_server.planning.errors import PlanningError
from flyball_server.planning.model.pipeline_model import PipelineModel
from flyball_server.planning.model.simulator import simulate
from flyball_server.planning.policies.reconfigure import RECONFIGURATIONS, reconfigure
from flyball_wire.plan_options import Reconfigure

from .oracles import event_driven_finish_s
from .tiny_pipelines import B, F, Points, assigned_models, model_of, node_of, profile_of

HUNDREDS: Points = [(mhz, 1000 / mhz, 1.0) for mhz in (500, 400, 300, 200, 100)]


def one_stage(points: Points = HUNDREDS, num_microbatches: int = 2) -> PipelineModel:
    """F0 B0 F1 B1 on one stage: everything is on the critical path."""
    return model_of(profile_of([{F: points, B: points}]), num_microbatches)


def one_move(
    model: PipelineModel, mhz: list[int], manner: Reconfigure, granularity_mhz: int
) -> list[int]:
    """The clocks of a one-stage pipeline after one move, from these."""
    clocks = [point.frequency_mhz for point in model.points[0]]
    assignment = [clocks.index(clock) for clock in mhz]
    path = simulate(model, assignment).critical_path
    assert list(path) == list(range(len(mhz)))
    RECONFIGURATIONS[manner](model, assignment, path, granularity_mhz)
    return [clocks[choice] for choice in assignment]


def test_greedy_raises_the_last_unit_below_the_highest_by_three_steps() -> None:
    model = one_stage()
    assert one_move(model, [100, 100, 100, 100], Reconfigure.GREEDY, 100) == [100, 100, 100, 400]
    assert one_move(model, [100, 100, 100, 400], Reconfigure.GREEDY, 100) == [100, 100, 100, 500]
    assert one_move(model, [100, 100, 200, 500], Reconfigure.GREEDY, 100) == [100, 100, 500, 500]


def test_balanced_raises_every_unit_with_the_lowest_clock_by_one_step() -> None:
    model = one_stage()
    assert one_move(model, [100, 200, 100, 500], Reconfigure.BALANCED, 100) == [200, 200, 200, 500]
    assert one_move(model, [200, 200, 200, 500], Reconfigure.BALANCED, 100) == [300, 300, 300, 500]
    assert one_move(model, [500, 400, 500, 500], Reconfigure.BALANCED, 100) == [500, 500, 500, 500]


def test_balanced_leaves_a_unit_one_small_step_above_the_lowest() -> None:
    """GPUs step by 15 MHz: what is that close to the lowest clock is not the lowest."""
    steps: Points = [(mhz, 1000 / mhz, 1.0) for mhz in (130, 115, 100)]
    assert one_move(one_stage(steps), [100, 115, 100, 130], Reconfigure.BALANCED, 15) == [
        115,
        115,
        115,
        130,
    ]


def test_balanced_looks_for_the_lowest_clock_among_units_that_can_be_raised() -> None:
    """Forward stops at 200 MHz: the lowest clock of the path, and no way up from it."""
    stage = {F: [(200, 1.0, 1.0), (100, 2.0, 1.0)], B: HUNDREDS}
    model = model_of(profile_of([stage]), 1)
    assignment = [0, 2]  # F0 at its highest, 200 MHz; B0 at 300 MHz
    assert RECONFIGURATIONS[Reconfigure.BALANCED](model, assignment, (0, 1), 100)
    assert assignment == [0, 1]


@pytest.mark.parametrize("manner", ["greedy", "balanced"])
def test_a_path_at_the_highest_clocks_ends_it(manner: Reconfigure) -> None:
    model = one_stage()
    assert not RECONFIGURATIONS[manner](model, [0, 0, 0, 0], (0, 1, 2, 3), 100)


GAPS: Points = [(mhz, 1.0, 1.0) for mhz in (1410, 1395, 1380, 1300, 1290, 1275)]


@pytest.mark.parametrize(
    ("from_mhz", "to_mhz"),
    [(1275, 1380), (1290, 1380), (1300, 1380), (1380, 1410), (1395, 1410), (1410, 1410)],
)
def test_a_step_goes_to_the_first_profiled_clock_at_least_a_granularity_higher(
    from_mhz: int, to_mhz: int
) -> None:
    assert one_move(one_stage(GAPS, 1), [from_mhz, 1410], Reconfigure.BALANCED, 30) == [
        to_mhz,
        1410,
    ]


def test_three_greedy_steps_are_three_times_that_rule() -> None:
    """1275 -> 1290 -> 1300 -> 1380 at 10 MHz, though 1275 + 3 * 10 is 1305."""
    assert one_move(one_stage(GAPS, 1), [1410, 1275], Reconfigure.GREEDY, 10) == [1410, 1380]


def test_default_raises_nothing() -> None:
    model = one_stage()
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
    """Two stages, two microbatches; F1 and B0 of stage 0 start at their lower clock.

    Forward 1 s at 200 MHz and 2 s at 100, backward 2 s at 200 MHz. Stage 0: F0 0-1, F1 1-3,
    B0 from 4 (stage 1 ends its B0 then), B1 from 7; stage 1: F0 1-2, B0 2-4, F1 4-5, B1 5-7.
    """
    stage = {
        F: [(200, 1.0, 10.0), (100, 2.0, 5.0)],
        B: [(200, 2.0, 10.0), (100, slow_backward_s, 5.0)],
    }
    model = model_of(profile_of([stage, stage]), 2)
    start = model.baseline()
    f1, b0 = node_of(model, 0, F, 1), node_of(model, 0, B, 0)
    start[f1] = start[b0] = 1
    result = reconfigure(model, start, manner, 30)
    assert model.points[b0][result[b0]].frequency_mhz == final_mhz
    assert model.points[f1][result[f1]].frequency_mhz == 100
    assert simulate(model, result).iteration_time_s == 9
    assert start[b0] == 1, "what it was given must stay as it is"


@pytest.mark.parametrize("manner", sorted(RECONFIGURATIONS))
@pytest.mark.parametrize("granularity_mhz", [0, -30])
def test_a_step_of_nothing_is_refused_rather_than_taken_for_ever(
    manner: Reconfigure, granularity_mhz: int
) -> None:
    with pytest.raises(PlanningError, match="must be at least 1 MHz") as error:
        reconfigure(one_stage(), [4, 4, 4, 4], manner, granularity_mhz)
    assert error.value.field == "reconfigure_granularity_mhz"


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


@given(assigned_models(), st.sampled_from(["greedy", "balanced"]))
def test_a_pipeline_already_reconfigured_stays_as_it_is(
    assigned: tuple[PipelineModel, list[int]], manner: Reconfigure
) -> None:
    model, start = assigned
    once = reconfigure(model, start, manner, 30)
    assert reconfigure(model, once, manner, 30) == once
