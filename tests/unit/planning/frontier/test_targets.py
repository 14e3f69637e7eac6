"""Targets: their forms, the plans that meet them, and the refusal of unreachable ones."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from tests.unit.planning.tiny_pipelines import equal_profile, request_of

from flyball_profiles.examples import load_example_profile
from flyball_server.planning.errors import PlanningError, TargetUnreachableError
from flyball_server.planning.frontier.targets import parse_target
from flyball_server.planning.plan import FrequencyPlan
from flyball_server.planning.planner import make_plan
from flyball_wire.plan_options import Effort

pytestmark = pytest.mark.slow

# Two equal stages, two microbatches: baseline (2 + 2 - 1) x (1 s + 2 s) = 9 s; at the slower
# clock everywhere 9 x 1.25 = 11.25 s. c = E - 5 t falls on both, so the frontier ends there.
BASELINE_S, SLOWEST_S = 9.0, 11.25


def plan(target: str) -> FrequencyPlan:
    return make_plan(request_of(equal_profile(2), 2, target=target, effort=Effort.LOW)).plan


@pytest.mark.parametrize("target", ["fastest", "power:100000"])
def test_the_fastest_takes_no_longer_than_the_baseline(target: str) -> None:
    assert plan(target).iteration_time_s == BASELINE_S


def test_a_slowdown_is_a_share_of_the_baseline() -> None:
    slower = plan("slowdown:0.1")
    assert BASELINE_S < slower.iteration_time_s <= BASELINE_S * 1.1
    assert slower.energy_j < plan("fastest").energy_j
    assert parse_target("slowdown:10%") == parse_target("slowdown:0.1")


def test_the_least_energy_is_every_instruction_at_its_valley() -> None:
    # 8 instructions: 4 x (8 J + 20 J) busy, 2 stages x 11.25 s less 2 x 7.5 s busy at 5 W.
    least = plan("least-energy")
    assert least.iteration_time_s == pytest.approx(SLOWEST_S)
    assert least.energy_j == pytest.approx(4 * 28 + 5 * (2 * 11.25 - 2 * 7.5))


@pytest.mark.parametrize("target", ["slowdown:9", "deadline:1000"])
def test_more_time_than_the_least_energy_takes_is_not_used(target: str) -> None:
    assert plan(target).energy_j == pytest.approx(plan("least-energy").energy_j)
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
    power_w = granted.energy_j / granted.iteration_time_s
    assert (granted.iteration_time_s if "deadline" in target else power_w) <= bound


@pytest.mark.parametrize(
    "text",
    [
        *("", "soon", "fastest:1", "least-energy:", "slowdown", "slowdown:", "slowdown:x"),
        *(
            "slowdown:-0.1",
            "slowdown:nan",
            "slowdown:%",
            "slowdown:5%%",
            "deadline:5%",
            "deadline:0",
            "deadline:inf",
            "power:0",
        ),
    ],
)
def test_what_is_no_target_is_refused_with_the_forms(text: str) -> None:
    with pytest.raises(PlanningError) as refused:
        parse_target(text)
    assert refused.value.field == "target"
    assert "slowdown:5%" in refused.value.message or "as in" in refused.value.message


def test_a_larger_power_budget_never_makes_a_plan_slower() -> None:
    """Few clocks and microbatches: plans change in large steps."""
    profile = load_example_profile().select_stages((0, 1, 2, 3))
    few_clocks = replace(
        profile,
        points={
            key: tuple(point for point in points if point.frequency_mhz in {1410, 1110, 855})
            for key, points in profile.points.items()
        },
    )
    request = request_of(few_clocks, 4, blocking_power_w=(83.64,), effort=Effort.LOW)
    budgets_w = (840, 900, 950)
    plans = [make_plan(request.with_options(target=f"power:{w}")).plan for w in budgets_w]
    times_s = [plan.iteration_time_s for plan in plans]
    assert times_s == sorted(times_s, reverse=True)
    assert times_s[0] == pytest.approx(1.1744, abs=1e-3)
    for plan in plans:
        assert plan.energy_j / plan.iteration_time_s <= float(plan.target.removeprefix("power:"))
