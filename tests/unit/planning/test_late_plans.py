"""Plans whose clock changes take time or are limited; iterations with a tail and transfers."""

from __future__ import annotations

import itertools
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest
from tests.unit.planning.tiny_pipelines import (
    B,
    F,
    changed_points,
    delays,
    equal_profile,
    every_choice,
    example_model,
    model_of,
    profile_of,
    refuses,
    request_of,
    three_clocks_request,
)

from flyball_profiles.clock_transitions import ClockTransitions
from flyball_profiles.examples import load_example_profile
from flyball_profiles.stage_profile import StageProfile
from flyball_server.planning.data_parallel import make_data_parallel_plan
from flyball_server.planning.errors import TargetUnreachableError
from flyball_server.planning.frontier.reserve import with_reserve
from flyball_server.planning.frontier.solver import DeadlineSolver
from flyball_server.planning.frontier_curve import late_plans, make_frontier
from flyball_server.planning.model.array_dag import earliest_finishes_s
from flyball_server.planning.model.joint_model import join_pipelines
from flyball_server.planning.model.late_clocks import LateClockSimulator
from flyball_server.planning.model.pipeline_model import PipelineModel
from flyball_server.planning.model.simulator import simulate, simulate_jointly, time_and_energy
from flyball_server.planning.planner import make_plan, model_of_request
from flyball_server.planning.policies.frontier import within_calls
from flyball_server.planning.stragglers.slowed_pipelines import slowed_model
from flyball_wire.plan_options import Effort, PlanOptions, Policy
from flyball_wire.plans.plan import Slowdown

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
    figures = (late.plan.iteration_time_s, late.plan.predicted.energy_j)
    assert figures == time_and_energy(late.model, late.assignment)
    assert late.plan.predicted.baseline_energy_j == at_once.plan.predicted.baseline_energy_j
    assert (late.plan.transition_ms, at_once.plan.transition_ms) == (LATE_MS, 0.0)
    if late.plan.num_switches == 0:
        assert late.plan.predicted.energy_j == at_once.plan.predicted.energy_j


AROUND: dict[str, Any] = {"tail_ms": 500.0, "transfer_ms": (250.0,)}


@pytest.mark.parametrize(
    ("delay_ms", "target", "around"),
    [
        (0.0, "fastest", AROUND),
        (100.0, "fastest", {}),
        (300.0, "slowdown:0.05", {}),
        (1300.0, "least-energy", {}),
        (1300.0, "slowdown:0.05", AROUND),
    ],
)
def test_plan_bound_and_frontier_against_all_plans(
    delay_ms: float, target: str, around: dict[str, Any]
) -> None:
    request = three_clocks_request(
        transition_ms=delay_ms, target=target, early_requests=False, **around
    )
    plan, model = make_plan(request).plan, model_of_request(request)
    every = LateClockSimulator(model).run(every_choice(model))

    def least_j(time_s: float) -> float:
        """The least energy of all plans in this time."""
        return float(every.total_energy_j[every.iteration_time_s <= time_s * (1 + 1e-9)].min())

    slowdown = {"fastest": 1.0, "slowdown:0.05": 1.05, "least-energy": np.inf}[target]
    deadline_s = plan.predicted.baseline_iteration_time_s * slowdown
    assert plan.iteration_time_s <= deadline_s * (1 + 1e-9)
    best_j = least_j(deadline_s)
    assert plan.predicted.energy_j == pytest.approx(best_j, rel=1e-9)
    assert plan.predicted.lower_bound_j is not None
    assert plan.predicted.lower_bound_j <= best_j * (1 + 1e-12)
    assert plan.predicted.lower_bound_j >= 0.9 * plan.predicted.energy_j
    curve = make_frontier(request, 6)
    for point in curve.points:
        fast_j = least_j(point.iteration_time_s)
        assert point.lower_bound_j * (1 - 1e-9) <= fast_j <= point.energy_j * (1 + 1e-9)
        assert point.deadline_s >= point.iteration_time_s * (1 - 1e-9)
    times_s = [point.iteration_time_s for point in curve.points]
    assert times_s == sorted(times_s)
    assert times_s[0] <= plan.predicted.baseline_iteration_time_s * (1 + 1e-9)
    if target == "fastest":
        assert curve.points[0].energy_j <= plan.predicted.energy_j * (1 + 1e-9)
    assert (curve.transitions is None) is (delay_ms == 0)


