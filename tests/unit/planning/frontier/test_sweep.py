"""The whole frontier."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from tests.unit.planning.tiny_pipelines import (
    equal_profile,
    example_model,
    model_of,
    models,
)

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
    plans = sweep_frontier(solver, num_points, 500, told.append)
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
