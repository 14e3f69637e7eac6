"""Bound and plan against the best of all assignments, on pipelines that have only some hundred."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.planning.oracles import every_plan, least_energy_j
from tests.unit.planning.tiny_pipelines import (
    B,
    F,
    I,
    Points,
    W,
    enumerable_models,
    equal_profile,
    model_of,
    profile_of,
)

from flyball_server.planning.frontier.solver import DeadlineSolver
from flyball_server.planning.frontier.targets import plan_for_target
from flyball_server.planning.model.pipeline_model import PipelineModel
from flyball_server.planning.model.simulator import simulate
from flyball_wire.plan_options import Effort
from flyball_wire.targets import parse_target

pytestmark = pytest.mark.slow

ROUNDING = 1e-12


@settings(max_examples=25)
@given(enumerable_models(), st.data())
def test_bound_below_best_below_plan_and_no_plan_late(
    model: PipelineModel, data: st.DataObject
) -> None:
    """At the very times of plans, where a deadline is met exactly or missed, and between them."""
    plans, solver = every_plan(model), DeadlineSolver(model)
    times_s = sorted({time_s for time_s, _ in plans})
    assert solver.fastest_time_s == times_s[0]
    for _ in range(3):
        time_s, extra_s = data.draw(st.sampled_from(times_s)), data.draw(st.floats(0, 0.1))
        deadline_s = data.draw(st.sampled_from([time_s, time_s + extra_s]))
        plan = solver.plan(solver.relax(deadline_s), num_steps=600)
        best_j = least_energy_j(plans, deadline_s)
        assert plan.lower_bound_j <= best_j * (1 + ROUNDING)
        assert plan.energy_j >= best_j * (1 - ROUNDING)
        simulation = simulate(model, plan.assignment)
        assert simulation.iteration_time_s == plan.iteration_time_s <= deadline_s
        assert simulation.energy_j == plan.energy_j


LIGHT: Points = [(1410, 1.0, 10.0), (1000, 1.25, 8.0)]
HEAVY: Points = [(1410, 2.0, 30.0), (1200, 2.25, 24.0), (1000, 2.5, 20.0)]
HAND_PICKED = {
    "equal stages": model_of(equal_profile(2), 2),
    "equal stages under GPipe": model_of(equal_profile(2), 2, "gpipe"),
    "equal stages, EnvPipe's order": model_of(equal_profile(3), 1, "envpipe"),
    "a heavy last stage": model_of(profile_of([{F: LIGHT, B: LIGHT}, {F: HEAVY, B: HEAVY}]), 1),
    "a heavy first stage": model_of(profile_of([{F: HEAVY, B: HEAVY}, {F: LIGHT, B: LIGHT}]), 1),
    "one stage, three microbatches": model_of(equal_profile(1), 3),
    "two ranks beside one": model_of(equal_profile(2, [2, 1]), 2),
    "a GPU that waits cheaply beside one that does not": model_of(
        equal_profile(2), 2, blocking_power_w=[0.0, 40.0]
    ),
    "waiting costs nothing": model_of(equal_profile(2), 2, blocking_power_w=[0.0]),
    "a backward in two parts": model_of(profile_of([{F: LIGHT, I: LIGHT, W: HEAVY}] * 2), 1),
    "a clock that is slower and dearer": model_of(
        profile_of([{F: [(1500, 1.5, 40.0), *LIGHT], B: HEAVY}]), 2
    ),
}


@pytest.mark.parametrize("name", HAND_PICKED)
@pytest.mark.parametrize("target", ["fastest", "slowdown:0.05", "least-energy"])
def test_with_normal_effort_the_plan_is_the_best_of_all(name: str, target: str) -> None:
    model = HAND_PICKED[name]
    solver = DeadlineSolver(model)
    baseline_s = simulate(model, model.baseline()).iteration_time_s
    moves = solver.num_steps(Effort.NORMAL)
    plan = plan_for_target(solver, parse_target(target), baseline_s, moves)
    slowest_s = {"fastest": 1.0, "least-energy": 100.0}.get(target) or 1 + float(target[9:])
    best_j = least_energy_j(every_plan(model), baseline_s * slowest_s)
    assert plan.energy_j == pytest.approx(best_j, rel=1e-9)
