"""The reserve for noise: what gets it, what it leaves as it was, how it is chosen and its price."""

from __future__ import annotations

import itertools
import json
import math
import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.planning.oracles import every_plan
from tests.unit.planning.tiny_pipelines import (
    B,
    F,
    changed_points,
    context_of,
    enumerable_models,
    equal_profile,
    model_of,
    models,
    request_of,
    timed_profile,
)

from flyball_pipeline.errors import PipelineError
from flyball_pipeline.paths import earliest_finish_s
from flyball_profiles.examples import load_example_profile
from flyball_profiles.stage_profile import StageProfile
from flyball_server.planning.documents.plan_document import plan_document, plan_from_document
from flyball_server.planning.documents.plan_text import reserve_lines
from flyball_server.planning.documents.recorded_plan import model_of_plan
from flyball_server.planning.frontier.noise_reserve import mean_time_s, reserve_against
from flyball_server.planning.frontier.reserve import with_reserve
from flyball_server.planning.frontier.solver import DeadlineSolver
from flyball_server.planning.frontier_curve import make_frontier
from flyball_server.planning.model.joint_model import join_pipelines
from flyball_server.planning.model.pipeline_model import PipelineModel, build_model
from flyball_server.planning.model.simulator import time_and_energy
from flyball_server.planning.planner import make_plan
from flyball_server.planning.scheduling import schedule_for
from flyball_server.planning.stragglers.slowed_pipelines import slowed_model
from flyball_wire.closed_loop import NO_RESERVE, Reserve
from flyball_wire.plan_options import MAX_RESERVE
from flyball_wire.plans.plan import Plan, Slowdown

pytestmark = pytest.mark.slow

reserves = st.sampled_from([0.01, 0.1, MAX_RESERVE])


def test_what_waits_at_the_highest_clocks_gets_a_reserve_and_the_longest_path_none() -> None:
    # Stage 0: F0 0-1, F1 1-2, B0 4-6, B1 7-9; stage 1: F0 1-2, B0 2-4, F1 4-5, B1 5-7. T is 9 s.
    # F1 of stage 0 may end 2 s later: it gets all that is asked for. B0 may end 1 s later; a round
    # gives it 2/9 of what is left, so six give 0.7786 s, 0.389 of its time: 12 of 16 levels.
    longer = with_reserve(model_of(equal_profile(2), 2), 0.5)
    assert longer.durations_s(longer.baseline()) == [1.0, 1.5, 2.75, 2.0, 1.0, 2.0, 1.0, 2.0]


@settings(max_examples=30)
@given(models(max_stages=3, max_microbatches=3), reserves, st.data())
def test_each_choice_of_clocks_costs_what_it_did_but_for_waiting_longer(
    model: PipelineModel, reserve: float, data: st.DataObject
) -> None:
    """And the baseline takes no longer."""
    longer = with_reserve(model, reserve)
    baseline_s = [time_and_energy(each, each.baseline())[0] for each in (model, longer)]
    assert baseline_s[1] == pytest.approx(baseline_s[0], rel=1e-9)
    assignment = [data.draw(st.integers(0, len(points) - 1)) for points in model.points]
    before_s, before_j = time_and_energy(model, assignment)
    after_s, after_j = time_and_energy(longer, assignment)
    assert after_s >= before_s * (1 - 1e-12)
    waiting_w = sum(model.stage_blocking_power_w)
    assert after_j - waiting_w * after_s == pytest.approx(
        before_j - waiting_w * before_s, rel=1e-9, abs=1e-9
    )


