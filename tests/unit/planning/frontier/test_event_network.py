"""Cost curves of instructions, the network of events, and the sources of a plan's saving."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.planning.tiny_pipelines import (
    B,
    F,
    Points,
    assigned_any_models,
    assigned_models,
    equal_profile,
    model_of,
    network_of,
    node_of,
    operating_points,
    profile_of,
    request_of,
)

from flyball_profiles.stage_profile import OperatingPoint, StageProfile
from flyball_server.planning.frontier.curves import CostCurve, CostPoint, cost_curve
from flyball_server.planning.frontier.event_network import (
    BEGIN,
    DEADLINE,
    END,
)
from flyball_server.planning.frontier.saving_sources import saving_sources
from flyball_server.planning.model.pipeline_model import PipelineModel
from flyball_server.planning.model.simulator import simulate
from flyball_server.planning.planner import make_plan
from flyball_wire.predictions import SavingSources

NAMED_EVENTS = 3  # BEGIN, DEADLINE, END


def test_in_1f1b_every_hand_over_is_one_event() -> None:
    """Stage 0 runs F0 F1 B0 B1, stage 1 F0 B0 F1 B1.

    Five hand-overs: after 0F0; 1F0; 0F1 and 1B0 (which 0B0 and 1F1 both wait for); 1F1; 0B0 and
    1B1.
    """
    model = model_of(equal_profile(2), 2)
    network = network_of(model)
    assert network.num_events == NAMED_EVENTS + 5
    assert len(network.tail) == 8 + 1  # no arc that only keeps order
    forward_1, backward_0 = node_of(model, 0, F, 1), node_of(model, 1, B, 0)
    assert network.head[forward_1] == network.head[backward_0]
    assert network.tail[node_of(model, 0, B, 0)] == network.head[forward_1]
    assert network.tail[node_of(model, 1, F, 1)] == network.head[forward_1]


@given(assigned_models())
def test_any_durations_take_as_long_in_the_network_as_in_the_simulator(
    assigned: tuple[PipelineModel, list[int]],
) -> None:
    model, assignment = assigned
    network = network_of(model)
    window_s = np.zeros(len(network.tail))
    window_s[: network.num_instructions] = model.durations_s(assignment)
    time_s = np.zeros(network.num_events)
    for _ in range(network.num_events):
        for arc, (tail, head) in enumerate(zip(network.tail, network.head, strict=True)):
            time_s[head] = max(time_s[head], time_s[tail] + window_s[arc])
    assert time_s[END] == simulate(model, assignment).iteration_time_s
    assert time_s[DEADLINE] == time_s[END]
    assert time_s[BEGIN] == 0


def curve_of(points: Points, blocking_power_w: float = 0.0) -> CostCurve:
    return cost_curve(
        [
            OperatingPoint(frequency_mhz=mhz, time_s=time_s, energy_j=energy_j)
            for mhz, time_s, energy_j in points
        ],
        blocking_power_w,
    )


def choices(points: tuple[CostPoint, ...]) -> list[int]:
    return [point.choice for point in points]


def test_of_equal_times_the_cheapest_and_of_equal_points_the_highest_clock_is_kept() -> None:
    curve = curve_of([(1410, 1.0, 30.0), (1300, 1.0, 20.0), (1200, 1.0, 20.0)])
    assert choices(curve.staircase) == choices(curve.hull) == [1]


def cost_on_hull_j(curve: CostCurve, time_s: float) -> float:
    for left, right in zip(curve.hull, curve.hull[1:], strict=False):
        if left.time_s <= time_s <= right.time_s:
            share = (time_s - left.time_s) / (right.time_s - left.time_s)
            return left.cost_j + share * (right.cost_j - left.cost_j)
    return curve.hull[-1].cost_j


@given(operating_points(), st.integers(0, 90))
def test_the_staircase_is_what_no_other_point_beats_and_the_hull_is_below_it(
    points: Points, blocking_power_w: int
) -> None:
    curve = curve_of(points, blocking_power_w)
    costs = [(time_s, energy_j - blocking_power_w * time_s) for _, time_s, energy_j in points]
    unbeaten = {
        (time_s, cost_j)
        for time_s, cost_j in costs
        if not any(
            other != (time_s, cost_j) and other[0] <= time_s and other[1] <= cost_j
            for other in costs
        )
    }
    assert {(point.time_s, point.cost_j) for point in curve.staircase} == unbeaten
    for point in curve.staircase:
        assert costs[point.choice] == (point.time_s, point.cost_j)
        assert cost_on_hull_j(curve, point.time_s) <= point.cost_j + 1e-9
    assert (curve.hull[0], curve.hull[-1]) == (curve.staircase[0], curve.staircase[-1])
    assert set(curve.hull) <= set(curve.staircase)
    slopes = [
        (right.cost_j - left.cost_j) / (right.time_s - left.time_s)
        for left, right in zip(curve.hull, curve.hull[1:], strict=False)
    ]
    assert slopes == sorted(set(slopes))
    assert all(slope < 0 for slope in slopes)


def sources_of(profile: StageProfile, num_microbatches: int, **options: object) -> SavingSources:
    solved = make_plan(request_of(profile, num_microbatches, **options))
    simulation = simulate(solved.model, solved.assignment)
    baseline = simulate(solved.model, solved.model.baseline())
    return saving_sources(solved.model, simulation, baseline)


def test_a_light_stage_saves_by_imbalance() -> None:
    """Stage 1 is busy for 8 s of 10 s; stage 0 for 4 s, and waits 3 s behind its second forward.

    That forward takes 2 s at 1000 MHz in place of 1 s: 8 J less, and 1 s less of waiting at 5 W.
    The first forward and both backwards are on the critical path.
    """
    light = {F: [(1410, 1.0, 20.0), (1000, 2.0, 12.0)], B: [(1410, 1.0, 20.0)]}
    heavy = {F: [(1410, 2.0, 40.0)], B: [(1410, 2.0, 40.0)]}
    assert sources_of(profile_of([light, heavy]), 2) == SavingSources(
        imbalance_j=13.0, bubbles_j=0.0, iteration_time_j=0.0
    )


def test_equal_stages_at_the_least_energy_save_by_time() -> None:
    """All instructions are 1.25 times as long, and so is the iteration: 9 s become 11.25 s.

    Energy 4 x (10 + 30) + 5 x (2 x 9 - 12) = 190 J becomes 4 x (8 + 20) + 5 x (2 x 11.25 - 15).
    """
    sources = sources_of(equal_profile(2), 2, target="least-energy")
    assert (sources.imbalance_j, sources.bubbles_j) == (0.0, 0.0)
    assert sources.iteration_time_j == pytest.approx(190 - 149.5)


@given(assigned_any_models())
def test_the_sources_are_the_whole_saving(assigned: tuple[PipelineModel, list[int]]) -> None:
    model, assignment = assigned
    baseline, plan = simulate(model, model.baseline()), simulate(model, assignment)
    sources = saving_sources(model, plan, baseline)
    assert sum(vars(sources).values()) == pytest.approx(
        baseline.energy_j - plan.energy_j, abs=1e-9 * baseline.energy_j
    )
    if plan.iteration_time_s <= baseline.iteration_time_s:
        waiting_j = sum(model.stage_blocking_power_w) * (
            baseline.iteration_time_s - plan.iteration_time_s
        )
        assert sources.iteration_time_j == pytest.approx(waiting_j)