@pytest.mark.parametrize("target", ["slowdown:0.1", "power:700"])
def test_where_changes_take_longer_than_instructions_no_plan_loses_to_one_clock_per_stage(
    target: str,
) -> None:
    """Forwards of 5 ms, changes of 50."""
    profile = changed_points(
        four_stages(),
        lambda _, one: replace(one, time_s=one.time_s / 10, energy_j=one.energy_j / 10),
    )
    options = {"schedule": "gpipe", "transition_ms": 50.0, "effort": Effort.LOW}
    request = request_of(profile, 4, target=target, blocking_power_w=(83.64,), **options)
    plan = make_plan(request).plan
    constant = plan.predicted.compared[0]
    assert constant.name == "constant"
    if target.startswith("power:"):
        assert (plan.iteration_time_s, plan.predicted.energy_j) <= (
            constant.iteration_time_s,
            constant.energy_j,
        )
    else:
        assert plan.predicted.energy_j <= constant.energy_j * (1 + 1e-9)


def test_with_a_reserve_no_plan_that_keeps_it_and_is_no_faster_is_below_the_bound() -> None:
    reserve = 0.1
    request = three_clocks_request(transition_ms=1300.0, reserve=reserve, early_requests=False)
    solved = make_plan(request)
    model, bound_j = solved.model, solved.plan.predicted.lower_bound_j
    longer = with_reserve(model, reserve)
    share = np.array(
        [
            long[0].time_s / own[0].time_s
            for long, own in zip(longer.points, model.points, strict=True)
        ]
    )
    choices = every_choice(model)
    every = LateClockSimulator(model).run(choices)
    longest_s = earliest_finishes_s(model.dag, (every.duration_s * share).T).max(axis=0)
    own = int((choices == solved.assignment).all(axis=1).argmax())
    keeps_it = longest_s <= solved.plan.predicted.baseline_iteration_time_s * (1 + 1e-9)
    no_faster = every.iteration_time_s >= every.iteration_time_s[own] * (1 - 1e-9)
    assert keeps_it[own]
    assert bound_j is not None
    assert bound_j <= every.total_energy_j[keeps_it & no_faster].min() * (1 + 1e-12)
    assert bound_j >= 0.85 * solved.plan.predicted.energy_j


def test_where_delays_vary_a_plan_is_in_time_for_any_of_them() -> None:
    times = delays((0.003, 0.005, 0.0065), starts_settled=False)
    profile = changed_points(
        four_stages(),
        lambda _, one: replace(one, time_s=one.time_s / 4, energy_j=one.energy_j / 4),
    )
    request = request_of(profile, 6, transitions=times, effort=Effort.LOW)
    solved = make_plan(request)
    choices = np.array([solved.assignment] * 100)
    drawn_s = np.random.default_rng(1).uniform(0.003, 0.0065, choices.shape)
    times_s = LateClockSimulator(solved.model).run(choices, drawn_s).iteration_time_s
    assert times_s.max() <= solved.plan.predicted.baseline_iteration_time_s * (1 + 1e-9)
    exact = make_plan(request.with_options(transitions=None, transition_ms=5.0)).plan
    assert (
        0.9 * exact.predicted.saving_percent
        < solved.plan.predicted.saving_percent
        < exact.predicted.saving_percent + 0.1
    )


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
    joint = make_data_parallel_plan((request, request)).plan
    alone = make_plan(request).plan
    assert joint.num_switches == 2 * alone.num_switches > 0
    assert joint.predicted.energy_j == pytest.approx(2 * alone.predicted.energy_j)
    shares_j = [pipeline.energy_j or 0.0 for pipeline in joint.pipelines]
    assert sum(shares_j) == pytest.approx(joint.predicted.energy_j)


