"""Many plans at once under late clock changes: as one by one, and bounded for a range of delays."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.planning.tiny_pipelines import (
    B,
    F,
    any_contexts,
    any_shapes,
    context_of,
    equal_profile,
    every_choice,
    example_model,
    model_of,
    profile_of,
)

from flyball_profiles.clock_transitions import ClockTransitions
from flyball_server.planning.model.pipeline_model import PipelineModel, build_model
from flyball_server.planning.model.simulator import time_and_energy
from flyball_server.planning.model.transition_batches import TransitionBatch
from flyball_server.planning.model.transition_rows import InstructionRows
from flyball_server.planning.model.transitions import TransitionSimulator
from flyball_server.planning.schedules import make_schedule

CLOCKS_MHZ = (1410, 1200, 1000, 800)


def times(*ms: float, starts_settled: bool = True) -> ClockTransitions:
    """Return delays up and down, p5, p50 and p95 of each, from ms."""
    up_p5_s, up_p50_s, up_p95_s, down_p5_s, down_p50_s, down_p95_s = (each / 1e3 for each in ms)
    return ClockTransitions(
        up_p5_s=up_p5_s,
        up_p50_s=up_p50_s,
        up_p95_s=up_p95_s,
        down_p5_s=down_p5_s,
        down_p50_s=down_p50_s,
        down_p95_s=down_p95_s,
        starts_settled=starts_settled,
    )


def random_choices(model: PipelineModel, draws: Random, num_plans: int) -> np.ndarray:
    """Return plans of clocks drawn at random; shape (num_plans, num_nodes)."""
    rows = [[draws.randrange(len(points)) for points in model.points] for _ in range(num_plans)]
    return np.array(rows)


@given(st.data(), st.integers(0, 2**16), st.booleans())
def test_many_plans_take_what_each_takes_alone(
    data: st.DataObject, seed: int, starts_settled: bool
) -> None:
    context = data.draw(any_contexts(shape := data.draw(any_shapes(3, 4))))
    model = build_model(context.profile, make_schedule(shape[0], context), [7.0])
    if not model.schedule.is_periodic:
        model = model.with_delays(*data.draw(st.sampled_from([(0.0, ()), (0.05, (0.02,))])))
    up_ms, down_ms = data.draw(st.tuples(st.floats(0, 200), st.floats(0, 200)))
    transitions = times(
        up_ms, up_ms, up_ms, down_ms, down_ms, down_ms, starts_settled=starts_settled
    )
    choices = random_choices(model, Random(seed), 3)
    batch = TransitionBatch(model, transitions).run(choices)
    simulator = TransitionSimulator(model, transitions)
    late = replace(model, transitions=transitions)
    for plan, row in enumerate(choices.tolist()):
        run = simulator.run(model.clocked.clocks(row))
        assert batch.start_s[plan] == pytest.approx(run.start_s)
        assert batch.duration_s[plan] == pytest.approx(run.duration_s)
        assert batch.energy_j[plan] == pytest.approx(run.energy_j)
        assert batch.iteration_time_s[plan] == pytest.approx(run.end_s + model.dag.tail_s)
        if not model.schedule.is_periodic:
            in_all = (batch.iteration_time_s[plan], batch.total_energy_j[plan])
            assert in_all == pytest.approx(time_and_energy(late, row))


def test_each_plan_may_have_a_delay_of_its_own() -> None:
    model = model_of(equal_profile(1), 2)
    batch = TransitionBatch(model, times(*[250.0] * 6))
    run = batch.run(
        np.array([[0, 1, 0, 1]] * 3),
        up_s=np.array([0.0, 0.25, 3.0]),
        down_s=np.array([0.0, 0.25, 3]),
    )
    assert run.iteration_time_s == pytest.approx([1 + 2.5 + 1 + 2.5, 6.925, 1 + 2 + 1 + 2.4])


@given(st.data(), st.integers(0, 2**16))
def test_with_exact_delays_the_bound_is_the_time(data: st.DataObject, seed: int) -> None:
    context = data.draw(any_contexts(shape := data.draw(any_shapes(3, 4))))
    model = build_model(context.profile, make_schedule(shape[0], context), [7.0])
    up_ms, down_ms = data.draw(st.tuples(st.floats(0, 200), st.floats(0, 200)))
    batch = TransitionBatch(model, times(up_ms, up_ms, up_ms, down_ms, down_ms, down_ms))
    choices = random_choices(model, Random(seed), 2)
    assert batch.latest_time_s(choices) == pytest.approx(batch.run(choices).iteration_time_s)


def random_model(draws: Random) -> PipelineModel:
    """Return up to 4 stages and 6 microbatches under 1F1B, instructions of 5 to 100 ms."""
    longest_s = draws.choice([0.02, 0.1])
    stages = [
        {
            kind: [
                (mhz, time_s * (1410 / mhz) ** draws.uniform(-0.1, 1), 10 * mhz / 1410)
                for mhz in CLOCKS_MHZ
            ]
            for kind, time_s in zip(
                (F, B), (draws.uniform(0.005, longest_s) for _ in "FB"), strict=True
            )
        }
        for _ in range(draws.randint(1, 4))
    ]
    return model_of(profile_of(stages), draws.randint(1, 6))


def drawn_delays_s(
    model: PipelineModel, clocks: list[int], transitions: ClockTransitions, draws: Random
) -> Iterator[list[float]]:
    """Yield delays of each request in s: the four corners, any corners, and anything between."""
    simulator = TransitionSimulator(model, times(1, 1, 1, 2, 2, 2))
    ways = simulator.delays_s(clocks)  # 1 ms up, 2 ms down
    up_s = (transitions.up_p5_s, transitions.up_p95_s)
    down_s = (transitions.down_p5_s, transitions.down_p95_s)
    for up_one_s, down_one_s in itertools.product(up_s, down_s):
        yield [{0.001: up_one_s, 0.002: down_one_s}.get(way, 0.0) for way in ways]
    for _ in range(8):
        ranges = [{0.001: up_s, 0.002: down_s}.get(way, (0.0, 0.0)) for way in ways]
        yield [draws.choice(one) for one in ranges]
        yield [draws.uniform(*one) for one in ranges]


@pytest.mark.parametrize("starts_settled", [True, False])
def test_no_delays_of_a_range_make_an_iteration_longer_than_its_bound(
    starts_settled: bool,
) -> None:
    draws = Random(20)
    looseness: list[float] = []
    for _ in range(150):
        model = random_model(draws).with_delays(
            draws.choice([0.0, 0.004]), (draws.choice([0.0, 0.003]),)
        )
        ranges_ms = [sorted(draws.uniform(3, 12) for _ in range(3)) for _ in range(2)]
        transitions = times(*ranges_ms[0], *ranges_ms[1], starts_settled=starts_settled)
        [row] = random_choices(model, draws, 1).tolist()
        clocks, simulator = model.clocked.clocks(row), TransitionSimulator(model, transitions)
        [latest_s] = TransitionBatch(model, transitions).latest_time_s(np.array([row]))
        ends_s = [
            simulator.run(clocks, delays_s).end_s + model.dag.tail_s
            for delays_s in drawn_delays_s(model, clocks, transitions, draws)
        ]
        assert max(ends_s) <= latest_s * (1 + 1e-9)
        looseness.append(latest_s / max(ends_s) - 1)
    assert np.mean(looseness) < 0.01


@pytest.mark.parametrize("starts_settled", [True, False])
def test_delays_shorter_than_all_instructions_are_run_as_any_others(
    starts_settled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    draws = Random(7)
    for _ in range(20):
        model = random_model(draws).with_delays(0.002, (0.003,))
        shortest_ms = 1e3 * min(point.time_s for points in model.points for point in points)
        ranges_ms = [sorted(draws.uniform(0, 0.99) * shortest_ms for _ in "abc") for _ in "ud"]
        batch = TransitionBatch(
            model, times(*ranges_ms[0], *ranges_ms[1], starts_settled=starts_settled)
        )
        choices = random_choices(model, draws, 4)
        for is_first in (True, False):
            monkeypatch.setattr(InstructionRows, "most_within", lambda *_: 0)
            short, short_s = batch.run(choices, is_first=is_first), batch.latest_time_s(choices)
            monkeypatch.setattr(InstructionRows, "most_within", lambda *_: 2)
            long, long_s = batch.run(choices, is_first=is_first), batch.latest_time_s(choices)
            assert short.start_s == pytest.approx(long.start_s)
            assert short.duration_s == pytest.approx(long.duration_s)
            assert short.energy_j == pytest.approx(long.energy_j)
            assert short_s == pytest.approx(long_s)


def test_a_late_change_down_makes_an_iteration_shorter() -> None:
    """So neither the shortest nor the longest delays alone are the worst."""
    model = example_model(8)
    choices = np.array([[8 if position % 3 else 0 for position in range(model.dag.num_nodes)]])
    batch = TransitionBatch(model, times(3, 5, 6.5, 3, 5, 6.5))
    at_corner_s = {
        (up_s, down_s): batch.run(choices, up_s=up_s, down_s=down_s).iteration_time_s[0]
        for up_s in (0.003, 0.0065)
        for down_s in (0.003, 0.0065)
    }
    assert max(at_corner_s, key=at_corner_s.__getitem__) == (0.0065, 0.003)
    assert at_corner_s[0.0065, 0.003] <= batch.latest_time_s(choices)[0]


def test_a_plan_runs_alike_whatever_plans_are_beside_it() -> None:
    """Some iterations alternate: one that begins late ends earlier, and the next is in time."""
    points = [(765, 1 / 32, 1.0), (750, 5 / 64, 1.0)]
    profile = profile_of([{F: points, B: points}] * 2)
    schedule = make_schedule("pipedream", context_of(profile, 3))
    model = build_model(profile, schedule, [7.0])
    transitions = times(*[125.0] * 3, *[122.0] * 3, starts_settled=False)
    choices = every_choice(model)
    batch = TransitionBatch(model, transitions).run(choices)
    for plan, row in enumerate(choices.tolist()):
        run = TransitionSimulator(model, transitions).run(model.clocked.clocks(row))
        assert batch.start_s[plan] == pytest.approx(run.start_s)
        assert batch.duration_s[plan] == pytest.approx(run.duration_s)
