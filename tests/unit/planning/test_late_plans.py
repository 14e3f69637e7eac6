"""Plans whose clock changes take time."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
import pytest
from tests.unit.planning.tiny_pipelines import (
    equal_profile,
    every_choice,
    example_model,
    refuses,
    request_of,
    three_clocks_request,
)

from flyball_profiles.clock_transitions import ClockTransitions
from flyball_profiles.examples import load_example_profile
from flyball_profiles.gpu_windows import load_gpu_window
from flyball_profiles.stage_profile import StageProfile
from flyball_server.planning.errors import TargetUnreachableError
from flyball_server.planning.frontier.solver import DeadlineSolver, with_reserve
from flyball_server.planning.frontier.transition_search import TransitionSearch
from flyball_server.planning.frontier_curve import late_plans, make_frontier
from flyball_server.planning.model.data_parallel import (
    DataParallelRequest,
    make_data_parallel_plan,
)
from flyball_server.planning.model.finish_times import earliest_finishes_s
from flyball_server.planning.model.simulator import simulate, time_and_energy
from flyball_server.planning.model.transition_batches import TransitionBatch
from flyball_server.planning.model.transitions import TransitionSimulator
from flyball_server.planning.plan import Slowdown
from flyball_server.planning.planner import make_plan, model_of_request
from flyball_server.planning.stragglers.slowed_pipelines import slowed_model
from flyball_wire.plan_options import Effort, Policy

pytestmark = pytest.mark.slow

LATE_MS = 200.0


def four_stages() -> StageProfile:
    """Four of the shipped example's stages, the last among them."""
    return load_example_profile().select_stages((0, 1, 2, 7))


@pytest.mark.parametrize("policy", Policy)
def test_clocks_are_those_without_delays_and_the_figures_those_with_them(policy: Policy) -> None:
    request = request_of(equal_profile(2), 3, policy=policy)
    at_once, late = make_plan(request), make_plan(request.with_options(transition_ms=LATE_MS))
    assert late.plan.stages == at_once.plan.stages
    figures = (late.plan.iteration_time_s, late.plan.energy_j)
    assert figures == time_and_energy(late.model, late.assignment)
    assert late.plan.baseline_energy_j == at_once.plan.baseline_energy_j
    assert (late.plan.transition_ms, at_once.plan.transition_ms) == (LATE_MS, 0.0)
    if late.plan.num_switches == 0:
        assert late.plan.energy_j == at_once.plan.energy_j


@pytest.mark.parametrize(
    ("delay_ms", "target"),
    [
        (100.0, "fastest"),
        (100.0, "slowdown:0.05"),
        (300.0, "slowdown:0.05"),
        (300.0, "least-energy"),
        (1300.0, "least-energy"),
        (3000.0, "fastest"),
    ],
)
def test_the_search_finds_the_best_of_all_plans_in_time(delay_ms: float, target: str) -> None:
    request = three_clocks_request(transition_ms=delay_ms, target=target, early_requests=False)
    plan, model = make_plan(request).plan, model_of_request(request)
    choices = every_choice(model)
    every = TransitionBatch(model).run(choices)
    slowdown = {"fastest": 1.0, "slowdown:0.05": 1.05, "least-energy": np.inf}[target]
    deadline_s = plan.baseline_iteration_time_s * slowdown * (1 + 1e-9)
    least_j = every.total_energy_j[every.iteration_time_s <= deadline_s].min()
    assert plan.iteration_time_s <= deadline_s
    assert plan.energy_j == pytest.approx(least_j, rel=1e-9)
    as_fast = every.iteration_time_s <= plan.iteration_time_s * (1 + 1e-9)
    assert plan.lower_bound_j is not None
    assert plan.lower_bound_j <= every.total_energy_j[as_fast].min() * (1 + 1e-12)


def test_clocks_on_paths_that_are_too_long_are_raised_until_the_plan_is_in_time() -> None:
    request = request_of(four_stages(), 4, effort=Effort.LOW)
    at_once = make_plan(request)
    model = replace(at_once.model, transitions=ClockTransitions.exact(0.02))
    search = TransitionSearch(model, 1.0, Effort.LOW)
    deadline_s = at_once.plan.baseline_iteration_time_s
    assert search.times_s([at_once.assignment])[0] > deadline_s * 1.001
    raised = search.raised(at_once.assignment, deadline_s)
    assert search.times_s([raised])[0] <= deadline_s * (1 + 1e-9)
    # Others keep theirs.
    saved_j = at_once.plan.baseline_energy_j - search.energy_j(raised)
    assert saved_j > 0.5 * (at_once.plan.baseline_energy_j - at_once.plan.energy_j)


