"""Clocks that are requested ahead of an instruction's end, where changes take time."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from random import Random
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.planning.tiny_pipelines import (
    B,
    F,
    any_contexts,
    any_shapes,
    changed_points,
    delays,
    drawn_delays_s,
    every_choice,
    model_of,
    models_with_delays,
    profile_of,
    random_choices,
    request_of,
    three_clocks_request,
)

from flyball_pipeline.errors import PipelineError
from flyball_profiles.clock_transitions import ClockTransitions
from flyball_profiles.examples import load_example_profile
from flyball_profiles.gpu_windows import load_gpu_window
from flyball_server.planning.data_parallel import make_data_parallel_plan
from flyball_server.planning.documents.plan_document import plan_document, plan_from_document
from flyball_server.planning.documents.recorded_plan import model_of_plan
from flyball_server.planning.model import early_requests as early_requests_module
from flyball_server.planning.model.clocked_instructions import ClockRequest
from flyball_server.planning.model.early_requests import (
    MAX_LONGER,
    EarlyRequestBatch,
    early_requests,
)
from flyball_server.planning.model.late_clocks import LateClockSimulator
from flyball_server.planning.model.pipeline_model import PipelineModel, build_model
from flyball_server.planning.model.simulator import simulate, simulate_jointly, time_and_energy
from flyball_server.planning.planner import make_plan, model_of_request
from flyball_server.planning.scheduling import schedule_for
from flyball_server.planning.simulated_plan import SimulatedPlan


def one_stage(transitions: ClockTransitions) -> PipelineModel:
    """One stage of three microbatches, which is never idle: F F F B B B."""
    stage = {
        F: [(1400, 1.0, 100.0), (1000, 1.5, 90.0)],
        B: [(1400, 2.0, 200.0), (1000, 3.0, 180.0)],
    }
    model = model_of(profile_of([stage]), 3, "gpipe")
    return replace(model, transitions=transitions)


LOW, HIGH = 1, 0
# F F F B B B: a change up before the third forward, and one down before the second backward.
CLOCKS = [LOW, LOW, HIGH, HIGH, LOW, LOW]


def test_requests_are_made_by_the_delays_ahead() -> None:
    model = one_stage(delays((1.0, 1.5, 2.0), (0.25, 0.5, 0.75)))
    assert early_requests(model.clocked, CLOCKS, model.transitions) == {  # type: ignore[arg-type]
        # Two forwards of 1.5 s are before it, the second of them shorter than 2 s.
        2: ClockRequest(after=0, offset_s=1.0),
        # A backward of 2 s is before it.
        4: ClockRequest(after=3, offset_s=1.75),
    }


def test_the_first_clock_is_requested_in_the_iteration_before() -> None:
    """The last backward ends at the lower clock, the first forward begins at the higher."""
    clocks = [HIGH, HIGH, HIGH, HIGH, HIGH, LOW]
    model = one_stage(delays(0.5, starts_settled=False))
    requests = early_requests(model.clocked, clocks, model.transitions)  # type: ignore[arg-type]
    assert requests[0] == ClockRequest(after=5, offset_s=2.5)
    run = LateClockSimulator(model.with_requests(requests)).trace(clocks)
    assert run.duration_s == pytest.approx([1.0, 1.0, 1.0, 2.0, 2.0, 3.0])
    assert LateClockSimulator(model).trace(clocks).duration_s[0] == pytest.approx(1 + 0.5 / 3)


@pytest.mark.parametrize(
    ("up_ms", "num_unbounded"), [(2999.0, 0), (3000.0, 0), (3001.0, 1), (4000.0, 1)]
)
def test_changes_with_too_little_before_them_are_counted(up_ms: float, num_unbounded: int) -> None:
    model = one_stage(delays(up_ms / 1e3, 0.1))
    batch = EarlyRequestBatch(model)
    assert batch.num_unbounded(np.array([CLOCKS, [0] * 6])).tolist() == [num_unbounded, 0]


def test_a_slower_higher_clock_counts_only_where_the_plan_sets_it() -> None:
    stage = {
        F: [(1410, 1.6, 110.0), (1400, 1.0, 100.0), (1000, 1.5, 90.0)],
        B: [(1410, 3.2, 220.0), (1400, 2.0, 200.0), (1000, 3.0, 180.0)],
    }
    transitions = delays((0.1, 0.15, 0.2), (0.05, 0.1, 0.3))
    batch = EarlyRequestBatch(
        replace(model_of(profile_of([stage]), 3, "gpipe"), transitions=transitions)
    )
    unset, is_set = [2, 2, 1, 1, 2, 2], [0, 2, 1, 1, 2, 2]
    latest_s = batch.latest_s(np.array([unset, is_set]))
    assert latest_s[0] == pytest.approx(1.5 + 1.5 + 1 + 2 + 3 + 3)
    assert latest_s[1] > 1.6 + 1.5 + 1 + 2 + 3 + 3
    assert batch.num_unbounded(np.array([unset])).tolist() == [0]


def test_a_wait_makes_a_clock_early_that_was_requested_before_it() -> None:
    """Stage 1 computes F0 at 4 s and waits; its next clock comes before F1, which begins at 8 s."""
    stages = [
        {F: [(1400, 4.0, 100.0)], B: [(1400, 1.0, 100.0)]},
        {F: [(1410, 1.5, 110.0), (1400, 1.0, 100.0)], B: [(1410, 2.0, 210.0), (1400, 2.5, 200.0)]},
    ]
    model = model_of(profile_of(stages), 2, "gpipe")
    late = replace(model, transitions=delays((1.2, 1.3, 1.5), 0.0))
    row = [0, 0, 0, 0, 1, 1, 0, 0]
    clocks, batch = model.clocked.clocks(row), EarlyRequestBatch(late)
    assert time_and_energy(model, row)[0] == pytest.approx(14.0)
    requests = early_requests(model.clocked, clocks, late.transitions)  # type: ignore[arg-type]
    assert requests == {6: ClockRequest(after=4, offset_s=0.5)}
    run = LateClockSimulator(late.with_requests(requests)).trace(row, [1.2] * 8)
    assert (run.start_s[5], run.duration_s[5]) == pytest.approx((8.0, 1.5))
    assert (run.start_s + run.duration_s).max() == pytest.approx(14.5)
    assert batch.latest_s(np.array([row]))[0] == pytest.approx(14.5)
    assert batch.num_unbounded(np.array([row])).tolist() == [1]


def test_a_clock_that_takes_more_than_twice_as_long_is_not_bounded() -> None:
    stage = {F: [(1400, 1.0, 100.0), (700, 2.01, 90.0)], B: [(1400, 2.0, 200.0)]}
    model = replace(
        model_of(profile_of([stage]), 2, "gpipe"), transitions=ClockTransitions.exact(0.1)
    )
    batch = EarlyRequestBatch(model)
    assert batch.num_unbounded(np.array([[0, 0, 0, 0], [0, 1, 0, 0]])).tolist() == [0, 2]


@pytest.mark.slow
@settings(max_examples=30)
@given(st.data(), st.integers(0, 2**16), st.sampled_from([0.0, 0.01, 0.1, 0.3]))
def test_no_delays_make_an_iteration_longer_than_its_bound(
    data: st.DataObject, seed: int, noise: float
) -> None:
    """Times of a profile that are off from clock to clock, and short or long delays."""
    context = data.draw(any_contexts(shape := data.draw(any_shapes(3, 5))))
    draws = Random(seed)
    profile = changed_points(
        context.profile,
        lambda _, point: replace(point, time_s=point.time_s * (1 + draws.uniform(-noise, noise))),
    )
    schedule = schedule_for(shape[0], replace(context, profile=profile))
    model = build_model(profile, schedule, [7.0])
    if not model.schedule.is_periodic:
        model = model.with_delays(*draws.choice([(0.0, ()), (0.05, (0.02,))]))
    all_s = [time_s for times_s in model.clocked.times_s for time_s in times_s]
    longest_s = draws.choice([0.2 * min(all_s), min(all_s), 3 * min(all_s), max(all_s)])
    up_s, down_s = (sorted(draws.uniform(0, longest_s) for _ in range(3)) for _ in range(2))
    transitions = delays(
        (up_s[0], up_s[1], up_s[2]),
        (down_s[0], down_s[1], down_s[2]),
        starts_settled=draws.random() < 0.5,
    )
    late = replace(model, transitions=transitions)
    rows: list[list[int]] = []
    for _ in range(30):
        row: list[int] = []
        for points in model.points:  # in runs, so that some have enough before a change
            is_same = row and draws.random() < 0.7 and row[-1] < len(points)
            row.append(row[-1] if is_same else draws.randrange(len(points)))
        rows.append(row)
    batch, choices = EarlyRequestBatch(late), np.array(rows)
    run, latest_s = batch.estimated(choices), batch.latest_s(choices) + model.dag.tail_s
    num_unbounded = batch.num_unbounded(choices)
    # All other reasons for a longer iteration count as they are.
    with patch.object(early_requests_module, "MAX_LONGER", np.inf):
        num_too_little_before = batch.num_unbounded(choices)
    for plan, row in enumerate(rows):
        at_once_s = time_and_energy(model, row)[0]
        assert run.iteration_time_s[plan] == pytest.approx(at_once_s)
        assert latest_s[plan] >= at_once_s * (1 - 1e-9)
        is_longer = latest_s[plan] - at_once_s > (at_once_s - model.dag.tail_s) * MAX_LONGER
        assert (num_unbounded[plan] > num_too_little_before[plan]) == is_longer
        if num_too_little_before[plan]:
            continue
        clocks = model.clocked.clocks(row)
        simulator = LateClockSimulator(
            late.with_requests(early_requests(model.clocked, clocks, transitions))
        )
        drawn = [drawn_delays_s(model, row, transitions, draws) for _ in range(5)]
        times_s = simulator.run(np.array([row] * len(drawn)), drawn).iteration_time_s
        assert times_s.max() <= latest_s[plan] * (1 + 1e-9)


@given(models_with_delays(), st.integers(0, 2**16))
def test_without_delays_plans_take_what_the_simulation_says(
    model: PipelineModel, seed: int
) -> None:
    """With delays, tests/integration/test_clock_requests.py holds them against emulated GPUs."""
    at_once = replace(model, transitions=ClockTransitions.exact(0.0))
    choices = random_choices(model, Random(seed), 3)
    run = EarlyRequestBatch(at_once).estimated(choices)
    for plan, row in enumerate(choices.tolist()):
        figures = run.iteration_time_s[plan], run.total_energy_j[plan]
        assert figures == pytest.approx(time_and_energy(at_once, row))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "delay_ms"), [("fastest", 900.0), ("slowdown:0.05", 100.0), ("least-energy", 900.0)]
)
def test_exact_delays_cost_nothing_where_instructions_are_longer(
    target: str, delay_ms: float
) -> None:
    """The best of all plans as if clocks changed at once, by trying each."""
    request = three_clocks_request(transition_ms=delay_ms, target=target)
    solved, model = make_plan(request), model_of_request(request).without_transitions()
    figures = [time_and_energy(model, row) for row in every_choice(model).tolist()]
    slowdown = {"fastest": 1.0, "slowdown:0.05": 1.05, "least-energy": np.inf}[target]
    deadline_s = solved.plan.predicted.baseline_iteration_time_s * slowdown * (1 + 1e-9)
    least_j = min(energy_j for time_s, energy_j in figures if time_s <= deadline_s)
    assert solved.plan.predicted.energy_j == pytest.approx(least_j, rel=1e-9)
    assert solved.plan.iteration_time_s <= deadline_s
    assert bool(solved.plan.pipelines[0].requests) is (solved.plan.num_switches > 0)


@cache
def example() -> SimulatedPlan:
    """Two stages of the shipped profile under the delays of an A100, roughly."""
    profile = load_example_profile().select_stages((0, 7))
    transitions = delays((0.0045, 0.0058, 0.0075), (0.0032, 0.0041, 0.006), starts_settled=False)
    return make_plan(request_of(profile, 4, transitions=transitions, target="slowdown:0.03"))


@pytest.mark.slow
def test_energies_of_many_plans_are_near_those_of_one_and_its_file_holds_its_requests() -> None:
    solved = example()
    batch = EarlyRequestBatch(solved.model)
    energy_j = batch.estimated(np.array([solved.assignment])).total_energy_j[0]
    at_once_j = time_and_energy(solved.model.without_transitions(), solved.assignment)[1]
    assert solved.plan.predicted.energy_j > at_once_j
    assert energy_j - at_once_j == pytest.approx(
        solved.plan.predicted.energy_j - at_once_j, rel=0.05
    )
    plan = solved.plan
    assert plan.pipelines[0].requests
    document = plan_document(plan, solve_s=0.0)
    assert document["requests"][0][3] == "begin"
    read = plan_from_document(document)
    assert read == plan
    profile = load_example_profile().select_stages((0, 7))
    model, assignment = model_of_plan(profile, read)
    assert simulate(model, assignment) == simulate(solved.model, solved.assignment)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("row", "place", "reason"),
    [
        ([0, 1, 0, "end", 0.1], "[3]", "must be 'begin'"),
        ([2, 1, 0, "begin", 0.1], "", "a stage of the plan"),
        ([0, 1, 1, "begin", 0.1], "", "after an earlier position"),
        ([0, 8, 0, "begin", 0.1], "", "the clock changes between"),
    ],
)
def test_requests_that_are_none_are_refused(row: list[object], place: str, reason: str) -> None:
    document = plan_document(example().plan, solve_s=0.0)
    document["requests"] = [row]
    with pytest.raises(PipelineError, match=reason) as caught:
        plan_from_document(document)
    assert caught.value.field == f"requests[0]{place}"


@pytest.mark.slow
def test_pipelines_side_by_side_have_their_own_requests() -> None:
    profile = load_example_profile().select_stages((0, 7))
    slower = changed_points(profile, lambda _, one: replace(one, time_s=1.05 * one.time_s))
    pipelines = tuple(request_of(each, 4, transition_ms=5.0) for each in (profile, slower))
    solved = make_data_parallel_plan(pipelines)
    for model, pipeline in zip(solved.models, solved.plan.pipelines, strict=True):
        assert len(model.requests) == len(pipeline.requests) > 0
        offsets_s = sorted(request.offset_s for request in model.requests.values())
        assert sorted(row.offset_s for row in pipeline.requests) == offsets_s
    # With requests of exact delays nothing is late.
    at_once = [model.without_transitions() for model in solved.models]
    at_once_j = simulate_jointly(at_once, solved.assignments).whole.energy_j
    assert solved.plan.predicted.energy_j == pytest.approx(at_once_j)
    document = plan_document(solved.plan, solve_s=0.0)
    assert plan_from_document(document) == solved.plan


@pytest.mark.slow
def test_a_plan_for_a_nodes_queue_is_in_time_where_one_for_a_single_gpu_is_late() -> None:
    """Eight GPUs a stage in one node, short microbatches; the plan is evaluated with the queue."""
    a100 = load_gpu_window("a100").transitions
    assert a100 is not None
    request = request_of(
        load_example_profile().select_stages((0, 1, 2, 7)), 4, transitions=a100, reserve=0.0
    )
    alone = make_plan(request)
    together = make_plan(request.with_options(gpus_at_once=8))
    assert together.plan.transitions == a100.of_queue(8)
    baseline_s = alone.plan.predicted.baseline_iteration_time_s
    assert together.plan.iteration_time_s <= baseline_s * (1 + 1e-9)
    queued = replace(alone.model, transitions=a100.of_queue(8))
    late_s, _ = time_and_energy(queued, alone.assignment)
    assert late_s > baseline_s * 1.002