@settings(max_examples=25)
@given(enumerable_models(), reserves, st.floats(0, 0.3))
def test_a_plan_keeps_its_reserve_and_none_that_does_and_is_no_faster_is_below_the_bound(
    model: PipelineModel, reserve: float, later: float
) -> None:
    longer, solver = with_reserve(model, reserve), DeadlineSolver(model, reserve=reserve)
    deadline_s = (1 + later) * solver.fastest_time_s
    relaxed = solver.relax(deadline_s)
    plan = solver.plan(relaxed, num_steps=200)
    longest_s = max(earliest_finish_s(longer.dag, longer.durations_s(plan.assignment)))
    assert longest_s <= deadline_s * (1 + 1e-9)
    assert (plan.iteration_time_s, plan.energy_j) == time_and_energy(model, plan.assignment)
    all_kept = [
        (time_s, energy_j)
        for (with_it_s, _), (time_s, energy_j) in zip(
            every_plan(longer), every_plan(model), strict=True
        )
        if with_it_s <= deadline_s
    ]
    least_j = min((energy_j for _, energy_j in all_kept), default=plan.energy_j)
    assert solver.bound_j(relaxed) <= least_j * (1 + 1e-9) + 1e-9
    kept = [energy_j for time_s, energy_j in all_kept if time_s >= plan.iteration_time_s]
    assert plan.lower_bound_j <= min(kept, default=plan.energy_j) * (1 + 1e-9) + 1e-9
    assert plan.lower_bound_j <= plan.energy_j * (1 + 1e-9) + 1e-9


def test_a_reserve_that_makes_an_instruction_longer_than_any_may_be_is_refused() -> None:
    """A million seconds; the profile's own times are allowed."""
    request = request_of(timed_profile(2, {F: 380_000.0, B: 380_000.0}), 2, blocking_power_w=(0.0,))
    with pytest.raises(PipelineError, match=r"^reserve: 0\.5 is too much .* time"):
        make_plan(request.with_options(reserve=0.5))
    assert make_plan(request.with_options(reserve=0.1)).plan.reserve == Reserve(share=0.1)


def scattered(profile: StageProfile, *, jitter: float, time_error: float = 0.0) -> StageProfile:
    """The profile with this jitter, and standard errors as shares, at every point."""
    return changed_points(
        profile,
        lambda _, point: replace(point, jitter=jitter, time_error_s=time_error * point.time_s),
    )


def noisy_plan(profile: StageProfile, num_microbatches: int = 12, **options: object) -> Plan:
    options = {"blocking_power_w": (83.64,), "effort": "low", **options}
    return make_plan(request_of(profile, num_microbatches, **options)).plan


@pytest.mark.parametrize("num_runs", [1, 16])
def test_of_two_equal_pipelines_the_later_counts(num_runs: int) -> None:
    """The expected maximum of two independent normal variables is sigma / sqrt(pi)."""
    one = model_of(equal_profile(1), num_runs)
    joint = join_pipelines([one, one])
    sigma_s = 0.05 * math.hypot(1, 2) * math.sqrt(num_runs)  # forwards 1 s, backwards 2 s
    for model, later_s in ((one, 0.0), (joint, sigma_s / math.sqrt(math.pi))):
        durations_s = np.array(model.durations_s(model.baseline()))
        mean_s = mean_time_s(model, durations_s, np.full(len(durations_s), 0.05))
        assert mean_s == pytest.approx(3.0 * num_runs + later_s)


@settings(max_examples=30)
@given(models(max_stages=3, max_microbatches=3), st.floats(0, 0.1))
def test_noise_lengthens_the_longest_path_and_without_any_it_is_the_iteration(
    model: PipelineModel, noise: float
) -> None:
    durations_s = np.array(model.durations_s(model.baseline()))
    longest_s = max(earliest_finish_s(model.dag, durations_s.tolist()))
    still_s, noisy_s = (
        mean_time_s(model, durations_s, np.full(len(durations_s), share)) for share in (0, noise)
    )
    assert still_s == pytest.approx(longest_s)
    assert noisy_s >= still_s * (1 - 1e-12)


@pytest.mark.parametrize(
    ("lengthening", "noise", "reserve"),
    [
        (0.003, 0.01, 0.0),
        (0.003 * math.e, 0.01, 0.007),
        (0.007 * math.e**2, 0.03, 0.042),  # a third of 0.7 times 0.03 is more than 0.003
        (1000.0, 1.0, MAX_RESERVE),
    ],
)
def test_the_formula_of_a_reserve(lengthening: float, noise: float, reserve: float) -> None:
    assert reserve_against(lengthening, noise) == reserve


def test_scatter_of_a_period_and_of_a_slow_gpu() -> None:
    """A run's variance adds up over a period; a standard error is of all its runs together."""
    context = context_of(scattered(equal_profile(1), jitter=0.06, time_error=0.01), 4)
    model = build_model(context.profile, schedule_for("pipedream", context), [5.0])
    for one in (model, slowed_model(model, [Slowdown(stage=0, slowdown=1.5)], share=1)):
        for point in itertools.chain.from_iterable(one.points):
            assert point.jitter == pytest.approx(0.06 / math.sqrt(4))
            assert point.time_error_s == pytest.approx(0.01 * point.time_s)