@pytest.mark.parametrize("options", [{"transition_ms": 20.0}, {"max_switches": 12}])
def test_orders_are_compared_with_the_times_and_limits_of_their_clock_changes(
    options: dict[str, object],
) -> None:
    """All of them for the deadline of 1F1B."""
    request = request_of(four_stages(), 6, effort=Effort.LOW, **options)
    plan = make_plan(request.with_options(schedule="auto:envpipe,gpipe")).plan
    in_time = request.with_options(target=f"deadline:{plan.baseline_iteration_time_s!r}")
    alone = {
        name: make_plan(in_time.with_options(schedule=name)).plan for name in ("1f1b", "envpipe")
    }
    considered = {one.schedule: one for one in plan.considered}
    assert plan.schedule == min(alone, key=lambda name: alone[name].energy_j)
    for name, one in alone.items():
        assert considered[name].energy_j == pytest.approx(one.energy_j)
        assert considered[name].iteration_time_s == pytest.approx(one.iteration_time_s)
    assert plan.energy_j == pytest.approx(alone[plan.schedule].energy_j)
    assert plan.slowdown_percent <= 1e-6
    assert plan.num_switches <= 12 or "max_switches" not in options


@pytest.mark.parametrize("share", [0.95, 0.7])
def test_a_power_budget_is_kept_with_late_changes(share: float) -> None:
    request = request_of(four_stages(), 4, effort=Effort.LOW)
    baseline = make_plan(request.with_options(policy=Policy.BASELINE)).plan
    budget_w = share * baseline.energy_j / baseline.iteration_time_s
    target = f"power:{budget_w}"
    at_once = make_plan(request.with_options(target=target))
    plan = make_plan(request.with_options(target=target, transition_ms=20.0)).plan
    late_s, late_j = time_and_energy(
        replace(at_once.model, transitions=ClockTransitions.exact(0.02)), at_once.assignment
    )
    assert plan.energy_j / plan.iteration_time_s <= budget_w
    if late_j / late_s <= budget_w:
        assert plan.iteration_time_s <= late_s


@pytest.mark.parametrize("target", ["slowdown:0.1", "power:700"])
def test_where_changes_take_longer_than_instructions_no_plan_loses_to_one_clock_per_stage(
    target: str,
) -> None:
    """Forwards of 5 ms, changes of 50."""
    points = {
        key: tuple(
            replace(one, time_s=one.time_s / 10, energy_j=one.energy_j / 10) for one in of_key
        )
        for key, of_key in four_stages().points.items()
    }
    profile = replace(four_stages(), points=points)
    options = {"schedule": "gpipe", "transition_ms": 50.0, "effort": Effort.LOW}
    request = request_of(profile, 4, target=target, blocking_power_w=(83.64,), **options)
    plan = make_plan(request).plan
    constant = plan.compared[0]
    assert constant.name == "constant"
    if target.startswith("power:"):
        assert (plan.iteration_time_s, plan.energy_j) <= (
            constant.iteration_time_s,
            constant.energy_j,
        )
    else:
        assert plan.energy_j <= constant.energy_j * (1 + 1e-9)


@pytest.mark.parametrize("delay_ms", [100.0, 1300.0])
def test_with_a_reserve_no_plan_that_keeps_it_and_is_no_faster_is_below_the_bound(
    delay_ms: float,
) -> None:
    reserve = 0.1
    request = three_clocks_request(transition_ms=delay_ms, reserve=reserve, early_requests=False)
    solved = make_plan(request)
    model, bound_j = solved.model, solved.plan.lower_bound_j
    longer = with_reserve(model, reserve)
    share = np.array(
        [
            long[0].time_s / own[0].time_s
            for long, own in zip(longer.points, model.points, strict=True)
        ]
    )
    choices = every_choice(model)
    every = TransitionBatch(model).run(choices)
    longest_s = earliest_finishes_s(model.dag, (every.duration_s * share).T).max(axis=0)
    own = int((choices == solved.assignment).all(axis=1).argmax())
    keeps_it = longest_s <= longest_s[own] * (1 + 1e-9)
    no_faster = every.iteration_time_s >= every.iteration_time_s[own] * (1 - 1e-9)
    assert longest_s[own] <= solved.plan.baseline_iteration_time_s * (1 + 1e-9)
    assert bound_j is not None
    assert bound_j <= every.total_energy_j[keeps_it & no_faster].min() * (1 + 1e-12)
    assert bound_j >= 0.85 * solved.plan.energy_j


@pytest.mark.parametrize("starts_settled", [True, False])
def test_where_delays_vary_a_plan_is_in_time_for_any_of_them(starts_settled: bool) -> None:
    times = ClockTransitions(
        up_p5_s=0.003,
        up_p50_s=0.005,
        up_p95_s=0.0065,
        down_p5_s=0.003,
        down_p50_s=0.005,
        down_p95_s=0.0065,
        starts_settled=starts_settled,
    )
    points = {
        key: tuple(replace(one, time_s=one.time_s / 4, energy_j=one.energy_j / 4) for one in of_key)
        for key, of_key in load_example_profile().points.items()
    }
    profile = replace(load_example_profile(), points=points)
    request = request_of(profile, 6, transitions=times, effort=Effort.LOW)
    solved = make_plan(request)
    simulator, draws = TransitionSimulator(solved.model), Random(1)
    clocks = solved.model.clocked.clocks(solved.assignment)
    deadline_s = solved.plan.baseline_iteration_time_s * (1 + 1e-9)
    for _ in range(100):
        delays_s = [draws.uniform(0.003, 0.0065) for _ in clocks]
        assert simulator.run(clocks, delays_s).end_s <= deadline_s
    exact = make_plan(request.with_options(transitions=None, transition_ms=5.0)).plan
    assert 0.9 * exact.saving_percent < solved.plan.saving_percent < exact.saving_percent + 0.1


