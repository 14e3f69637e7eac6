"""First plans for targets other than a deadline, and with a reserve: by hand, and every plan."""

from __future__ import annotations

import math
from array import array
from dataclasses import dataclass, replace

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from flyball_server.planning.frontier.first_plan import FirstPlan, FirstPlanner
from flyball_server.planning.frontier.solver import with_reserve
from flyball_server.planning.model.data_parallel import join_pipelines
from flyball_server.planning.model.pipeline_model import PipelineModel
from flyball_server.planning.model.simulator import time_and_energy
from flyball_server.planning.planner import PlanRequest, model_of_request
from flyball_server.planning.request_options import Effort
from flyball_server.planning.stragglers import first_plans
from flyball_server.planning.stragglers.first_plans import (
    RunningClocks,
    SlowedFirstPlans,
    make_first_plan,
)
from flyball_server.planning.stragglers.slowed_pipelines import (
    Slowdown,
    SlowedRequest,
    slowed_model,
)

from .oracles import every_plan
from .tiny_pipelines import B, F, operating_points, profile_of

# 1 s and 10 J, 1.5 s and 7 J, or 2 s and 6 J.
POINTS = ((1400, 1.0, 10.0), (1200, 1.5, 7.0), (1000, 2.0, 6.0))
TWICE_AS_SLOW = Slowdown(stage=0, slowdown=2.0)
ROUNDING_ERROR = 1e-9
many = settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(autouse=True)
def first_plans_of_short_pipelines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_plans, "FIRST_PLANS_FROM", 1)


def one_stage(target: str) -> SlowedRequest:
    """A forward and a backward, which take twice as long, and as much, as `POINTS`."""
    request = PlanRequest(
        profile=profile_of([{F: POINTS, B: POINTS}]),
        num_microbatches=1,
        blocking_power_w=(0.0,),
        target=target,
        effort=Effort.LOW,
    )
    return SlowedRequest(request=request, slowdowns=(TWICE_AS_SLOW,))


def running(clock_mhz: int, iteration_time_s: float) -> RunningClocks:
    """Both instructions of `one_stage` at this clock."""
    return RunningClocks(
        schedule="1f1b",
        num_microbatches=1,
        iteration_time_s=iteration_time_s,
        clocks_mhz=(array("q", [clock_mhz] * 2),),
        pipeline_of=(0,),
    )


@dataclass(frozen=True, kw_only=True)
class Tiny:
    """A request of which every plan can be made.

    Attributes:
        model: its pipeline, as paced.
    """

    slowed: SlowedRequest
    model: PipelineModel

    def aiming_at(self, target: str, reserve: float = 0.0) -> SlowedRequest:
        request = replace(self.slowed.request, target=target, reserve=reserve)
        return replace(self.slowed, request=request)