TAIL_S, HOP_S = 0.5, 0.25
DELAYS = {"tail_ms": 1e3 * TAIL_S, "transfer_ms": (1e3 * HOP_S,)}


def test_an_iteration_by_hand() -> None:
    """F of stage 0 to 1 s, there at 1.25 s; F and B of stage 1 to 4.25 s, B from 4.5 to 6.5 s."""
    model = model_of(equal_profile(2), 1).with_delays(TAIL_S, (HOP_S,))
    run = simulate(model, model.baseline())
    assert run.start_s == (0.0, 4.5, 1.25, 2.25)
    assert run.finish_s == (1.0, 6.5, 2.25, 4.25)
    assert run.wait_s == (0.0, 3.5, 1.25, 0.0)
    assert run.critical_path == (0, 2, 3, 1)
    assert run.iteration_time_s == 7.0
    # 5 W of each stage while it does not compute, in the tail too.
    assert run.energy_j == 10 + 30 + 10 + 30 + 5 * (2 * 7.0 - 6.0)
    assert run.bubble_fraction == pytest.approx(1 - 6 / 13)
    assert run.float_s == (0.0, 0.0, 0.0, 0.0)
    # Two pipelines side by side.
    joint = join_pipelines([model, model])
    both = simulate_jointly([model] * 2, [model.baseline()] * 2)
    assert [own.bubble_fraction for own in both.pipelines] == pytest.approx([1 - 6 / 13] * 2)
    assert time_and_energy(joint, joint.baseline()) == (7.0, 2 * run.energy_j)


def test_a_tail_hides_the_change_to_the_first_clock() -> None:
    times = replace(ClockTransitions.exact(0.25), starts_settled=False)
    model = replace(model_of(equal_profile(1), 2), transitions=times)
    clocks = [0, 1, 0, 1]
    assert time_and_energy(model, clocks)[0] == pytest.approx(6.975)
    partly = model.with_delays(0.125, ())
    # Half of the first forward's change is left: 0.125 s at 1.25 s a forward, a tenth of it.
    assert time_and_energy(partly, clocks)[0] == pytest.approx(6.975 - 0.025 + 0.125)
    assert time_and_energy(model.with_delays(TAIL_S, ()), clocks)[0] == pytest.approx(6.925 + 0.5)


def test_the_average_power_counts_the_tail() -> None:
    power_w = 21.0
    request = three_clocks_request(target=f"power:{power_w}", **DELAYS)
    plan = make_plan(request).plan
    assert plan.predicted.energy_j / plan.iteration_time_s <= power_w * (1 + 1e-9)
    model = model_of_request(request)
    every = LateClockSimulator(model).run(every_choice(model))
    within = every.total_energy_j <= power_w * every.iteration_time_s
    fastest_s = max(every.iteration_time_s[within].min(), plan.predicted.baseline_iteration_time_s)
    assert plan.iteration_time_s == pytest.approx(fastest_s, rel=1e-9)


def test_a_slowdown_factor_scales_instructions_and_no_delay_of_any_kind() -> None:
    model = replace(example_model(2), transitions=ClockTransitions.exact(0.02))
    assignment = [4 * (node % 2) for node in range(model.dag.num_nodes)]
    slowdowns = [Slowdown(stage=stage, slowdown=2.0) for stage in range(model.schedule.num_stages)]
    twice = slowed_model(model.with_delays(0.02, (0.01,)), slowdowns, share=1)
    half = replace(model.with_delays(0.01, (0.005,)), transitions=ClockTransitions.exact(0.01))
    assert simulate(twice, assignment).iteration_time_s == pytest.approx(
        2 * simulate(half, assignment).iteration_time_s
    )


def test_a_tail_of_iterations_that_never_end_is_refused() -> None:
    profile = equal_profile(3)
    with refuses("tail_ms", "has no effect on pipedream, whose iterations never end"):
        make_plan(request_of(profile, tail_ms=1.0, schedule="pipedream"))