def test_a_deadline_that_no_clock_change_could_meet_is_refused_with_the_nearest() -> None:
    request = three_clocks_request(transition_ms=100.0, target="deadline:8")
    with pytest.raises(TargetUnreachableError, match=r"no plan takes 8 s; the fastest takes"):
        make_plan(request)


def test_a_plan_without_a_change_keeps_its_bound() -> None:
    request = request_of(equal_profile(1), 2, target="least-energy")
    late = make_plan(request.with_options(transition_ms=LATE_MS)).plan
    assert late.num_switches == 0
    assert late.lower_bound_j == make_plan(request).plan.lower_bound_j


@pytest.mark.parametrize("options", [{"transition_ms": LATE_MS}, {"transition_ms": 0.0}])
def test_no_plan_under_late_changes_is_below_the_bounds_of_a_frontier(
    options: dict[str, float],
) -> None:
    request = three_clocks_request(early_requests=False, **options)
    model, curve = model_of_request(request), make_frontier(request, 8)
    choices = every_choice(model)
    every = TransitionBatch(model).run(choices)
    for point in curve.points:
        as_fast = every.iteration_time_s <= point.iteration_time_s * (1 + 1e-9)
        assert every.total_energy_j[as_fast].min() >= point.lower_bound_j * (1 - 1e-9)
        assert point.energy_j >= every.total_energy_j[as_fast].min() * (1 - 1e-9)
        assert point.deadline_s >= point.iteration_time_s * (1 - 1e-9)
    times_s = [point.iteration_time_s for point in curve.points]
    assert times_s == sorted(times_s)
    fastest = make_plan(request).plan
    first = curve.points[0]
    assert first.energy_j <= fastest.energy_j * (1 + 1e-9)
    assert first.iteration_time_s <= fastest.baseline_iteration_time_s * (1 + 1e-9)
    assert (curve.transitions is None) is (options["transition_ms"] == 0)


def test_the_bound_of_a_plan_that_comes_late_is_on_the_tangent() -> None:
    model = model_of_request(request_of(four_stages(), 4, transition_ms=LATE_MS))
    solver = DeadlineSolver(model.without_transitions())
    deadline_s = 1.02 * solver.fastest_time_s
    plan = solver.plan_within(deadline_s, 100)
    (plain,), (reserved,) = (
        late_plans(model, [plan], keeps_reserve=is_kept) for is_kept in (False, True)
    )
    late_s = plain.iteration_time_s - deadline_s
    assert late_s > 0
    tangent_j = plan.lower_bound_j + plan.relaxed.bound_slope_w * late_s
    assert plain.lower_bound_j == pytest.approx(tangent_j, rel=1e-12)
    assert plain.lower_bound_j <= solver.relax(deadline_s + late_s).lower_bound_j * (1 + 1e-9)
    # All of a reserve may be used at the deadline: until then nothing waits.
    waiting_j = sum(model.stage_blocking_power_w) * late_s
    assert reserved.lower_bound_j == pytest.approx(tangent_j - waiting_j, rel=1e-12)


def test_pipelines_side_by_side_change_late_too() -> None:
    request = request_of(equal_profile(2), 2, policy=Policy.ENVELOPE, transition_ms=LATE_MS)
    joint = make_data_parallel_plan(DataParallelRequest(pipelines=(request, request))).plan
    alone = make_plan(request).plan
    assert joint.num_switches == 2 * alone.num_switches > 0
    assert joint.energy_j == pytest.approx(2 * alone.energy_j)
    assert sum(pipeline.energy_j for pipeline in joint.pipelines) == pytest.approx(joint.energy_j)


def test_a_slowdown_factor_scales_instructions_and_no_delays() -> None:
    model = replace(example_model(2), transitions=ClockTransitions.exact(0.02))
    twice = slowed_model(
        model, [Slowdown(stage=stage, slowdown=2.0) for stage in range(3)], share=1
    )
    assignment = [4 * (node % 2) for node in range(model.dag.num_nodes)]
    half_as_late = replace(model, transitions=ClockTransitions.exact(0.01))
    assert simulate(twice, assignment).iteration_time_s == pytest.approx(
        2 * simulate(half_as_late, assignment).iteration_time_s
    )


def test_two_ways_to_say_how_late_are_refused() -> None:
    times = load_gpu_window("a40").transitions
    with refuses("transition_ms", "give it or transitions, not both"):
        request_of(equal_profile(1), transition_ms=5.0, transitions=times)
    with refuses("transition_ms", "must be from 0 to 10000 ms, not 20000"):
        request_of(equal_profile(1), transition_ms=20_000.0)
