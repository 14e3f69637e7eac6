"""The parametric simplex: bases it must pass through exactly, ties, and what it does when stuck."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.planning.tiny_pipelines import (
    B,
    F,
    Points,
    equal_profile,
    model_of,
    models,
    profile_of,
)

from flyball_profiles.examples import load_example_profile
from flyball_server.planning.frontier import parametric_simplex
from flyball_server.planning.frontier.curves import model_curves
from flyball_server.planning.frontier.event_network import END, EventNetwork, build_network
from flyball_server.planning.frontier.highs_relaxation import HighsRelaxation
from flyball_server.planning.frontier.parametric_simplex import ParametricRelaxation
from flyball_server.planning.frontier.solver import DeadlineSolver
from flyball_server.planning.model.pipeline_model import PipelineModel

WITHIN = 1e-6  # of the optimum; the perturbation alone is a hundredth of it

# At 5 W of waiting they cost 10, 6 and 4 J beyond it: a second is worth 4 W at first, then 2 W.
CONVEX: Points = [(1400, 1.0, 15.0), (1200, 2.0, 16.0), (1000, 3.0, 19.0)]


def network_of(model: PipelineModel) -> EventNetwork:
    return build_network(model, model_curves(model))


def one_stage() -> PipelineModel:
    """A forward and a backward in series, each with `CONVEX`; waiting costs 5 W."""
    return model_of(profile_of([{F: CONVEX, B: CONVEX}]), 1, "1f1b", [5.0])


def primal_energy_j(network: EventNetwork, event_time_s: np.ndarray) -> float:
    """What the windows of the event times cost, filled segment by segment from the steepest."""
    window_s = event_time_s[network.head] - event_time_s[network.tail] - network.min_window_s
    energy_j = network.energy_offset_j(float(event_time_s[1]))
    for arc, left_s in enumerate(window_s):
        parts_s = np.diff(np.minimum(max(0.0, left_s), np.cumsum([0.0, *network.length_s[arc]])))
        energy_j += float(network.slope_w[arc] @ parts_s)
    return energy_j


@pytest.mark.parametrize(
    ("deadline_s", "bound_j"),
    # At 2 s both run fastest, at 15 J each. Every second more, up to 4 s, saves 4 J and costs 5 J
    # of waiting, so the iteration best ends at 2 s however late it may.
    [(2.0, 30.0), (3.0, 30.0), (6.0, 30.0), (60.0, 30.0)],
)
def test_waiting_that_costs_more_than_slower_clocks_save_ends_the_iteration_early(
    deadline_s: float, bound_j: float
) -> None:
    optimum = ParametricRelaxation(network_of(one_stage())).solve(deadline_s)
    assert optimum.lower_bound_j == pytest.approx(bound_j, rel=WITHIN)
    assert optimum.event_time_s[END] == pytest.approx(2.0, rel=WITHIN)
    assert optimum.bound_slope_w == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize(
    ("deadline_s", "bound_j", "slope_w"),
    # Both at the fastest take 30 J; each second up to 4 s saves 1 J, up to 6 s half a joule.
    [(2.0, 30.0, None), (2.5, 29.5, -1.0), (3.5, 28.5, -1.0), (4.5, 27.75, -0.5), (7.0, 27.0, 0.0)],
)
def test_the_bound_bends_at_the_corners_of_the_hulls(
    deadline_s: float, bound_j: float, slope_w: float | None
) -> None:
    points: Points = [(1400, 1.0, 15.0), (1200, 2.0, 14.0), (1000, 3.0, 13.5)]
    model = model_of(profile_of([{F: points, B: points}]), 1, "1f1b", [1.0])
    optimum = ParametricRelaxation(network_of(model)).solve(deadline_s)
    assert optimum.lower_bound_j == pytest.approx(bound_j, rel=WITHIN)
    if slope_w is not None:
        assert optimum.bound_slope_w == pytest.approx(slope_w, abs=1e-6)


@settings(max_examples=100)
@given(
    model=models(max_stages=4, max_microbatches=4),
    shares=st.lists(st.floats(0.0, 1.1), min_size=1, max_size=6),
)
def test_any_order_of_deadlines_ends_at_times_that_cost_what_the_bound_says(
    model: PipelineModel, shares: list[float]
) -> None:
    network = network_of(model)
    solver = DeadlineSolver(model)
    relaxation = ParametricRelaxation(network)
    for share in shares:
        deadline_s = solver.fastest_time_s + share * (solver.slowest_time_s - solver.fastest_time_s)
        optimum = relaxation.solve(deadline_s)
        energy_j = primal_energy_j(network, optimum.event_time_s)
        assert energy_j == pytest.approx(optimum.lower_bound_j, rel=WITHIN)


def test_equal_stages_with_all_their_ties_give_the_bound_of_a_general_solver() -> None:
    network = network_of(model_of(equal_profile(6), 20, "1f1b", [3.0]))
    simplex, highs = ParametricRelaxation(network), HighsRelaxation(network)
    solver = DeadlineSolver(model_of(equal_profile(6), 20, "1f1b", [3.0]))
    for deadline_s in np.linspace(solver.fastest_time_s, solver.slowest_time_s, 12):
        bound_j = simplex.solve(float(deadline_s)).lower_bound_j
        assert bound_j == pytest.approx(highs.solve(float(deadline_s)).lower_bound_j, rel=WITHIN)


def test_windows_at_a_measured_clock_are_long_enough_for_it() -> None:
    model = model_of(load_example_profile().select_stages((0, 1, 7)), 8, "1f1b", [83.64])
    network = network_of(model)
    solver = DeadlineSolver(model)
    optimum = ParametricRelaxation(network).solve(1.05 * solver.fastest_time_s)
    window_s = (optimum.event_time_s[network.head] - optimum.event_time_s[network.tail])[
        : network.num_instructions
    ]
    corners_s = network.min_window_s[:, None] + np.cumsum(
        np.column_stack([np.zeros(len(network.tail)), network.length_s[:, :-1]]), axis=1
    )
    apart_s = np.abs(window_s[:, None] - corners_s[: network.num_instructions]).min(axis=1)
    # A basis has an arc at a corner for each event but BEGIN, END and DEADLINE.
    num_at_corner = int((apart_s < 1e-12).sum())
    assert num_at_corner >= network.num_events - 3 - (len(network.tail) - 1 - len(window_s))


def test_a_simplex_that_does_not_end_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of(load_example_profile().select_stages((0, 1, 7)), 4, "1f1b", [83.64])
    whole = DeadlineSolver(model)
    deadlines_s = [whole.fastest_time_s * factor for factor in (1.0, 1.05, 1.2)]
    expected_j = [whole.relax(deadline_s).lower_bound_j for deadline_s in deadlines_s]
    for pivots_per_corner in (0, 0.3):  # stuck at the least energy; stuck on the way to a deadline
        monkeypatch.setattr(parametric_simplex, "MAX_PIVOTS_PER_CORNER", pivots_per_corner)
        replaced = DeadlineSolver(model)
        bounds_j = [replaced.relax(deadline_s).lower_bound_j for deadline_s in deadlines_s]
        assert bounds_j == pytest.approx(expected_j, rel=1e-4)


def test_a_walk_there_and_back_gives_the_same_bounds() -> None:
    model = model_of(load_example_profile().select_stages((0, 1, 7)), 6, "1f1b", [83.64])
    solver = DeadlineSolver(model)
    relaxation = ParametricRelaxation(network_of(model))
    deadlines_s = np.linspace(solver.fastest_time_s, solver.slowest_time_s, 9).tolist()
    there_j, back_j = (
        [relaxation.solve(deadline_s).lower_bound_j for deadline_s in order]
        for order in (deadlines_s, deadlines_s[::-1])
    )
    assert there_j == pytest.approx(back_j[::-1], rel=1e-9)
    assert all(later <= earlier for earlier, later in itertools.pairwise(there_j))
