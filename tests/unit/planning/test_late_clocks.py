"""Iterations whose clocks change late, one plan alone or many at once, and their latest times."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.planning.late_clock_oracle import run_one_by_one
from tests.unit.planning.tiny_pipelines import (
    B,
    F,
    any_contexts,
    assigned_any_models,
    context_of,
    delays,
    drawn_delays_s,
    equal_profile,
    every_choice,
    model_of,
    models_with_delays,
    profile_of,
    random_choices,
    request_delays_s,
)

from flyball_client.gpu.emulated.execution import EmulatedGpuSettings, Execution
from flyball_profiles.clock_transitions import ClockTransitions
from flyball_profiles.stage_profile import OperatingPoint
from flyball_server.planning.model.clocked_instructions import ClockRequest
from flyball_server.planning.model.early_requests import early_requests
from flyball_server.planning.model.late_clocks import LateClockSimulator, LateTrace
from flyball_server.planning.model.pipeline_model import PipelineModel, build_model
from flyball_server.planning.model.simulator import simulate, time_and_energy
from flyball_server.planning.scheduling import schedule_for

HIGH, LOW = 0, 1  # 1410 and 1000 MHz: forward 1 and 1.25 s, backward 2 and 2.5 s


def run_of(
    num_stages: int,
    clocks: Sequence[int],
    transitions: ClockTransitions,
    requests: dict[int, ClockRequest] | None = None,
) -> LateTrace:
    """Run two microbatches under 1F1B; of one stage F0 B0 F1 B1."""
    model = model_of(equal_profile(num_stages), 2)
    assert model.clocked.clocks(clocks) == list(clocks)
    return LateClockSimulator(model.with_requests(requests or {}), transitions).trace(clocks)


def test_a_change_in_the_middle_of_an_instruction() -> None:
    run = run_of(1, [HIGH, LOW, HIGH, LOW], delays(0.25))
    # B: an eighth of its 2 s at the clock before; F: a fifth of its 1.25 s.
    assert run.duration_s.tolist() == [
        1.0,
        0.25 + 7 / 8 * 2.5,
        0.25 + 4 / 5 * 1.0,
        0.25 + 7 / 8 * 2.5,
    ]
    assert run.energy_j == pytest.approx([10.0, 30 / 8 + 20 * 7 / 8, 8 / 5 + 10 * 4 / 5, 21.25])
    assert run.late_s == pytest.approx([0.0, 0.25, 0.25, 0.25])
    assert run.in_force == [[(0.0, HIGH), (1.25, LOW), (3.6875, HIGH), (4.7375, LOW)]]


@pytest.mark.parametrize(("instruction", "after"), [(2, 2), (2, 3), (3, 0), (0, 2), (4, 3)])
def test_a_request_before_another_change_or_on_another_stage_is_refused(
    instruction: int, after: int
) -> None:
    request = {instruction: ClockRequest(after=after)}
    clocks = [HIGH, LOW, HIGH, LOW, HIGH, HIGH, HIGH, HIGH]
    with pytest.raises(ValueError, match=f"^instruction {instruction} cannot be requested after"):
        run_of(2, clocks, delays(0.25), request)


def test_slack_and_critical_path_are_of_the_late_iteration() -> None:
    model = model_of(equal_profile(2), 2)
    assignment = [HIGH, HIGH, HIGH, HIGH, HIGH, HIGH, LOW, HIGH]
    late = simulate(replace(model, transitions=delays(0.25)), assignment)
    assert late.busy_s == pytest.approx((1, 1, 2, 2, 1, 2, 1.1875, 2.05))
    assert late.iteration_time_s == pytest.approx(1 + 1 + 2 + 1.1875 + 2.05 + 2)
    assert late.critical_path == (0, 4, 5, 6, 7, 3)
    assert late.float_s[2] == pytest.approx(1.2375)


@given(assigned_any_models(), st.booleans())
def test_without_delays_it_is_the_simulator(
    drawn: tuple[PipelineModel, list[int]], starts_settled: bool
) -> None:
    model, assignment = drawn
    at_once = replace(model, transitions=delays(0.0, starts_settled=starts_settled))
    figures = time_and_energy(model, assignment)
    assert time_and_energy(at_once, assignment) == pytest.approx(figures)
    if not model.schedule.is_periodic:
        late = simulate(at_once, assignment)
        assert replace(late, in_force=()) == simulate(model, assignment)


def emulated_ends(
    model: PipelineModel, run: LateTrace, clocks: Sequence[int]
) -> list[tuple[float, float]]:
    """Per instruction of a one-stage pipeline, its end in s and energy in J on the emulated GPU.

    It gets the run's changes at their times of effect.
    """
    [clocks_mhz] = model.clocked.clocks_mhz
    points = {
        (str(node), 0): {
            mhz: OperatingPoint(
                frequency_mhz=mhz,
                time_s=model.clocked.times_s[model.clocked.group[node]][clock],
                energy_j=model.clocked.energies_j[model.clocked.group[node]][clock],
            )
            for clock, mhz in enumerate(clocks_mhz)
        }
        for node in range(len(clocks))
    }
    gpu = Execution(
        points,
        EmulatedGpuSettings(),
        blocking_power_w=0.0,
        clock_mhz=clocks_mhz[0],
        counter_period_s=1,
    )
    gpu.set_changes([(effect_s, clocks_mhz[clock]) for effect_s, clock in run.in_force[0]])
    gpu.advance(0.0)
    found: list[tuple[float, float]] = []
    for node in range(len(clocks)):
        before_j = gpu.energy_j
        gpu.begin((str(node), 0), (1.0, 1.0))
        now_s = gpu.completion_s()
        while gpu.completed_s is None:  # the last step may be a rounding error short
            gpu.advance(now_s)
            now_s = math.nextafter(now_s, math.inf)
        found.append((gpu.completed_s, gpu.energy_j - before_j))
    return found


@given(st.data())
def test_it_is_what_the_emulated_gpu_does(data: st.DataObject) -> None:
    context = data.draw(any_contexts(("1f1b", 1, 1, data.draw(st.integers(1, 6)))))
    model = build_model(context.profile, schedule_for("1f1b", context), [7.0])
    choices = [data.draw(st.integers(0, len(points) - 1)) for points in model.points]
    clocks = model.clocked.clocks(choices)
    delays_s = data.draw(st.lists(st.floats(0, 2), min_size=len(clocks), max_size=len(clocks)))
    run = LateClockSimulator(model, delays(0.1)).trace(choices, delays_s)
    for node, (end_s, energy_j) in enumerate(emulated_ends(model, run, clocks)):
        assert run.start_s[node] + run.duration_s[node] == pytest.approx(end_s)
        assert run.energy_j[node] == pytest.approx(energy_j)


CLOCKS_MHZ = (1410, 1200, 1000, 800)


def some_delays(draws: Random, model: PipelineModel) -> ClockTransitions:
    """Return delays from shorter than all instructions to longer than an iteration."""
    times_s = [time_s for of_group in model.clocked.times_s for time_s in of_group]
    most_s = draws.choice([0.5 * min(times_s), max(times_s), 5 * max(times_s)])
    up, down = (drawn_range(draws, 0.0, min(most_s, 9.0)) for _ in range(2))
    return delays(up, down, starts_settled=draws.random() < 0.5)


@settings(max_examples=40)
@given(models_with_delays(), st.integers(0, 2**16))
def test_it_does_what_instructions_one_by_one_do(model: PipelineModel, seed: int) -> None:
    """With requests as instructions end, and ahead of that."""
    draws = Random(seed)
    late = replace(model, transitions=(transitions := some_delays(draws, model)))
    choices = random_choices(model, draws, 3)
    period_s = draws.choice([0.0, 20.0])
    many = LateClockSimulator(late).run(choices)
    for plan, row in enumerate(choices.tolist()):
        clocks = model.clocked.clocks(row)
        medians_s = request_delays_s(model, row, transitions.up_p50_s, transitions.down_p50_s)
        alone = run_one_by_one(late, transitions, row, medians_s)
        assert many.start_s[plan] == pytest.approx(alone.start_s)
        assert many.duration_s[plan] == pytest.approx(alone.duration_s)
        assert many.energy_j[plan] == pytest.approx(alone.energy_j)
        end_s = many.finish_s[plan].max() + model.dag.tail_s
        assert many.iteration_time_s[plan] == pytest.approx(end_s)
        if not model.schedule.is_periodic:
            in_all = (many.iteration_time_s[plan], many.total_energy_j[plan])
            assert in_all == pytest.approx(time_and_energy(late, row))
        early = late.with_requests(early_requests(model.clocked, clocks, transitions))
        for one in (late, early):
            delays_s = drawn_delays_s(model, row, transitions, draws)
            trace = LateClockSimulator(one).trace(row, delays_s, least_period_s=period_s)
            alone = run_one_by_one(one, transitions, row, delays_s, period_s)
            assert trace.start_s == pytest.approx(alone.start_s)
            assert trace.duration_s == pytest.approx(alone.duration_s)
            assert trace.energy_j == pytest.approx(alone.energy_j)
            assert trace.late_s == pytest.approx(alone.late_s, abs=1e-9)


@settings(max_examples=20)
@given(models_with_delays(), st.floats(0, 0.2))
def test_with_exact_delays_the_latest_time_is_the_time(model: PipelineModel, late_s: float) -> None:
    simulator = LateClockSimulator(model, ClockTransitions.exact(late_s))
    choices = random_choices(model, Random(3), 3)
    times_s = simulator.run(choices).iteration_time_s
    assert simulator.latest_time_s(choices) == pytest.approx(times_s)


def drawn_range(draws: Random, low_s: float, high_s: float) -> tuple[float, float, float]:
    """Percentiles p5, p50 and p95 of a delay."""
    p5_s, p50_s, p95_s = sorted(draws.uniform(low_s, high_s) for _ in range(3))
    return p5_s, p50_s, p95_s


def corners_s(
    model: PipelineModel, assignment: Sequence[int], transitions: ClockTransitions
) -> Iterator[list[float]]:
    """Delays of each request in s, those up and those down each at their p5 or p95."""
    for up_s in (transitions.up_p5_s, transitions.up_p95_s):
        for down_s in (transitions.down_p5_s, transitions.down_p95_s):
            yield request_delays_s(model, assignment, up_s, down_s)


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


@pytest.mark.parametrize("starts_settled", [True, False])
def test_no_delays_of_a_range_make_an_iteration_longer_than_its_bound(
    starts_settled: bool,
) -> None:
    draws = Random(20)
    looseness: list[float] = []
    for _ in range(30):
        model = random_model(draws).with_delays(
            draws.choice([0.0, 0.004]), (draws.choice([0.0, 0.003]),)
        )
        up, down = (drawn_range(draws, 0.003, 0.012) for _ in range(2))
        transitions = delays(up, down, starts_settled=starts_settled)
        [row] = random_choices(model, draws, 1).tolist()
        simulator = LateClockSimulator(model, transitions)
        [latest_s] = simulator.latest_time_s(np.array([row]))
        drawn = [
            *corners_s(model, row, transitions),
            *(drawn_delays_s(model, row, transitions, draws) for _ in range(60)),
        ]
        times_s = simulator.run(np.array([row] * len(drawn)), drawn).iteration_time_s
        assert times_s.max() <= latest_s * (1 + 1e-9)
        looseness.append(latest_s / times_s.max() - 1)
    assert np.mean(looseness) < 0.01


def test_a_plan_runs_alike_whatever_plans_are_beside_it() -> None:
    """Some iterations alternate: one that begins late ends earlier, and the next is in time."""
    points = [(765, 1 / 32, 1.0), (750, 5 / 64, 1.0)]
    profile = profile_of([{F: points, B: points}] * 2)
    schedule = schedule_for("pipedream", context_of(profile, 3))
    model = build_model(profile, schedule, [7.0])
    transitions = delays(0.125, 0.122, starts_settled=False)
    choices = every_choice(model)
    batch = LateClockSimulator(model, transitions).run(choices)
    for plan, row in enumerate(choices.tolist()):
        run = run_one_by_one(model, transitions, row, request_delays_s(model, row, 0.125, 0.122))
        assert batch.start_s[plan] == pytest.approx(run.start_s)
        assert batch.duration_s[plan] == pytest.approx(run.duration_s)
