"""The whole frontier, and the interior point between solved deadlines."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.planning.oracles import plain_program_bound_j
from tests.unit.planning.tiny_pipelines import (
    equal_profile,
    example_model,
    model_of,
    models,
    network_of,
)

from flyball_server.planning import frontier_curve
from flyball_server.planning.frontier import interior_point
from flyball_server.planning.frontier import solver as solver_module
from flyball_server.planning.frontier.event_network import END
from flyball_server.planning.frontier.highs_relaxation import HighsRelaxation
from flyball_server.planning.frontier.interior_point import (
    InteriorPointRelaxation,
    Iterate,
)
from flyball_server.planning.frontier.relaxation import RelaxedOptimum
from flyball_server.planning.frontier.solver import DeadlinePlan, DeadlineSolver
from flyball_server.planning.frontier_curve import sweep_frontier
from flyball_server.planning.model.pipeline_model import PipelineModel

pytestmark = pytest.mark.slow


def assert_is_frontier(plans: list[DeadlinePlan]) -> None:
    for faster, slower in pairwise(plans):
        assert faster.iteration_time_s < slower.iteration_time_s
        assert faster.energy_j > slower.energy_j
    for plan in plans:
        assert plan.iteration_time_s <= plan.relaxed.deadline_s
        assert plan.energy_j >= plan.lower_bound_j * (1 - 1e-9)


@settings(max_examples=6)
@given(model=models(max_stages=3, max_microbatches=3))
def test_no_plan_of_a_frontier_is_beaten_by_another_nor_below_its_bound(
    model: PipelineModel,
) -> None:
    assert_is_frontier(sweep_frontier(DeadlineSolver(model), 6, 200))


@pytest.mark.parametrize("num_points", [2, 40])
def test_as_many_plans_come_as_were_asked_for(num_points: int) -> None:
    model = example_model(4)
    told: list[int] = []
    solver = DeadlineSolver(model)
    plans = sweep_frontier(solver, num_points, 100, told.append)
    assert len(plans) >= num_points
    assert_is_frontier(plans)
    assert plans[0].iteration_time_s == pytest.approx(solver.fastest_time_s)
    assert told == sorted(told)
    assert told[-1] >= num_points
    if num_points == 40:
        middle_s = (plans[0].relaxed.deadline_s + plans[-1].relaxed.deadline_s) / 2
        early = sum(plan.relaxed.deadline_s < middle_s for plan in plans)
        assert early > 0.55 * len(plans)  # convex: it bends at the fast end, and needs more there


def test_a_profile_with_few_plans_gives_those_and_ends() -> None:
    model = model_of(equal_profile(1), 1, "1f1b", [5.0])
    plans = sweep_frontier(DeadlineSolver(model), 50, 200)
    # forward and backward, each at one of two clocks: 3, 3.25, 3.5 and 3.75 s.
    assert [plan.iteration_time_s for plan in plans] == [3.0, 3.25, 3.5, 3.75]


# ------------------------------------------------------------------ warm start


WITHIN = 1e-4  # of the optimum, by a relaxation's contract
ROUNDING = 1e-9  # of the textbook program's solver


class Counted(InteriorPointRelaxation):
    """Counts its steps."""

    num_steps = 0

    def _next(self, point: Iterate, window_error_s: np.ndarray) -> Iterate:
        self.num_steps += 1
        return super()._next(point, window_error_s)

    def steps_for(self, deadline_s: float) -> int:
        """Return how many it takes."""
        before = self.num_steps
        self.solve(deadline_s)
        return self.num_steps - before


def deadlines_of(model: PipelineModel, shares: list[float]) -> list[float]:
    """So far from the fastest to the slowest iteration that is of any use."""
    solver = DeadlineSolver(model)
    span_s = solver.slowest_time_s - solver.fastest_time_s or solver.fastest_time_s
    return [solver.fastest_time_s + share * span_s for share in shares]


@settings(max_examples=12)
@given(
    model=models(max_stages=3, max_microbatches=3),
    shares=st.lists(st.floats(0, 1.5), min_size=3, max_size=8),
)
def test_whatever_was_solved_before_a_bound_is_near_the_optimum_and_never_above(
    model: PipelineModel, shares: list[float]
) -> None:
    network = network_of(model)
    warm, simplex = InteriorPointRelaxation(network), HighsRelaxation(network)
    for deadline_s in deadlines_of(model, shares):
        optimum = warm.solve(deadline_s)
        optimum_j = plain_program_bound_j(model, deadline_s)
        assert optimum_j * (1 - WITHIN) <= optimum.lower_bound_j <= optimum_j * (1 + ROUNDING)
        simplex_j = simplex.solve(deadline_s).lower_bound_j
        assert optimum.lower_bound_j <= simplex_j * (1 + 1e-6)  # what it perturbs by
        assert optimum.event_time_s[END] <= deadline_s * (1 + 1e-6)


def test_a_deadline_between_near_ones_takes_half_the_steps() -> None:
    model = example_model(num_microbatches=24)
    early_s, between_s, late_s = deadlines_of(model, [0.1, 0.11, 0.12])
    relaxation = Counted(network_of(model))
    ends = [relaxation.steps_for(deadline_s) for deadline_s in (early_s, late_s)]
    assert relaxation.steps_for(between_s) < min(ends) / 2


def test_a_mixed_start_that_leads_nowhere_is_followed_by_a_cold_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    network = network_of(example_model(4))
    early_s, between_s, late_s = deadlines_of(example_model(4), [0.1, 0.11, 0.12])
    cold = InteriorPointRelaxation(network).solve(between_s)
    monkeypatch.setattr(interior_point, "MAX_WARM_STEPS", 1)
    relaxation = Counted(network)
    for deadline_s in (early_s, late_s):
        relaxation.solve(deadline_s)
    after = relaxation.solve(between_s)
    assert after.event_time_s.tobytes() == cold.event_time_s.tobytes()
    assert after.lower_bound_j == cold.lower_bound_j


def sweep_as_if_large(monkeypatch: pytest.MonkeyPatch) -> list[DeadlinePlan]:
    monkeypatch.setattr(solver_module, "MAX_HIGHS_INSTRUCTIONS", 0)
    monkeypatch.setattr(frontier_curve, "NUM_FIRST", 30)
    monkeypatch.setattr(frontier_curve, "MAX_MIX_ERROR", WITHIN)
    return sweep_frontier(DeadlineSolver(example_model(4)), 40, 100)


def test_a_frontier_from_mixed_starts_is_certified_and_repeatable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    solved: list[RelaxedOptimum] = []
    solve = InteriorPointRelaxation.solve

    def remembering(relaxation: InteriorPointRelaxation, deadline_s: float) -> RelaxedOptimum:
        solved.append(solve(relaxation, deadline_s))
        return solved[-1]

    first = sweep_as_if_large(monkeypatch)
    monkeypatch.setattr(InteriorPointRelaxation, "solve", remembering)
    plans = sweep_as_if_large(monkeypatch)
    assert len(plans) >= 40
    assert len(solved) > interior_point.MAX_KEPT
    assert_is_frontier(plans)
    for plan in plans[::5]:
        optimum_j = plain_program_bound_j(example_model(4), plan.relaxed.deadline_s)
        assert optimum_j * (1 - WITHIN) <= plan.lower_bound_j <= optimum_j * (1 + ROUNDING)

    for one, other in zip(first, plans, strict=True):
        assert one.assignment == other.assignment
        assert (one.energy_j, one.lower_bound_j) == (other.energy_j, other.lower_bound_j)
        assert one.relaxed.event_time_s.tobytes() == other.relaxed.event_time_s.tobytes()
