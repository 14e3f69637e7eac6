"""A solve can be ended wherever it asks, in every solver there is, and asking changes no plan."""

from __future__ import annotations

import pytest
from tests.planner.samples import profile

from flyball_server.planning.cancellation import cancellation_point, cancelled_by
from flyball_server.planning.frontier import parametric_simplex
from flyball_server.planning.frontier.interior_point import InteriorPointRelaxation
from flyball_server.planning.frontier.rounding import MOVES_AT_A_STRETCH
from flyball_server.planning.frontier.solver import DeadlineSolver
from flyball_server.planning.frontier_curve import make_frontier
from flyball_server.planning.planner import PlanRequest, make_plan, model_of_request

from .tiny_pipelines import network_of, request_of


class NobodyWantsItError(Exception):
    pass


class EndsAt:
    """Ends what asks, the so-many-th time that it does; 0: never."""

    def __init__(self, number: int = 0) -> None:
        self.num_asked = 0
        self._number = number

    def __call__(self) -> None:
        self.num_asked += 1
        if self.num_asked == self._number:
            raise NobodyWantsItError


def request(num_microbatches: int = 4) -> PlanRequest:
    return request_of(profile(), num_microbatches, blocking_power_w=(70.0,), target="slowdown:0.02")


def test_outside_of_a_block_a_solve_goes_on() -> None:
    cancellation_point()
    with pytest.raises(NobodyWantsItError), cancelled_by(EndsAt(1)):
        cancellation_point()
    cancellation_point()


def test_the_inner_block_holds_and_then_the_outer_one_again() -> None:
    outer, inner = EndsAt(), EndsAt()
    with cancelled_by(outer):
        with cancelled_by(inner):
            cancellation_point()
        cancellation_point()
    assert (outer.num_asked, inner.num_asked) == (1, 1)


def test_a_plan_ends_wherever_it_asks() -> None:
    asked = EndsAt()
    with cancelled_by(asked):
        expected = make_plan(request()).plan
    assert asked.num_asked >= 2
    for number in range(1, asked.num_asked + 1):
        ending = EndsAt(number)
        with pytest.raises(NobodyWantsItError), cancelled_by(ending):
            make_plan(request())
        assert ending.num_asked == number
    assert make_plan(request()).plan == expected


def test_annealing_asks_after_each_stretch_of_moves() -> None:
    model = model_of_request(request(num_microbatches=16))
    solver = DeadlineSolver(model)
    relaxed = solver.relax(solver.fastest_time_s * 1.02)
    asked = EndsAt()
    with cancelled_by(asked):
        solver.plan(relaxed, 3 * MOVES_AT_A_STRETCH + 1)
    assert asked.num_asked == 4


def test_moves_in_stretches_give_what_all_at_once_give(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of_request(request(num_microbatches=8))

    def energy_and_clocks(stretch: int) -> tuple[float, list[int]]:
        monkeypatch.setattr("flyball_server.planning.frontier.rounding.MOVES_AT_A_STRETCH", stretch)
        solver = DeadlineSolver(model)
        plan = solver.plan(solver.relax(solver.fastest_time_s * 1.02), 1_000)
        return plan.energy_j, plan.assignment

    assert energy_and_clocks(7) == energy_and_clocks(1_000) == energy_and_clocks(999)


def test_the_interior_point_asks_in_each_of_its_steps() -> None:
    model = model_of_request(request())
    solver, relaxation = DeadlineSolver(model), InteriorPointRelaxation(network_of(model))
    for number in (1, 3):
        ending = EndsAt(number)
        with pytest.raises(NobodyWantsItError), cancelled_by(ending):
            relaxation.solve(solver.fastest_time_s * 1.02)


def test_the_parametric_simplex_asks_after_each_stretch_of_pivots(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = model_of_request(request(num_microbatches=8))

    def bound_j(stretch: int) -> tuple[int, float]:
        monkeypatch.setattr(parametric_simplex, "PIVOTS_AT_A_STRETCH", stretch)
        asked = EndsAt()
        with cancelled_by(asked):
            solver = DeadlineSolver(model)
            relaxed = solver.relax(solver.fastest_time_s * 1.02)
        return asked.num_asked, relaxed.lower_bound_j

    num_asked, expected_j = bound_j(1_000_000)
    num_asked_often, found_j = bound_j(1)
    assert num_asked_often > num_asked + 10
    assert found_j == expected_j


def test_a_frontier_asks_at_each_of_its_plans() -> None:
    asked = EndsAt()
    with cancelled_by(asked):
        curve = make_frontier(request(), num_points=5)
    assert asked.num_asked >= len(curve.points)