@pytest.mark.parametrize("num_microbatches", [6, 7, 8])
def test_a_period_is_met_though_its_instructions_add_up_to_a_little_less(
    num_microbatches: int,
) -> None:
    """With late changes a period is a sum over microbatches, else a multiple of one of them."""
    profile = profile_of([{kind: [(1410, 0.1, 30.0), (1000, 0.13, 20.0)] for kind in (F, B)}])
    plan = make_plan(request_of(profile, num_microbatches, schedule="pipedream", transition_ms=5.0))
    baseline_s = plan.plan.predicted.baseline_iteration_time_s
    assert plan.plan.iteration_time_s == pytest.approx(baseline_s)


# ------------------------------------------------------------------ limits of clock changes


def dwells_s(model: PipelineModel, assignment: list[int]) -> list[float]:
    """Return the times between two requests of each stage, one iteration after the other, s."""
    clocks, clocked = model.clocked.clocks(assignment), model.clocked
    run = LateClockSimulator(model).trace(assignment)
    finish_s = run.start_s + run.duration_s
    period_s = finish_s.max() + clocked.dag.tail_s
    dwells: list[float] = []
    for first, last in zip(clocked.first, clocked.last, strict=True):
        requests_s = [
            finish_s[last] - period_s if one == first else finish_s[one - 1]
            for one in range(first, last + 1)
            if clocks[one] != clocks[last if one == first else one - 1]
        ]
        cycle_s = [*requests_s, *(one_s + period_s for one_s in requests_s[:1])]
        dwells += [later - sooner for sooner, later in itertools.pairwise(cycle_s)]
    return dwells


@pytest.mark.parametrize(("target", "delay_ms"), [("fastest", 300.0), ("slowdown:0.05", 0.0)])
def test_the_best_of_all_plans_with_as_few_changes(target: str, delay_ms: float) -> None:
    request = three_clocks_request(transition_ms=delay_ms, target=target, early_requests=False)
    model = model_of_request(request)
    choices = every_choice(model)
    batch = LateClockSimulator(model)
    every, num_switches = batch.run(choices), batch.num_switches(choices)
    slowdown = {"fastest": 1.0, "slowdown:0.05": 1.05}[target]
    before_j = np.inf
    for most in (0, 2, 5, 8):
        plan = make_plan(request.with_options(max_switches=most)).plan
        assert plan.num_switches <= most
        deadline_s = plan.predicted.baseline_iteration_time_s * slowdown * (1 + 1e-9)
        assert plan.iteration_time_s <= deadline_s
        is_allowed = (every.iteration_time_s <= deadline_s) & (num_switches <= most)
        least_j = every.total_energy_j[is_allowed].min()
        assert least_j * (1 - 1e-9) <= plan.predicted.energy_j <= least_j * (1 + 2e-3)
        assert plan.predicted.lower_bound_j is not None
        assert plan.predicted.lower_bound_j <= least_j * (1 + 1e-9)
        assert least_j <= before_j
        before_j = least_j
    assert plan.predicted.energy_j == make_plan(request).plan.predicted.energy_j


@pytest.mark.parametrize("early_requests", [True, False])
def test_limits_are_kept_where_there_is_no_deadline(early_requests: bool) -> None:
    plan = make_plan(
        request_of(
            load_example_profile().select_stages((0, 3, 7)),
            4,
            schedule="pipedream",
            target="least-energy",
            transitions=replace(ClockTransitions.exact(0.06), starts_settled=False),
            effort=Effort.LOW,
            early_requests=early_requests,
            max_switches=6,
        )
    ).plan
    assert plan.num_switches <= 6


