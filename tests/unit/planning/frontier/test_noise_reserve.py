"""The reserve chosen for noise: its simulation, its conditions and its price."""

from __future__ import annotations

import itertools
import json
import math
import random
from dataclasses import replace

import numpy as np
import pytest
from tests.unit.planning.tiny_pipelines import (
    changed_points,
    context_of,
    equal_profile,
    model_of,
    request_of,
)

from flyball_profiles.examples import load_example_profile
from flyball_profiles.stage_profile import StageProfile
from flyball_server.planning.documents.plan_document import plan_document, plan_from_document
from flyball_server.planning.documents.plan_text import reserve_lines
from flyball_server.planning.documents.recorded_plan import model_of_plan
from flyball_server.planning.frontier.noise_reserve import IterationNoise
from flyball_server.planning.frontier_curve import make_frontier
from flyball_server.planning.model.data_parallel import join_pipelines
from flyball_server.planning.model.finish_times import earliest_finish_s
from flyball_server.planning.model.pipeline_model import build_model
from flyball_server.planning.plan import FrequencyPlan, Slowdown
from flyball_server.planning.planner import make_plan
from flyball_server.planning.schedules import make_schedule
from flyball_server.planning.stragglers.slowed_pipelines import slowed_model


def scattered(profile: StageProfile, *, jitter: float, time_error: float = 0.0) -> StageProfile:
    """The profile with this jitter, and standard errors as shares, at every point."""
    return changed_points(
        profile,
        lambda _, point: replace(point, jitter=jitter, time_error_s=time_error * point.time_s),
    )


def planned(profile: StageProfile, num_microbatches: int = 12, **options: object) -> FrequencyPlan:
    options = {"blocking_power_w": (83.64,), "effort": "low", **options}
    return make_plan(request_of(profile, num_microbatches, **options)).plan


@pytest.mark.parametrize("num_runs", [1, 16])
@pytest.mark.parametrize("is_jitter", [True, False])
def test_of_two_equal_pipelines_the_later_counts(num_runs: int, *, is_jitter: bool) -> None:
    """The expected maximum of two independent normal variables is sigma / sqrt(pi).

    An error of the profile is the same in all runs of an instruction, its jitter is not.
    """
    scatter = {"jitter": 0.05 * is_jitter, "time_error": 0.05 * (not is_jitter)}
    models = [model_of(scattered(equal_profile(1), **scatter), num_runs) for _ in range(2)]
    joint = join_pipelines(models)
    durations_s = np.array(joint.durations_s(joint.baseline()))  # forwards 1 s, backwards 2 s
    sigma_s = 0.05 * math.hypot(1, 2) * (math.sqrt(num_runs) if is_jitter else num_runs)
    one_s = IterationNoise(models[0]).mean_time_s(durations_s[: 2 * num_runs])
    assert one_s == pytest.approx(3.0 * num_runs, abs=0.2 * sigma_s)
    expected_s = 3.0 * num_runs + sigma_s / math.sqrt(math.pi)
    assert IterationNoise(joint).mean_time_s(durations_s) == pytest.approx(
        expected_s, abs=0.2 * sigma_s
    )


def test_scatter_of_a_period_and_of_a_slow_gpu() -> None:
    """A run's variance adds up over a period; a standard error is of all its runs together."""
    context = context_of(scattered(equal_profile(1), jitter=0.06, time_error=0.01), 4)
    model = build_model(context.profile, make_schedule("pipedream", context), [5.0])
    for one in (model, slowed_model(model, [Slowdown(stage=0, slowdown=1.5)], share=1)):
        for point in itertools.chain.from_iterable(one.points):
            assert point.jitter == pytest.approx(0.06 / math.sqrt(4))
            assert point.time_error_s == pytest.approx(0.01 * point.time_s)


def test_without_scatter_there_is_no_reserve_and_a_given_one_stays() -> None:
    plan = planned(load_example_profile(), 4)
    assert plan == planned(load_example_profile(), 4, reserve=0.0)
    assert (plan.reserve, plan.reserve_choice) == (0.0, None)
    assert "reserve_choice" not in plan_document(plan, solve_s=0.0)
    assert reserve_lines(plan.reserve, plan.reserve_choice) == []
    noisy = scattered(load_example_profile(), jitter=0.01)
    for given in (0.0, 0.02):
        plan = planned(noisy, 4, reserve=given)
        assert (plan.reserve, plan.reserve_choice) == (given, None)


def test_little_noise_and_targets_without_a_deadline_get_none() -> None:
    plan = planned(scattered(load_example_profile(), jitter=0.001), 4)
    assert plan.reserve == 0.0
    assert plan.reserve_choice is not None
    assert plan.reserve_choice.cost_points == 0
    noisy = scattered(load_example_profile(), jitter=0.01)
    assert planned(noisy, 4, target="least-energy").reserve_choice is None
    # Nothing waits in a single stage, so noise lengthens all plans alike.
    assert planned(scattered(equal_profile(1), jitter=0.1), 4).reserve == 0.0


def test_with_one_percent_of_jitter_a_plan_is_hardly_slower_and_says_what_that_costs() -> None:
    profile = scattered(load_example_profile(), jitter=0.01)
    plan, without = planned(profile), planned(profile, reserve=0.0)
    choice = plan.reserve_choice
    assert choice is not None
    # The plan of one clock per instruction and the relaxed optimum, which the price is of, differ.
    assert choice.cost_points == pytest.approx(
        without.saving_percent - plan.saving_percent, abs=0.05
    )
    assert choice.cost_points <= 0.4
    slower_percent = [_simulated_slowdown_percent(each) for each in (plan, without)]
    assert slower_percent[0] <= 0.3 < slower_percent[1]
    assert choice.slowdown_percent == pytest.approx(slower_percent[0], abs=0.06)
    assert choice.slowdown_without_percent == pytest.approx(slower_percent[1], abs=0.12)
    document = json.loads(json.dumps(plan_document(plan, solve_s=0.0)))
    assert plan_from_document(document) == plan
    assert document["reserve"] == plan.reserve > 0
    assert "1 % of jitter" in reserve_lines(plan.reserve, choice)[0]


def _simulated_slowdown_percent(plan: FrequencyPlan, num_draws: int = 150) -> float:
    """Excess of a plan's mean iteration over the highest clocks', with 1 % of jitter in both."""
    model, assignment = model_of_plan(load_example_profile(), plan)
    sums_s = [0.0, 0.0]
    for number, of_plan in enumerate((assignment, model.baseline())):
        durations_s, draws = model.durations_s(of_plan), random.Random(11)
        for _ in range(num_draws):
            drawn_s = [one * draws.gauss(1, 0.01) for one in durations_s]
            sums_s[number] += max(earliest_finish_s(model.dag, drawn_s))
    return 100 * (sums_s[0] / sums_s[1] - 1)


def test_a_frontier_and_a_chosen_order_have_it_too() -> None:
    profile = scattered(load_example_profile(), jitter=0.02, time_error=0.001)
    options = {"blocking_power_w": (83.64,), "effort": "low"}
    curve = make_frontier(request_of(profile, 4, **options), 3)
    assert curve.reserve > 0
    assert curve.reserve_choice is not None
    plan = planned(profile, 4, schedule="auto:gpipe")
    assert plan.reserve_choice is not None
    assert plan.reserve_choice.time_error_percent == pytest.approx(0.1)
    assert plan == replace(planned(profile, 4, schedule=plan.schedule), considered=plan.considered)
