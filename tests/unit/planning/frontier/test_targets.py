"""Targets: their forms, the plans that meet them, power budgets, and unreachable ones."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.planning.oracles import every_plan
from tests.unit.planning.tiny_pipelines import (
    enumerable_models,
    equal_profile,
    request_of,
    three_clocks_request,
)

from flyball_server.planning.errors import TargetUnreachableError
from flyball_server.planning.frontier.solver import DeadlineSolver
from flyball_server.planning.frontier.targets import plan_for_target
from flyball_server.planning.model.pipeline_model import PipelineModel
from flyball_server.planning.model.simulator import time_and_energy
from flyball_server.planning.planner import make_plan
from flyball_wire.plan_options import Effort
from flyball_wire.plans.plan import Plan
from flyball_wire.targets import parse_target

pytestmark = pytest.mark.slow

# Two equal stages, two microbatches: baseline (2 + 2 - 1) x (1 s + 2 s) = 9 s; at the slower
# clock everywhere 9 x 1.25 = 11.25 s. c = E - 5 t falls on both, so the frontier ends there.
BASELINE_S, SLOWEST_S = 9.0, 11.25


def plan(target: str) -> Plan:
    return make_plan(request_of(equal_profile(2), 2, target=target, effort=Effort.LOW)).plan


def test_the_least_energy_is_every_instruction_at_its_valley() -> None:
    # 8 instructions: 4 x (8 J + 20 J) busy, 2 stages x 11.25 s less 2 x 7.5 s busy at 5 W.
    least = plan("least-energy")
    assert least.iteration_time_s == pytest.approx(SLOWEST_S)
    assert least.predicted.energy_j == pytest.approx(4 * 28 + 5 * (2 * 11.25 - 2 * 7.5))


@pytest.mark.parametrize("target", ["slowdown:900%", "deadline:1000"])
def test_more_time_than_the_least_energy_takes_is_not_used(target: str) -> None:
    assert plan(target).predicted.energy_j == pytest.approx(plan("least-energy").predicted.energy_j)
    assert plan(target).iteration_time_s <= SLOWEST_S * (1 + 1e-9)


@pytest.mark.parametrize(
    ("target", "least"),
    [("deadline:8.9", r"the fastest takes ([\d.]+) s"), ("power:1", r"the least is ([\d.]+) W")],
)
def test_an_unreachable_target_names_the_nearest_and_that_is_granted(
    target: str, least: str
) -> None:
    with pytest.raises(TargetUnreachableError) as refused:
        plan(target)
    found = re.search(least, refused.value.message)
    assert found
    bound = float(found.group(1))
    granted = plan(f"{target.partition(':')[0]}:{bound}")
    power_w = granted.predicted.energy_j / granted.iteration_time_s
    assert (granted.iteration_time_s if "deadline" in target else power_w) <= bound


WITHIN = 1.01


def computing_draws_more_than_waiting(model: PipelineModel) -> PipelineModel:
    """The model with a blocking power that is nowhere above what an instruction draws."""
    least_w = [math.inf] * len(model.num_ranks)
    for stage, points in zip(model.dag.stage, model.points, strict=True):
        drawn_w = min(point.energy_j / point.time_s for point in points)
        least_w[stage] = min(least_w[stage], drawn_w / model.num_ranks[stage])
    return replace(model, blocking_power_w=tuple(map(min, model.blocking_power_w, least_w)))


def test_with_a_reserve_the_bound_holds_and_the_budget_too() -> None:
    plan = make_plan(three_clocks_request(target="power:18", reserve=0.02)).plan
    assert plan.predicted.energy_j / plan.iteration_time_s <= 18
    assert plan.iteration_time_s > plan.predicted.baseline_iteration_time_s
    assert plan.predicted.lower_bound_j is not None
    assert 0 < plan.predicted.lower_bound_j <= plan.predicted.energy_j


@settings(max_examples=6)
@given(enumerable_models(), st.data())
def test_of_a_tiny_pipeline_the_plan_is_the_best_of_all(
    model: PipelineModel, data: st.DataObject
) -> None:
    model = computing_draws_more_than_waiting(model)
    solver = DeadlineSolver(model)
    baseline_s, _ = time_and_energy(model, model.baseline())
    plans = every_plan(model)
    # A little more than plans draw: in another order their sums may differ in the last digit.
    powers_w = sorted(energy_j / time_s * (1 + 1e-9) for time_s, energy_j in plans)
    before_s = None
    budgets_w = data.draw(st.lists(st.sampled_from(powers_w), min_size=1, max_size=2))
    for budget_w in sorted({powers_w[0], *budgets_w}):
        target = replace(parse_target("power:1"), value=budget_w)
        plan = plan_for_target(solver, target, baseline_s, num_steps=200)
        fastest_s = min(
            max(time_s, baseline_s) for time_s, energy_j in plans if energy_j / time_s <= budget_w
        )
        assert plan.energy_j / plan.iteration_time_s <= budget_w
        assert plan.iteration_time_s <= fastest_s * WITHIN
        assert before_s is None or max(plan.iteration_time_s, baseline_s) <= before_s
        before_s = max(plan.iteration_time_s, baseline_s)
        least_j = min(energy_j for time_s, energy_j in plans if time_s <= plan.iteration_time_s)
        assert plan.lower_bound_j <= least_j * (1 + 1e-12)