@st.composite
def tiny_pipelines(draw: st.DrawFn, most_forwards: int = 4) -> Tiny:
    num_stages = draw(st.integers(1, 2))
    stages = [{kind: draw(operating_points())[:2] for kind in (F, B)} for _ in range(num_stages)]
    request = PlanRequest(
        profile=profile_of(stages),
        num_microbatches=draw(st.integers(1, most_forwards // num_stages)),
        blocking_power_w=(float(draw(st.integers(0, 60))),),
        effort=Effort.LOW,
    )
    slow = Slowdown(stage=0, slowdown=draw(st.sampled_from([1.5, 2.0])))
    return Tiny(
        slowed=SlowedRequest(request=request, slowdowns=(slow,)),
        model=slowed_model(model_of_request(request), [slow], share=1.0),
    )


# ------------------------------------------------------------------ on paper


def test_of_least_energy_is_what_takes_any_time() -> None:
    """4 s and 12 J each: 8 s and 24 J, and none needs less."""
    plan = make_first_plan(one_stage("least-energy"))
    assert plan is not None
    assert (plan.iteration_time_s, plan.energy_j) == pytest.approx((8.0, 24.0))
    assert plan.lower_bound_j == pytest.approx(24.0)


def test_in_a_power_budget_is_the_fastest_plan_that_keeps_it() -> None:
    """6 W. 2 and 2 s are 10 W, 2 and 3 s 6.8 W; 3 and 3 s are 28 J, 4.7 W; 2 and 4 s are 32 J."""
    plan = make_first_plan(one_stage("power:6"))
    assert plan is not None
    assert (plan.iteration_time_s, plan.energy_j) == pytest.approx((6.0, 28.0))


def test_in_a_power_budget_that_the_highest_clocks_keep_nothing_is_slower() -> None:
    plan = make_first_plan(one_stage("power:10"))
    assert plan is not None
    assert plan.iteration_time_s == plan.baseline_iteration_time_s == 4.0


def test_of_a_power_budget_that_no_plan_keeps_the_search_tells() -> None:
    """24 J in 8 s are 3 W."""
    assert make_first_plan(one_stage("power:2.9")) is None


def test_with_a_reserve_fewer_instructions_run_slower() -> None:
    """Stage 0 is busy for all of 8 s. Of that stage 1 has 2 s for each microbatch: 1 s and 1 s.

    With a reserve both would take longer than 2 s, so one of them stays at the highest clock.
    """
    busy = [(1400, 2.0, 20.0), (1000, 2.5, 15.0)]
    waiting = [(1400, 0.75, 10.0), (1000, 1.0, 6.0)]
    request = PlanRequest(
        profile=profile_of([{F: busy, B: busy}, {F: waiting, B: waiting}]),
        num_microbatches=2,
        blocking_power_w=(0.0,),
        effort=Effort.LOW,
    )
    slowed = SlowedRequest(request=request, slowdowns=())
    without = make_first_plan(slowed)
    reserved = make_first_plan(replace(slowed, request=replace(request, reserve=0.1)))
    assert without is not None
    assert reserved is not None
    assert without.iteration_time_s == reserved.iteration_time_s == 8.0
    assert without.energy_j == pytest.approx(4 * 20 + 4 * 6)
    assert reserved.energy_j == pytest.approx(4 * 20 + 2 * (10 + 6))
    assert (without.reserve, reserved.reserve) == (0.0, 0.1)


# ------------------------------------------------------------------ against the clocks that run


def test_for_least_energy_clocks_that_need_less_stay_whatever_they_were_planned_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The lowest clocks take 8 s and 24 J, the highest 4 s and 40 J."""

    def highest(planner: FirstPlanner, deadline_s: float, running_s: object = ()) -> FirstPlan:
        del planner, deadline_s, running_s
        return FirstPlan(assignment=[0, 0], lower_bound_j=24.0)

    monkeypatch.setattr(FirstPlanner, "plan", highest)
    lowest = running(1000, 9.0)
    assert SlowedFirstPlans(one_stage("fastest"), lowest).now == pytest.approx((8.0, 24.0))
    assert make_first_plan(one_stage("least-energy"), lowest) is None
    assert make_first_plan(one_stage("least-energy"), running(1400, 9.0)) is not None
    # A deadline of 5 s they do not meet, nor were they planned for it.
    assert make_first_plan(one_stage("deadline:5"), lowest) is not None


@pytest.mark.parametrize(("clock_mhz", "stays"), [(1400, False), (1200, True), (1000, False)])
def test_in_a_power_budget_clocks_stay_that_keep_it_and_are_no_slower(
    clock_mhz: int, stays: bool
) -> None:
    """6 W: the highest clocks draw 10 W, those in the middle 4.7 W; the lowest take 8 s, not 6."""
    plan = make_first_plan(one_stage("power:6"), running(clock_mhz, 1.0))
    assert (plan is None) == stays


# ------------------------------------------------------------------ against every plan


@many
@given(tiny_pipelines())
def test_of_least_energy_no_plan_is_below_the_bound(tiny: Tiny) -> None:
    plan = make_first_plan(tiny.aiming_at("least-energy"))
    assert plan is not None
    least_j = min(energy_j for _, energy_j in every_plan(tiny.model))
    assert (plan.lower_bound_j or 0.0) <= least_j * (1 + ROUNDING_ERROR)
    assert least_j <= plan.energy_j * (1 + ROUNDING_ERROR)


@many
@given(tiny_pipelines(), st.floats(0.0, 1.0))
def test_a_budget_is_kept_and_no_plan_as_fast_is_below_the_bound(tiny: Tiny, share: float) -> None:
    plans = every_plan(tiny.model)
    baseline_s, baseline_j = time_and_energy(tiny.model, tiny.model.baseline())
    least_w = min(energy_j / time_s for time_s, energy_j in plans)
    budget_w = least_w + share * (baseline_j / baseline_s - least_w)
    plan = make_first_plan(tiny.aiming_at(f"power:{budget_w!r}"))
    assume(plan is not None)
    assert plan is not None
    assert plan.energy_j <= budget_w * plan.iteration_time_s
    as_fast_j = [
        energy_j for time_s, energy_j in plans if time_s <= plan.iteration_time_s * (1 + 1e-12)
    ]
    assert (plan.lower_bound_j or 0.0) <= min(as_fast_j) * (1 + ROUNDING_ERROR)


@many
@given(tiny_pipelines(), st.sampled_from([0.0, 0.1, 1.0]), st.sampled_from([0.02, 0.2]))
def test_a_reserve_is_kept_and_no_plan_that_does_and_is_no_faster_is_below_the_bound(
    tiny: Tiny, later: float, reserve: float
) -> None:
    plan = make_first_plan(tiny.aiming_at(f"slowdown:{later!r}", reserve))
    assume(plan is not None)
    assert plan is not None
    longer = with_reserve(tiny.model, reserve)
    deadline_s = plan.baseline_iteration_time_s * (1 + later)
    kept = [
        (time_s, energy_j)
        for (with_it_s, _), (time_s, energy_j) in zip(
            every_plan(longer), every_plan(tiny.model), strict=True
        )
        if with_it_s <= deadline_s
    ]
    assert (plan.iteration_time_s, plan.energy_j) in [pytest.approx(one) for one in kept]
    no_faster_j = [
        energy_j for time_s, energy_j in kept if time_s >= plan.iteration_time_s * (1 - 1e-12)
    ]
    assert (plan.lower_bound_j or 0.0) <= min(no_faster_j) * (1 + ROUNDING_ERROR)


@many
@given(tiny_pipelines(), st.sampled_from([0.02, 0.2]))
def test_pipelines_side_by_side_have_the_reserve_that_they_have_as_one(
    tiny: Tiny, reserve: float
) -> None:
    """One that is faster has more to spare: the other makes its iteration longer."""
    models = [tiny.model, model_of_request(tiny.slowed.request)]
    joint = join_pipelines(models)
    together_s = max(time_and_energy(model, model.baseline())[0] for model in models)
    apart = [with_reserve(model, reserve, iteration_time_s=together_s) for model in models]
    assert with_reserve(joint, reserve).points == (*apart[0].points, *apart[1].points)


@many
@given(
    tiny_pipelines(most_forwards=2),
    st.sampled_from(["fastest", "slowdown:0.2", "least-energy"]),
    st.sampled_from([0.0, 0.1]),
)
def test_of_pipelines_side_by_side_no_plan_is_below_the_bound(
    tiny: Tiny, target: str, reserve: float
) -> None:
    slow = Slowdown(stage=0, slowdown=1.5)
    asked = replace(
        tiny.aiming_at(target, reserve), slowdowns=(replace(slow, dp_rank=1),), num_pipelines=2
    )
    plan = make_first_plan(asked)
    assume(plan is not None)
    assert plan is not None
    profiled = model_of_request(asked.request)
    joint = join_pipelines(
        [slowed_model(profiled, slowdowns, share=0.5) for slowdowns in ([], [slow])]
    )
    baseline_s, baseline_j = time_and_energy(joint, joint.baseline())
    assert plan.baseline_iteration_time_s == baseline_s
    assert plan.baseline_energy_j == pytest.approx(baseline_j)
    deadline_s = {"fastest": baseline_s, "slowdown:0.2": 1.2 * baseline_s}.get(target, math.inf)
    kept = [
        (time_s, energy_j)
        for (with_it_s, _), (time_s, energy_j) in zip(
            every_plan(with_reserve(joint, reserve)), every_plan(joint), strict=True
        )
        if with_it_s <= deadline_s
    ]
    assert (plan.iteration_time_s, plan.energy_j) in [pytest.approx(one) for one in kept]
    no_faster_j = [
        energy_j
        for time_s, energy_j in kept
        if not reserve or time_s >= plan.iteration_time_s * (1 - 1e-12)
    ]
    assert (plan.lower_bound_j or 0.0) <= min(no_faster_j) * (1 + ROUNDING_ERROR)
