"""Plans whose clock changes are limited, against all plans of a tiny pipeline."""

from __future__ import annotations

import itertools
from dataclasses import replace
from random import Random

import numpy as np
import pytest
from tests.unit.planning.tiny_pipelines import (
    B,
    F,
    every_choice,
    example_model,
    profile_of,
    request_of,
    three_clocks_request,
)

from flyball_profiles.clock_transitions import ClockTransitions
from flyball_profiles.examples import load_example_profile
from flyball_server.planning.errors import TargetUnreachableError
from flyball_server.planning.model.late_clocks import LateClockSimulator
from flyball_server.planning.model.pipeline_model import PipelineModel
from flyball_server.planning.planner import make_plan, model_of_request
from flyball_server.planning.policies.frontier import within_calls
from flyball_wire.plan_options import Effort, PlanOptions

pytestmark = pytest.mark.slow


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
