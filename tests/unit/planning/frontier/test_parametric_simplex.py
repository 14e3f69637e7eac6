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
    example_model,
    model_of,
    models,
    network_of,
    profile_of,
)

from flyball_server.planning.frontier import parametric_simplex
from flyball_server.planning.frontier.event_network import END, EventNetwork
from flyball_server.planning.frontier.highs_relaxation import HighsRelaxation
from flyball_server.planning.frontier.parametric_simplex import ParametricRelaxation
from flyball_server.planning.frontier.solver import DeadlineSolver
from flyball_server.planning.model.pipeline_model import PipelineModel

WITHIN = 1e-6  # of the optimum; the perturbation alone is a hundredth of it

# At 5 W of waiting they cost 10, 6 and 4 J beyond it: a second is worth 4 W at first, then 2 W.
CONVEX: Points = [(1400, 1.0, 15.0), (1200, 2.0, 16.0), (1000, 3.0, 19.0)]
SAVING: Points = [(1400, 1.0, 15.0), (1200, 2.0, 14.0), (1000, 3.0, 13.5)]


def primal_energy_j(network: EventNetwork, event_time_s: np.ndarray) -> float:
    """Cost of the windows of the event times, filled segment by segment from the steepest."""
    window_s = event_time_s[network.head] - event_time_s[network.tail] - network.min_window_s
    energy_j = network.energy_offset_j(float(event_time_s[1]))
    for arc, left_s in enumerate(window_s):
        parts_s = np.diff(np.minimum(max(0.0, left_s), np.cumsum([0.0, *network.length_s[arc]])))
        energy_j += float(network.slope_w[arc] @ parts_s)
    return energy_j


@pytest.mark.parametrize(
    ("points", "waiting_w", "deadline_s", "bound_j", "slope_w"),
    [
        # At 2 s both run fastest, at 15 J each. Every second more, up to 4 s, saves 4 J and costs
        # 5 J of waiting, so the iteration best ends at 2 s however late it may.
        *((CONVEX, 5.0, deadline_s, 30.0, 0.0) for deadline_s in (2.0, 3.0, 6.0, 60.0)),
        # Both at the fastest take 30 J; each second up to 4 s saves 1 J, up to 6 s half a joule.
        (SAVING, 1.0, 2.0, 30.0, None),
        (SAVING, 1.0, 2.5, 29.5, -1.0),
        (SAVING, 1.0, 3.5, 28.5, -1.0),
        (SAVING, 1.0, 4.5, 27.75, -0.5),
        (SAVING, 1.0, 7.0, 27.0, 0.0),
    ],
)
def test_bound_and_slope_of_a_forward_and_a_backward_in_series_are_as_on_paper(
    points: Points, waiting_w: float, deadline_s: float, bound_j: float, slope_w: float | None
) -> None:
    model = model_of(profile_of([{F: points, B: points}]), 1, "1f1b", [waiting_w])
    optimum = ParametricRelaxation(network_of(model)).solve(deadline_s)
    assert optimum.lower_bound_j == pytest.approx(bound_j, rel=WITHIN)
    if slope_w is not None:
        assert optimum.bound_slope_w == pytest.approx(slope_w, abs=1e-6)
    if points is CONVEX:
        assert optimum.event_time_s[END] == pytest.approx(2.0, rel=WITHIN)


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
    model = model_of(equal_profile(6), 20, "1f1b", [3.0])
    network, solver = network_of(model), DeadlineSolver(model)
    simplex, highs = ParametricRelaxation(network), HighsRelaxation(network)
    for deadline_s in np.linspace(solver.fastest_time_s, solver.slowest_time_s, 12):
        bound_j = simplex.solve(float(deadline_s)).lower_bound_j
        assert bound_j == pytest.approx(highs.solve(float(deadline_s)).lower_bound_j, rel=WITHIN)


def test_a_simplex_that_does_not_end_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    model = example_model(4)
    whole = DeadlineSolver(model)
    deadlines_s = [whole.fastest_time_s * factor for factor in (1.0, 1.05, 1.2)]
    expected_j = [whole.relax(deadline_s).lower_bound_j for deadline_s in deadlines_s]
    for pivots_per_corner in (0, 0.3):  # stuck at the least energy; stuck on the way to a deadline
        monkeypatch.setattr(parametric_simplex, "MAX_PIVOTS_PER_CORNER", pivots_per_corner)
        replaced = DeadlineSolver(model)
        bounds_j = [replaced.relax(deadline_s).lower_bound_j for deadline_s in deadlines_s]
        assert bounds_j == pytest.approx(expected_j, rel=1e-4)


def test_a_walk_there_and_back_gives_the_same_bounds() -> None:
    model = example_model(6)
    solver = DeadlineSolver(model)
    relaxation = ParametricRelaxation(network_of(model))
    deadlines_s = np.linspace(solver.fastest_time_s, solver.slowest_time_s, 9).tolist()
    there_j, back_j = (
        [relaxation.solve(deadline_s).lower_bound_j for deadline_s in order]
        for order in (deadlines_s, deadlines_s[::-1])
    )
    assert there_j == pytest.approx(back_j[::-1], rel=1e-9)
    assert all(later <= earlier for earlier, later in itertools.pairwise(there_j))
