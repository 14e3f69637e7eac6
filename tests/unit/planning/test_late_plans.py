"""Plans whose clock changes take time: chosen as if they took none, and judged with it."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from tests.unit.planning.tiny_pipelines import (
    B,
    F,
    equal_profile,
    example_model,
    profile_of,
    refuses,
    request_of,
)

from flyball_profiles.clock_transitions import ClockTransitions
from flyball_profiles.gpu_windows import load_gpu_window
from flyball_server.planning import request_options
from flyball_server.planning.frontier_curve import make_frontier
from flyball_server.planning.model.data_parallel import (
    DataParallelRequest,
    make_data_parallel_plan,
)
from flyball_server.planning.model.simulator import simulate, time_and_energy
from flyball_server.planning.model.transition_batches import TransitionBatch
from flyball_server.planning.planner import PlanRequest, make_plan, model_of_request
from flyball_server.planning.stragglers.slowed_pipelines import Slowdown, slowed_model
from flyball_wire.plan_options import PlanOptions, Policy

LATE_MS = 200.0


def three_clocks_request(**options: object) -> PlanRequest:
    """Two stages and two microbatches, whose 3^8 plans can be tried one by one."""
    stage = {
        F: [(1400, 1.0, 10.0), (1200, 1.1, 8.5), (1000, 1.25, 8.0)],
        B: [(1400, 2.0, 30.0), (1200, 2.2, 23.0), (1000, 2.5, 20.0)],
    }
    return request_of(profile_of([stage, stage]), 2, **options)


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


def test_a_plan_that_ends_later_has_no_bound_and_one_that_does_not_keeps_it() -> None:
    request = three_clocks_request()
    bound_j = make_plan(request).plan.lower_bound_j
    hidden, late = (
        make_plan(request.with_options(transition_ms=delay_ms)).plan for delay_ms in (100.0, 3000.0)
    )
    assert (hidden.slowdown_percent, hidden.lower_bound_j) == (0.0, bound_j)
    assert late.slowdown_percent > 0
    assert late.lower_bound_j is None


def test_a_plan_without_a_change_keeps_its_bound() -> None:
    request = request_of(equal_profile(1), 2, target="least-energy")
    late = make_plan(request.with_options(transition_ms=LATE_MS)).plan
    assert late.num_switches == 0
    assert late.lower_bound_j == make_plan(request).plan.lower_bound_j


@pytest.mark.parametrize(
    "options", [{"transition_ms": LATE_MS}, {"transition_ms": 1300.0}, {"transition_ms": 0.0}]
)
def test_no_plan_under_late_changes_is_below_the_bounds_of_a_frontier(
    options: dict[str, float],
) -> None:
    request = three_clocks_request(**options)
    model, curve = model_of_request(request), make_frontier(request, 8)
    choices = np.array(list(itertools.product(*(range(len(points)) for points in model.points))))
    every = TransitionBatch(model).run(choices)
    for point in curve.points:
        as_fast = every.iteration_time_s <= point.iteration_time_s * (1 + 1e-9)
        assert every.total_energy_j[as_fast].min() >= point.lower_bound_j * (1 - 1e-9)
        assert point.energy_j >= every.total_energy_j[as_fast].min() * (1 - 1e-9)
    times_s = [point.iteration_time_s for point in curve.points]
    assert times_s == sorted(times_s)
    assert (curve.transitions is None) is (options["transition_ms"] == 0)


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


def test_the_table_of_a_gpu_applies_only_where_it_is_switched_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    of_gpu, plain = load_gpu_window("a40").transitions, PlanOptions()
    assert request_options.with_gpu_transitions(plain, of_gpu) == plain
    monkeypatch.setattr(request_options, "APPLY_GPU_TRANSITIONS", True)
    assert request_options.with_gpu_transitions(plain, of_gpu).transitions == of_gpu
    for given in (PlanOptions(transition_ms=0.0), PlanOptions(transitions=of_gpu)):
        assert request_options.with_gpu_transitions(given, None) == given


def test_two_ways_to_say_how_late_are_refused() -> None:
    times = load_gpu_window("a40").transitions
    with refuses("transition_ms", "give it or transitions, not both"):
        request_of(equal_profile(1), transition_ms=5.0, transitions=times)
    with refuses("transition_ms", "must be from 0 to 10000 ms, not 20000"):
        request_of(equal_profile(1), transition_ms=20_000.0)