def test_without_scatter_there_is_no_reserve_and_a_given_one_stays() -> None:
    plan = noisy_plan(load_example_profile(), 4)
    assert plan == noisy_plan(load_example_profile(), 4, reserve=0.0)
    assert plan.reserve == NO_RESERVE
    assert "reserve" not in plan_document(plan, solve_s=0.0)
    assert reserve_lines(plan.reserve) == []
    noisy = scattered(load_example_profile(), jitter=0.01)
    for reserve in (0.0, 0.02):
        plan = noisy_plan(noisy, 4, reserve=reserve)
        assert plan.reserve == Reserve(share=reserve)


def test_little_noise_and_targets_without_a_deadline_get_none() -> None:
    plan = noisy_plan(scattered(load_example_profile(), jitter=0.001), 4)
    assert plan.reserve.share == 0.0
    assert plan.reserve.choice is not None
    assert plan.reserve.choice.cost_points == 0
    noisy = scattered(load_example_profile(), jitter=0.01)
    assert noisy_plan(noisy, 4, target="least-energy").reserve == NO_RESERVE
    # Nothing waits in a single stage, so noise lengthens all plans alike.
    assert noisy_plan(scattered(equal_profile(1), jitter=0.1), 4).reserve.share == 0.0


def test_with_one_percent_of_jitter_a_plan_is_hardly_slower_and_says_what_that_costs() -> None:
    profile = scattered(load_example_profile(), jitter=0.01)
    plan, without = noisy_plan(profile), noisy_plan(profile, reserve=0.0)
    choice = plan.reserve.choice
    assert choice is not None
    # The plan of one clock per instruction and the relaxed optimum, which the price is of, differ.
    assert choice.cost_points == pytest.approx(
        without.predicted.saving_percent - plan.predicted.saving_percent, abs=0.05
    )
    assert choice.cost_points <= 0.4
    slower_percent = [_simulated_slowdown_percent(each) for each in (plan, without)]
    assert slower_percent[0] <= 0.3 < slower_percent[1]
    # Predicted of the relaxed optimum; one clock per instruction is a little faster.
    assert slower_percent[0] <= choice.slowdown_percent <= slower_percent[0] + 0.12
    assert choice.slowdown_without_percent == pytest.approx(slower_percent[1], abs=0.12)
    document = json.loads(json.dumps(plan_document(plan, solve_s=0.0)))
    assert plan_from_document(document) == plan
    assert document["reserve"]["share"] == plan.reserve.share > 0
    assert "1 % of jitter" in reserve_lines(plan.reserve)[0]


def _simulated_slowdown_percent(plan: Plan, num_draws: int = 150) -> float:
    """Excess of a plan's mean iteration over the highest clocks', with 1 % of jitter in both."""
    model, assignment = model_of_plan(load_example_profile(), plan)
    sums_s = [0.0, 0.0]
    for number, of_plan in enumerate((assignment, model.baseline())):
        durations_s, draws = model.durations_s(of_plan), random.Random(11)
        for _ in range(num_draws):
            drawn_s = [one * draws.gauss(1, 0.01) for one in durations_s]
            sums_s[number] += max(earliest_finish_s(model.dag, drawn_s))
    return 100 * (sums_s[0] / sums_s[1] - 1)


def test_a_frontier_and_a_chosen_order_have_a_reserve_too() -> None:
    profile = scattered(load_example_profile(), jitter=0.02, time_error=0.001)
    options = {"blocking_power_w": (83.64,), "effort": "low"}
    curve = make_frontier(request_of(profile, 4, **options), 3)
    assert curve.reserve.share > 0
    assert curve.reserve.choice is not None
    plan = noisy_plan(profile, 4, schedule="auto:gpipe")
    assert plan.reserve.choice is not None
    assert plan.reserve.choice.time_error_percent == pytest.approx(0.1)
    assert plan == replace(
        noisy_plan(profile, 4, schedule=plan.schedule), considered=plan.considered
    )
