"""From request to plan: what is refused, and what a plan says of itself."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flyball_profiles.stage_profile import StageProfile
from flyball_server.planning.plan import PlannedInstruction
from flyball_server.planning.planner import PlanRequest, make_plan, model_of_request
from flyball_wire.plan_options import Policy, Reconfigure

from .oracles import every_plan, least_energy_j
from .tiny_pipelines import B, F, equal_profile, profile_of, profiles, refuses, request_of

REQUEST = request_of(equal_profile(2), 2, policy=Policy.ENVELOPE)


def test_a_plan_of_two_stages_is_as_on_paper() -> None:
    """F1 and B0 of stage 0 go to 1000 MHz: F1 has 2 s of float for 0.25 s, B0 1 s for 0.5 s.

    Baseline: 160 J busy and 6 s of waiting at 5 W. Plan: 2 + 10 J less, 0.75 s less of waiting.
    """
    plan = make_plan(REQUEST).plan
    assert plan.stages[0] == (
        PlannedInstruction(kind=F, microbatch=0, frequency_mhz=1410),
        PlannedInstruction(kind=F, microbatch=1, frequency_mhz=1000),
        PlannedInstruction(kind=B, microbatch=0, frequency_mhz=1000),
        PlannedInstruction(kind=B, microbatch=1, frequency_mhz=1410),
    )
    assert {item.frequency_mhz for item in plan.stages[1]} == {1410}
    assert (plan.baseline_iteration_time_s, plan.baseline_energy_j) == (9, 190)
    assert (plan.iteration_time_s, plan.energy_j) == (9, 190 - 12 - 0.75 * 5)
    assert plan.saving_percent == pytest.approx(100 * 15.75 / 190)
    assert plan.slowdown_percent == 0
    assert plan.gap_percent is None
    assert replace(plan, lower_bound_j=170.0).gap_percent == pytest.approx(100 * 4.25 / 170)


@pytest.mark.parametrize("policy", [Policy.FRONTIER, Policy.BASELINE])
@pytest.mark.parametrize(("scale", "power_w"), [(1000.0, 5.0), (1.0, 5000.0)])
def test_a_slip_of_units_is_refused_with_its_likely_cause(
    scale: float, power_w: float, policy: Policy
) -> None:
    """Times in ms, or the blocking power in mW."""
    points = [(1410, scale, 10.0), (1000, 1.25 * scale, 8.0)]
    profile = profile_of([{F: points, B: points}])
    with refuses("profile", "time in s (not ms), blocking power in W (not mW)"):
        make_plan(request_of(profile, policy=policy, blocking_power_w=(power_w,)))


def test_energies_that_no_gpu_draws_are_refused_with_the_likely_cause() -> None:
    """Energies in mJ."""
    points = [(1410, 0.05, 20_000.0), (1000, 0.06, 15_000.0)]
    with refuses("profile", "draws 400000 W at its highest clocks; check the units: energy in J"):
        make_plan(request_of(profile_of([{F: points, B: points}])))


@pytest.mark.parametrize("policy", Policy)
def test_a_stage_whose_clock_cannot_be_set_is_planned_around(policy: Policy) -> None:
    free = {F: [(1410, 1.0, 10.0), (1000, 1.25, 8.0)], B: [(1410, 2.0, 30.0), (1000, 2.5, 20.0)]}
    fixed = {F: [(1200, 1.5, 10.0)], B: [(1200, 3.0, 30.0)]}
    request = request_of(
        profile_of([free, fixed]), 2, policy=policy, reconfigure=Reconfigure.BALANCED
    )
    plan = make_plan(request).plan
    assert {item.frequency_mhz for item in plan.stages[1]} == {1200}
    assert plan.iteration_time_s <= plan.baseline_iteration_time_s
    assert plan.energy_j <= plan.baseline_energy_j
    if policy == Policy.FRONTIER:
        best_j = least_energy_j(
            every_plan(model_of_request(request)), plan.baseline_iteration_time_s
        )
        assert plan.energy_j == pytest.approx(best_j, rel=1e-9)


@given(
    profiles(),
    st.integers(1, 5),
    st.sampled_from(["gpipe", "1f1b", "envpipe"]),
    st.sampled_from(["baseline", "uniform", "envelope"]),
)
def test_a_balanced_plan_is_never_slower_than_its_baseline(
    profile: StageProfile, num_microbatches: int, schedule: str, policy: Policy
) -> None:
    request = request_of(
        profile,
        num_microbatches,
        schedule=schedule,
        policy=policy,
        reconfigure=Reconfigure.BALANCED,
    )
    plan = make_plan(request).plan
    assert plan.iteration_time_s <= plan.baseline_iteration_time_s


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (replace(REQUEST, num_microbatches=0), "num_microbatches"),
        (replace(REQUEST, num_microbatches=2**53), "num_microbatches"),
        (REQUEST.with_options(schedule="1F1B"), "schedule"),
        (REQUEST.with_options(target="soon"), "target"),
        (replace(REQUEST, reconfigure_granularity_mhz=0), "reconfigure_granularity_mhz"),
        (REQUEST.with_options(blocking_power_w=()), "blocking_power_w"),
        (REQUEST.with_options(blocking_power_w=(1.0, 2.0, 3.0)), "blocking_power_w"),
        (REQUEST.with_options(blocking_power_w=(-1.0,)), "blocking_power_w"),
        (REQUEST.with_options(blocking_power_w=(5.0, math.nan)), "blocking_power_w"),
        (REQUEST.with_options(blocking_power_w=(100_001.0,)), "blocking_power_w"),
    ],
)
def test_a_request_that_cannot_be_planned_names_its_field(
    request_: PlanRequest, field: str
) -> None:
    with refuses(field):
        make_plan(request_)
