"""Iterations whose clocks change late: by hand, without delays, and against the emulated GPU."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.planning.tiny_pipelines import (
    any_contexts,
    any_shapes,
    assigned_models,
    equal_profile,
    model_of,
)

from flyball_client.gpu.emulated_execution import EmulatedGpuSettings, Execution
from flyball_profiles.clock_transitions import ClockTransitions
from flyball_profiles.stage_profile import OperatingPoint
from flyball_server.planning.model.clocked_instructions import ClockRequest
from flyball_server.planning.model.dag import NONE
from flyball_server.planning.model.pipeline_model import PipelineModel, build_model
from flyball_server.planning.model.simulator import iteration_energy_j, simulate, time_and_energy
from flyball_server.planning.model.transitions import TransitionRun, TransitionSimulator
from flyball_server.planning.schedules import make_schedule

HIGH, LOW = 0, 1  # 1410 and 1000 MHz: forward 1 and 1.25 s, backward 2 and 2.5 s


def times(
    up_s: float, down_s: float | None = None, *, starts_settled: bool = True
) -> ClockTransitions:
    """Return one delay up and one down."""
    down_s = up_s if down_s is None else down_s
    return ClockTransitions(
        up_p5_s=up_s,
        up_p50_s=up_s,
        up_p95_s=up_s,
        down_p5_s=down_s,
        down_p50_s=down_s,
        down_p95_s=down_s,
        starts_settled=starts_settled,
    )


def run_of(
    num_stages: int,
    clocks: Sequence[int],
    transitions: ClockTransitions,
    requests: dict[int, ClockRequest] | None = None,
) -> TransitionRun:
    """Run two microbatches under 1F1B; of one stage F0 B0 F1 B1."""
    model = model_of(equal_profile(num_stages), 2)
    assert model.clocked.clocks(clocks) == list(clocks)
    return TransitionSimulator(model.with_requests(requests or {}), transitions).run(clocks)


def test_a_change_in_the_middle_of_an_instruction() -> None:
    run = run_of(1, [HIGH, LOW, HIGH, LOW], times(0.25))
    # B: an eighth of its 2 s at the clock before; F: a fifth of its 1.25 s.
    assert run.duration_s == [1.0, 0.25 + 7 / 8 * 2.5, 0.25 + 4 / 5 * 1.0, 0.25 + 7 / 8 * 2.5]
    assert run.energy_j == pytest.approx([10.0, 30 / 8 + 20 * 7 / 8, 8 / 5 + 10 * 4 / 5, 21.25])
    assert run.late_s == pytest.approx([0.0, 0.25, 0.25, 0.25])
    assert run.in_force == [[(0.0, HIGH), (1.25, LOW), (3.6875, HIGH), (4.7375, LOW)]]


def test_the_first_clock_is_charged_where_nothing_covers_it() -> None:
    run = run_of(1, [HIGH, LOW, HIGH, LOW], times(0.25, starts_settled=False))
    assert run.duration_s[0] == pytest.approx(0.25 + 4 / 5 * 1.0)
    assert run.in_force[0][1] == (0.25, HIGH)
    assert run.end_s == pytest.approx(6.975)
    # Of two stages, the second's forward waits for the first's: that covers the change.
    on_two = [HIGH, HIGH, HIGH, HIGH, HIGH, LOW, LOW, LOW]
    run = run_of(2, on_two, times(0.25, starts_settled=False))
    assert (run.start_s[4], run.duration_s[4]) == (1.0, 1.0)


def test_waiting_until_the_slowest_pipeline_has_finished_covers_the_first_clock() -> None:
    model = model_of(equal_profile(1), 2)
    model = replace(model, transitions=times(0.25, starts_settled=False))
    later_j = iteration_energy_j(model, [HIGH, LOW, HIGH, LOW], 7.5)
    # F0 is whole at its clock, the others are as by hand above; 5 W while it waits.
    assert later_j == pytest.approx(10 + 21.25 + 9.6 + 21.25 + 5 * (7.5 - 6.925))


def test_a_change_is_hidden_by_waiting() -> None:
    # Stage 0: F0 and F1 at 1000 MHz to 2.5 s; B0 comes at 4.25 s, after F0 and B0 of stage 1.
    run = run_of(2, [LOW, LOW, HIGH, HIGH, HIGH, HIGH, HIGH, HIGH], times(1.75))
    assert (run.start_s[2], run.duration_s[2], run.energy_j[2]) == (4.25, 2.0, 30.0)
    late = run_of(2, [LOW, LOW, HIGH, HIGH, HIGH, HIGH, HIGH, HIGH], times(2.0))
    assert late.duration_s[2] == pytest.approx(0.25 + 0.9 * 2.0)


def test_changes_overlap_where_the_delay_is_longer_than_an_instruction() -> None:
    run = run_of(1, [HIGH, LOW, HIGH, LOW], times(3.0))
    # Down from 4 s on, for F1's sake up from 6 s on, down from 7 s on: B1 gets 2 s of the first.
    assert run.duration_s == pytest.approx([1.0, 2.0, 1.0, 2.0 + 0.2 * 2.0])
    assert run.energy_j == pytest.approx([10.0, 30.0, 10.0, 0.8 * 20 + 0.2 * 30])
    assert run.late_s == pytest.approx([0.0, 2.0, 0.0, 0.4])


def test_a_change_that_a_later_request_overtakes_is_dropped() -> None:
    # B0 asks for 1410 MHz at 1.25 s, in force at 4.25 s; F1 for 1000 MHz at 3.75 s, at 4 s.
    run = run_of(1, [LOW, HIGH, LOW, LOW], times(3.0, 0.25))
    assert run.duration_s == [1.25, 2.5, 1.25, 2.5]
    assert run.in_force == [[(0.0, LOW), (4.0, LOW)]]
    assert run.late_s == [0.0, 2.5, 0.0, 0.0]


def test_an_early_request_takes_effect_in_the_instruction_before() -> None:
    early = {1: ClockRequest(after=0, offset_s=0.5)}
    run = run_of(1, [HIGH, LOW, LOW, LOW], times(0.25), early)
    # F0 runs three quarters of its 1 s at 1410 MHz.
    assert run.duration_s == pytest.approx([0.75 + 0.25 * 1.25, 2.5, 1.25, 2.5])
    later = {3: ClockRequest(after=1, offset_s=2.25)}
    run = run_of(1, [HIGH, HIGH, HIGH, LOW], times(0.25), later)
    assert run.duration_s == pytest.approx([1.0, 2.0, 0.5 + 0.5 * 1.25, 2.5])


@pytest.mark.parametrize(("instruction", "after"), [(2, 2), (2, 3), (3, 0), (0, 2), (4, 3)])
def test_a_request_before_another_change_or_on_another_stage_is_refused(
    instruction: int, after: int
) -> None:
    request = {instruction: ClockRequest(after=after)}
    clocks = [HIGH, LOW, HIGH, LOW, HIGH, HIGH, HIGH, HIGH]
    with pytest.raises(ValueError, match=f"^instruction {instruction} cannot be requested after"):
        run_of(2, clocks, times(0.25), request)


def test_a_pipeline_that_never_flushes_changes_with_every_microbatch() -> None:
    model = replace(model_of(equal_profile(1), 3, "pipedream"), transitions=times(0.25))
    simulation = simulate(model, [HIGH, LOW])
    # The first forward has its clock already.
    assert simulation.busy_s == pytest.approx((1.0 + 2 * 1.05, 3 * 2.4375))
    model = replace(model, transitions=times(0.25, starts_settled=False))
    assert simulate(model, [HIGH, LOW]).busy_s == pytest.approx((3 * 1.05, 3 * 2.4375))
    assert simulate(model, [LOW, LOW]).busy_s == pytest.approx((3.75, 7.5))


def test_slack_and_critical_path_are_of_the_late_iteration() -> None:
    model = model_of(equal_profile(2), 2)
    assignment = [HIGH, HIGH, HIGH, HIGH, HIGH, HIGH, LOW, HIGH]
    late = simulate(replace(model, transitions=times(0.25)), assignment)
    assert late.busy_s == pytest.approx((1, 1, 2, 2, 1, 2, 1.1875, 2.05))
    assert late.iteration_time_s == pytest.approx(1 + 1 + 2 + 1.1875 + 2.05 + 2)
    assert late.critical_path == (0, 4, 5, 6, 7, 3)
    assert late.float_s[2] == pytest.approx(1.2375)


@given(assigned_models(), st.booleans())
def test_without_delays_it_is_the_simulator(
    drawn: tuple[PipelineModel, list[int]], starts_settled: bool
) -> None:
    model, assignment = drawn
    at_once = replace(model, transitions=times(0.0, starts_settled=starts_settled))
    late = simulate(at_once, assignment)
    assert replace(late, in_force=()) == simulate(model, assignment)
    assert time_and_energy(at_once, assignment) == time_and_energy(model, assignment)


@given(st.data())
def test_without_delays_every_schedule_takes_what_it_takes(data: st.DataObject) -> None:
    context = data.draw(any_contexts(shape := data.draw(any_shapes(3, 4))))
    model = build_model(context.profile, make_schedule(shape[0], context), [7.0])
    assignment = [data.draw(st.integers(0, len(points) - 1)) for points in model.points]
    late = replace(model, transitions=times(0.0))
    assert time_and_energy(late, assignment) == pytest.approx(time_and_energy(model, assignment))


def emulated_ends(
    model: PipelineModel, run: TransitionRun, clocks: Sequence[int]
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
        points, dict.fromkeys(clocks_mhz, 0.0), EmulatedGpuSettings(), counter_period_s=1
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
    model = build_model(context.profile, make_schedule("1f1b", context), [7.0])
    choices = [data.draw(st.integers(0, len(points) - 1)) for points in model.points]
    clocks = model.clocked.clocks(choices)
    delays_s = data.draw(st.lists(st.floats(0, 2), min_size=len(clocks), max_size=len(clocks)))
    run = TransitionSimulator(model, times(0.1)).run(clocks, delays_s)
    for node, (end_s, energy_j) in enumerate(emulated_ends(model, run, clocks)):
        assert run.finish_s[node] == pytest.approx(end_s)
        assert run.energy_j[node] == pytest.approx(energy_j)


@given(assigned_models(), st.integers(0, 2**16))
def test_every_window_lies_between_the_fastest_and_the_slowest_clock(
    drawn: tuple[PipelineModel, list[int]], seed: int
) -> None:
    model, assignment = drawn
    clocked, draws = model.clocked, Random(seed)
    clocks = clocked.clocks(assignment)
    delays_s = [draws.uniform(0, 0.3) for _ in clocks]
    run = TransitionSimulator(model, times(0.1)).run(clocks, delays_s)
    for instruction, group in enumerate(clocked.group):
        fastest_s, slowest_s = min(clocked.times_s[group]), max(clocked.times_s[group])
        assert fastest_s * (1 - 1e-9) <= run.duration_s[instruction] <= slowest_s * (1 + 1e-9)
        for before in (clocked.dag.order_predecessor, clocked.dag.data_predecessor):
            if before[instruction] != NONE:
                assert run.finish_s[before[instruction]] <= run.start_s[instruction]
