"""A solve can be ended wherever it asks, in every solver there is, and asking changes no plan."""

from __future__ import annotations

import pytest
from tests.planner.samples import profile

from flyball_server.planning.cancellation import cancellation_point, cancelled_by
from flyball_server.planning.frontier.interior_point import InteriorPointRelaxation
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


def test_the_innermost_block_holds_and_outside_of_all_a_solve_goes_on() -> None:
    outer, inner = EndsAt(), EndsAt()
    with cancelled_by(outer):
        with cancelled_by(inner):
            cancellation_point()
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
        cancellation_point()
        assert ending.num_asked == number
    assert make_plan(request()).plan == expected


def test_annealing_asks_in_each_of_its_steps() -> None:
    model = model_of_request(request(num_microbatches=17))  # not tiny
    solver = DeadlineSolver(model)
    relaxed = solver.relax(solver.fastest_time_s * 1.02)
    asked = EndsAt()
    with cancelled_by(asked):
        solver.plan(relaxed, 9)
    assert asked.num_asked == 9


def test_the_interior_point_asks_in_each_of_its_steps() -> None:
    model = model_of_request(request())
    solver, relaxation = DeadlineSolver(model), InteriorPointRelaxation(network_of(model))
    for number in (1, 3):
        ending = EndsAt(number)
        with pytest.raises(NobodyWantsItError), cancelled_by(ending):
            relaxation.solve(solver.fastest_time_s * 1.02)


def test_a_frontier_asks_at_each_of_its_plans() -> None:
    asked = EndsAt()
    with cancelled_by(asked):
        curve = make_frontier(request(), num_points=5)
    assert asked.num_asked >= len(curve.points)