@pytest.mark.parametrize(
    ("dwell_ms", "options"),
    [
        (100.0, {"transition_ms": 5.0, "tail_ms": 30.0}),
        (60_000.0, {"transition_ms": 5.0, "tail_ms": 30.0}),
    ],
)
def test_a_clock_stays_as_long_as_it_has_to(dwell_ms: float, options: dict[str, float]) -> None:
    profile = load_example_profile().select_stages((0, 1, 2, 7))
    request = request_of(profile, 4, effort=Effort.LOW, min_dwell_ms=dwell_ms, **options)
    solved = make_plan(request)
    assert all(
        one_s * 1e3 >= dwell_ms * (1 - 1e-9) for one_s in dwells_s(solved.model, solved.assignment)
    )
    assert solved.plan.slowdown_percent <= 1e-6
    if dwell_ms == 60_000:
        assert solved.plan.num_switches == 0
    assert solved.plan.predicted.lower_bound_j is not None
    assert solved.plan.predicted.lower_bound_j <= solved.plan.predicted.energy_j


@pytest.mark.parametrize("delay_s", [0.0, 0.004])
def test_short_dwells_are_counted_as_one_by_one(delay_s: float) -> None:
    draws, model = Random(5), example_model(3).with_delays(0.02, (0.001,))
    transitions = ClockTransitions.exact(delay_s)
    batch = LateClockSimulator(model, transitions)
    rows = [[draws.choice([0, 0, 4]) for _ in model.points] for _ in range(30)]
    counts = batch.num_short_dwells(np.array(rows), batch.run(np.array(rows)), 0.15)
    nums = batch.num_switches(np.array(rows))
    for row, count, num in zip(rows, counts.tolist(), nums.tolist(), strict=True):
        dwells = dwells_s(replace(model, transitions=transitions), row)
        assert num == len(dwells)
        assert count == sum(one_s < 0.15 * (1 - 1e-9) for one_s in dwells)
    assert 0 < counts.sum() < nums.sum()


def test_a_deadline_that_only_more_changes_meet_is_refused() -> None:
    """The backward is faster at the lower clock: the fastest plan has to change."""
    stage = {F: [(1400, 1.0, 10.0), (1000, 1.5, 8.0)], B: [(1400, 2.5, 30.0), (1000, 2.0, 20.0)]}
    request = request_of(profile_of([stage]), 2, target="deadline:6.2")
    assert make_plan(request).plan.num_switches == 4
    with pytest.raises(TargetUnreachableError, match="the fastest found takes 7 s"):
        make_plan(request.with_options(max_switches=0))


def test_the_calls_of_a_node_limit_the_clock_changes_of_an_iteration() -> None:
    """Calls of 5 ms for 8 GPUs: half of 0.96 s has room for 96, 12 for each GPU."""
    times = replace(ClockTransitions.exact(0.004), call_p50_s=0.005, call_p95_s=0.005)
    options = PlanOptions(transitions=times, gpus_in_node=8)
    assert within_calls(options, 0.96, 8).max_switches == 96
    # Of sixteen stages in two nodes; of four stages with two GPUs each.
    assert within_calls(options, 0.96, 16).max_switches == 192
    assert within_calls(options, 0.96, 4).max_switches == 48
    assert within_calls(replace(options, max_switches=7), 0.96, 8).max_switches == 7
    for other in (
        replace(options, gpus_in_node=1),
        replace(options, gpus_in_node=None),
        replace(options, transitions=None),
        replace(options, transitions=replace(times, queues_in_node=False)),
        replace(options, transitions=ClockTransitions.exact(0.004)),
    ):
        assert within_calls(other, 0.96, 8) is other


def test_a_plan_keeps_to_the_calls_of_its_node() -> None:
    times = replace(ClockTransitions.exact(0.01), call_p50_s=0.2, call_p95_s=0.2)
    request = three_clocks_request(transitions=times)
    free, limited = make_plan(request).plan, make_plan(request.with_options(gpus_in_node=2)).plan
    # In half of 9 s there is time for 22 calls of 0.2 s, or for one of 3 s, over both stages.
    assert limited.num_switches == free.num_switches == 2
    slow = replace(times, call_p50_s=3.0, call_p95_s=3.0)
    fewer = make_plan(request.with_options(transitions=slow, gpus_in_node=2)).plan
    assert fewer.num_switches == 0
    assert fewer.iteration_time_s <= fewer.predicted.baseline_iteration_time_s * (1 + 1e-9)
    assert fewer.predicted.energy_j > free.predicted.energy_j
