"""Policies `constant` and `global`, compared with all choices of fixed clocks."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.planning.tiny_pipelines import (
    equal_profile,
    example_model,
    model_of,
    models_with_delays,
    request_of,
)

from flyball_profiles.clock_transitions import ClockTransitions
from flyball_profiles.examples import load_example_profile
from flyball_server.planning.errors import TargetUnreachableError
from flyball_server.planning.model.pipeline_model import PipelineModel
from flyball_server.planning.model.simulator import time_and_energy
from flyball_server.planning.planner import make_plan
from flyball_server.planning.policies.single_clocks import (
    SingleClocks,
    single_clock_curves,
    single_clock_plans,
)
from flyball_wire.plan_options import PlanOptions, Policy
from flyball_wire.targets import Target, parse_target

TARGETS = ["fastest", "slowdown:0.04", "slowdown:0.15", "least-energy"]


@pytest.fixture(scope="module")
def model() -> PipelineModel:
    """The shipped example with every ninth clock of each stage: 9 of 72."""
    whole = example_model(4)
    thinned = {id(points): points[::9] for points in whole.points}
    return replace(whole, points=tuple(thinned[id(points)] for points in whole.points))


@pytest.fixture(scope="module")
def all_choices(model: PipelineModel) -> list[tuple[tuple[int, ...], float, float]]:
    """Clock per stage, iteration time in s and energy in J of every choice."""
    stages = range(model.schedule.num_stages)
    num_clocks = [
        len(next(points for node, points in enumerate(model.points) if model.dag.stage[node] == at))
        for at in stages
    ]
    return [
        (levels, *time_and_energy(model, [levels[stage] for stage in model.dag.stage]))
        for levels in itertools.product(*map(range, num_clocks))
    ]


@pytest.mark.parametrize("target", TARGETS)
def test_the_best_fixed_clocks_are_found(
    model: PipelineModel, all_choices: list[tuple[tuple[int, ...], float, float]], target: str
) -> None:
    baseline_s = time_and_energy(model, model.baseline())[0]
    share = {"fastest": 0.0, "least-energy": 9.0}.get(target)
    limit_s = baseline_s * (1 + (float(target.partition(":")[2]) if share is None else share))
    allowed = [choice for choice in all_choices if choice[1] <= limit_s * (1 + 1e-9)]
    least_j = min(energy_j for _, _, energy_j in allowed)
    same_j = min(energy_j for levels, _, energy_j in allowed if len(set(levels)) == 1)
    clocks = SingleClocks(model)
    (per_stage,), (for_all,) = (
        search([parse_target(target)]) for search in (clocks.constant, clocks.same_for_all)
    )
    assert per_stage.energy_j == pytest.approx(least_j, rel=1e-9)
    assert for_all.energy_j == pytest.approx(same_j, rel=1e-9)
    curves = single_clock_curves(model, [baseline_s, limit_s])
    assert [curve[-1].energy_j for curve in curves] == [per_stage.energy_j, for_all.energy_j]


@pytest.mark.parametrize("share", [0.95, 0.75, 0.55])
def test_a_power_budget_gets_the_fastest_fixed_clocks_within_it(
    model: PipelineModel, all_choices: list[tuple[tuple[int, ...], float, float]], share: float
) -> None:
    time_s, energy_j = time_and_energy(model, model.baseline())
    budget_w = share * energy_j / time_s
    within = [choice for choice in all_choices if choice[2] / choice[1] <= budget_w]
    fastest_s = min(time_s for _, time_s, _ in within)
    (plan,) = SingleClocks(model).constant([parse_target(f"power:{budget_w}")])
    assert plan.energy_j / plan.iteration_time_s <= budget_w * (1 + 1e-9)
    assert plan.iteration_time_s == pytest.approx(fastest_s, rel=1e-5)


@pytest.mark.parametrize("policy", [Policy.CONSTANT, Policy.GLOBAL])
def test_a_target_below_every_choice_is_refused_with_the_nearest(policy: Policy) -> None:
    request = request_of(load_example_profile(), 4).with_options(policy=policy)
    for target, said in (
        ("power:1", r"draws 1 W on average; the least found is ([\d.]+) W"),
        ("deadline:0.1", r"change takes 0.1 s; the fastest takes ([\d.]+) s"),
    ):
        with pytest.raises(TargetUnreachableError, match=said) as refused:
            make_plan(request.with_options(target=target))
        (nearest,) = re.findall(said, str(refused.value))
        kind = target.partition(":")[0]
        met = make_plan(request.with_options(target=f"{kind}:{nearest}")).plan
        figure = (
            met.iteration_time_s
            if kind == "deadline"
            else met.predicted.energy_j / met.iteration_time_s
        )
        assert figure == pytest.approx(float(nearest), rel=1e-4)


def test_a_plan_of_the_frontier_names_what_fixed_clocks_would_give() -> None:
    request = request_of(load_example_profile().select_stages((0, 3, 7)), 4)
    plan = make_plan(request).plan
    constant, for_all = plan.predicted.compared
    assert (constant.name, for_all.name) == ("constant", "global")
    assert plan.predicted.energy_j < constant.energy_j <= for_all.energy_j
    chosen = make_plan(request.with_options(policy=Policy.CONSTANT)).plan
    assert chosen.predicted.energy_j == pytest.approx(constant.energy_j)
    for stage in chosen.stages:
        assert len({instruction.frequency_mhz for instruction in stage}) == 1
    assert chosen.predicted.compared == ()


def test_long_pipelines_have_fixed_clocks_and_are_compared_with_none() -> None:
    """Comparing would take longer than planning."""
    long, options = model_of(equal_profile(65), 1), PlanOptions(blocking_power_w=(5.0,))
    assert single_clock_plans(long, options) == ()
    assert single_clock_curves(long, [1e3]) == ((), ())
    (plan,) = SingleClocks(long).constant([parse_target("least-energy")])
    assert plan.energy_j <= time_and_energy(long, long.baseline())[1]
    assert len(single_clock_plans(model_of(equal_profile(2), 1), options)) == 2


@given(models_with_delays(), st.integers(1, 5), st.sampled_from([None, 0.0, 0.05, 0.4]))
def test_a_clock_per_stage_is_never_worse_than_one_for_all_and_takes_what_the_simulation_says(
    model: PipelineModel, tenths: int, delay_s: float | None
) -> None:
    transitions = None if delay_s is None else ClockTransitions.exact(delay_s)
    model = replace(model, transitions=transitions)
    clocks = SingleClocks(model)
    targets = [Target(kind="deadline", value=(1 + tenths / 10) * clocks.baseline_time_s)]
    (per_stage,), (for_all,) = clocks.constant(targets), clocks.same_for_all(targets)
    for plan in (per_stage, for_all):
        figures = plan.iteration_time_s, plan.energy_j
        assert figures == pytest.approx(time_and_energy(model, plan.assignment))
    assert per_stage.meets_target >= for_all.meets_target
    if for_all.meets_target:
        assert per_stage.energy_j <= for_all.energy_j * (1 + 1e-9)
