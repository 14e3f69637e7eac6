"""Delays from the times of single instructions: tail, transfers, jitter and clock changes."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from tests.planner.running import two_stages

from flyball_pipeline.dag import build_dag
from flyball_pipeline.instruction import InstructionKind
from flyball_server.planning.model.array_dag import (
    ArrayDag,
    FloatArray,
    array_dag,
    earliest_finishes_s,
)
from flyball_server.planning.scheduling import ScheduleContext, schedule_for
from flyball_server.profiling.change_delays import TimedStage, measured_change_delays
from flyball_server.profiling.iteration_delays import (
    NUM_ERRORS,
    TimedSteps,
    measured_delays,
    measured_jitter,
)

NUM_STEPS = 12
TAIL_S, HOP_S = 0.03, 0.008


def one_f_one_b(num_microbatches: int = 4) -> ArrayDag:
    context = ScheduleContext(profile=two_stages(), num_microbatches=num_microbatches)
    return array_dag(build_dag(schedule_for("1f1b", context)))


def timed(
    dag: ArrayDag,
    *,
    tail_s: float = TAIL_S,
    hop_s: float = HOP_S,
    noise: float = 0.0,
    skew_s: float = 0.0,
    num_pipelines: int = 1,
) -> TimedSteps:
    """Steps as two ranks measure them, the second one's clock being ahead by `skew_s`."""
    generator = np.random.default_rng(7)
    kinds = [instruction.kind for instruction in dag.instruction]
    profiled_s = np.array([0.1 if kind == InstructionKind.FORWARD else 0.2 for kind in kinds])
    shape = (dag.num_nodes, NUM_STEPS * num_pipelines)
    compute_s = profiled_s[:, None] * generator.normal(1.0, noise, shape)
    finish_s = earliest_finishes_s(dag.with_delays(0.0, (hop_s,)), compute_s)
    ahead_s = np.where(np.array(dag.stage) == 1, skew_s, 0.0)[:, None]

    def by_pipeline(values: FloatArray) -> FloatArray:
        return values.reshape(dag.num_nodes, NUM_STEPS, num_pipelines)

    ends_s = by_pipeline(finish_s).max(axis=(0, 2))
    return TimedSteps(
        iteration_time_s=ends_s + tail_s,
        begin_s=by_pipeline(finish_s - compute_s + ahead_s),
        compute_s=by_pipeline(compute_s),
    )


@pytest.mark.parametrize(
    ("noise", "skew_s", "num_pipelines"), [(0.0, 0.0, 1), (0.0, 0.02, 3), (0.02, -0.02, 3)]
)
def test_tail_and_transfer_are_found_whatever_the_ranks_clocks(
    noise: float, skew_s: float, num_pipelines: int
) -> None:
    dag = one_f_one_b()
    steps = timed(dag, noise=noise, skew_s=skew_s, num_pipelines=num_pipelines)
    delays = measured_delays(dag, steps)
    assert delays.tail_s == pytest.approx(TAIL_S, rel=0.02)
    assert delays.transfer_s == pytest.approx((HOP_S,), rel=0.02)


def test_steps_that_are_slow_as_a_whole_change_nothing() -> None:
    dag = one_f_one_b()
    steps = timed(dag)
    steps.iteration_time_s[2] += 5.0
    steps.begin_s[:, 4] += np.where(np.array(dag.stage) == 1, 0.3, 0.0)[:, None]
    delays = measured_delays(dag, steps)
    assert (delays.tail_s, delays.transfer_s) == (TAIL_S, (HOP_S,))


@pytest.mark.parametrize(("num_errors", "is_certain"), [(0.9, False), (1.1, True)])
def test_a_tail_is_certain_beyond_some_standard_errors_of_the_median(
    num_errors: float, is_certain: bool
) -> None:
    # Half of the steps are 20 ms longer, half shorter: that is their median absolute deviation.
    error_s = math.sqrt(math.pi / 2) * 1.4826 * 0.02 / math.sqrt(NUM_STEPS)
    tail_s = num_errors * NUM_ERRORS * error_s
    steps = timed(one_f_one_b(), tail_s=tail_s, hop_s=0.0)
    steps.iteration_time_s[:] += np.tile([-0.02, 0.02], NUM_STEPS // 2)
    delays = measured_delays(one_f_one_b(), steps)
    assert delays.tail_s == (pytest.approx(tail_s, abs=1e-6) if is_certain else 0.0)


def test_with_given_transfers_the_rest_is_the_tail() -> None:
    dag = one_f_one_b()
    steps = timed(dag)
    delays = measured_delays(dag, steps, (HOP_S / 2,))
    ends_s = [
        float(earliest_finishes_s(dag.with_delays(0.0, (hop_s,)), steps.compute_s[:, 0]).max())
        for hop_s in (HOP_S, HOP_S / 2)
    ]
    assert delays.transfer_s == (HOP_S / 2,)
    assert delays.tail_s == pytest.approx(TAIL_S + ends_s[0] - ends_s[1])


def test_one_stage_has_a_tail_alone() -> None:
    context = ScheduleContext(profile=two_stages().select_stages((0,)), num_microbatches=2)
    dag = array_dag(build_dag(schedule_for("1f1b", context)))
    compute_s = np.full((dag.num_nodes, NUM_STEPS, 1), 0.5)
    steps = TimedSteps(
        iteration_time_s=np.full(NUM_STEPS, 0.5 * dag.num_nodes + 0.1),
        begin_s=np.zeros_like(compute_s),
        compute_s=compute_s,
    )
    delays = measured_delays(dag, steps)
    assert delays.tail_s == pytest.approx(0.1)
    assert delays.transfer_s == ()


@pytest.mark.parametrize("jitter", [0.0, 0.003, 0.01, 0.05])
def test_jitter_is_what_varies_between_the_instructions_of_a_step(jitter: float) -> None:
    generator = np.random.default_rng(11)
    of_instructions = generator.uniform(0.05, 0.15, (24, 1, 1))
    of_steps = generator.uniform(0.9, 1.1, (1, NUM_STEPS, 1))
    times_s = of_instructions * of_steps * generator.normal(1.0, jitter, (24, NUM_STEPS, 1))
    times_s[3, 5] *= 4  # something else ran
    assert measured_jitter(times_s) == pytest.approx(jitter, rel=0.15)


def test_two_steps_show_jitter_and_a_single_one_none() -> None:
    # Differences of -2, 0 and 2 %, whose own median takes a third of their variance.
    times_s = np.array([[1.0, 0.98], [1.0, 1.0], [1.0, 1.02]])[:, :, None]
    assert measured_jitter(times_s) == pytest.approx(1.4826 * 0.02 / (2 * 2 / 3) ** 0.5, rel=0.02)
    assert measured_jitter(np.full((4, 1, 1), 0.1)) == 0.0


NUM_RUNS = 12
UP_S, DOWN_S = 0.012, 0.007
# Of a forward and a backward at the higher and the lower clock, s.
FORWARD_S, BACKWARD_S = (0.05, 0.07), (0.09, 0.12)
HIGH, LOW = 0, 1
# Kinds and clocks of a stage; it waits before every third instruction.
ORDER = [
    *(("F", LOW), ("F", HIGH), ("F", HIGH), ("F", LOW), ("F", LOW), ("B", HIGH)),
    *(("B", HIGH), ("B", LOW), ("B", LOW), ("F", HIGH), ("B", LOW), ("F", LOW)),
] * 2
WAIT_S = 0.06


def ran(
    *,
    order: list[tuple[str, int]] = ORDER,
    early_s: float | None = None,
    noise: float = 0.0,
    factor: Callable[[str, int], float] = lambda kind, clock: 1.0,
    wait_s: float = WAIT_S,
) -> TimedStage:
    """A stage in small time steps of its own physics; no formula of the planner's is used.

    Args:
        order: kinds and clocks.
        early_s: lead of the requests ahead of the profiled end of the instruction before; None:
            they are made at its end.
        noise: standard deviation of an instruction's time, a share.
        factor: measured over profiled time of a kind at a clock.
        wait_s: idle time before every third instruction.
    """
    generator = np.random.default_rng(5)
    step_s = 4e-5
    times_s = np.array([FORWARD_S if kind == "F" else BACKWARD_S for kind, _ in order])
    requests: dict[int, tuple[int, float]] = {}
    if early_s is not None:
        requests = {
            position: (position - 1, times_s[position - 1][order[position - 1][1]] - early_s)
            for position in range(1, len(order))
            if order[position][1] != order[position - 1][1]
        }
    begin_s, compute_s = np.empty((2, len(order), NUM_RUNS))
    for run in range(NUM_RUNS):
        now_s, clock, effects = 0.0, order[0][1], list[tuple[float, int]]()
        for position, (kind, asked) in enumerate(order):
            changes = position > 0 and asked != order[position - 1][1]
            delay_s = (UP_S if asked == HIGH else DOWN_S) * generator.lognormal(0.0, 0.1)
            if changes and position not in requests:
                effects.append((now_s + delay_s, asked))
            now_s += wait_s if position % 3 == 0 else 0.0
            begin_s[position, run] = now_s
            if position + 1 in requests:
                later = order[position + 1][1]
                late_s = (UP_S if later == HIGH else DOWN_S) * generator.lognormal(0.0, 0.1)
                effects.append((now_s + requests[position + 1][1] + late_s, later))
            slower, left = generator.normal(1.0, noise), 1.0
            while left > 0:
                while effects and effects[0][0] <= now_s:
                    clock = effects.pop(0)[1]
                left -= step_s / (times_s[position][clock] * slower * factor(kind, clock))
                now_s += step_s
            now_s += left * times_s[position][clock]
            compute_s[position, run] = now_s - begin_s[position, run]
    return TimedStage(
        times_s=times_s,
        clocks=tuple(clock for _, clock in order),
        kinds=tuple(kind for kind, _ in order),
        requests=requests,
        begin_s=begin_s,
        compute_s=compute_s,
    )


@pytest.mark.parametrize("early_s", [None, 0.02])
@pytest.mark.parametrize("noise", [0.0, 0.003])
def test_the_delays_of_both_directions_are_found(early_s: float | None, noise: float) -> None:
    found = measured_change_delays([ran(early_s=early_s, noise=noise)])
    assert found.up_s == pytest.approx(UP_S, rel=0.1)
    assert found.down_s == pytest.approx(DOWN_S, rel=0.15)


def test_times_that_are_not_as_profiled_hide_no_delay() -> None:
    """Each kind and clock is off by another share, up to 4 %."""
    shares = {("F", HIGH): 1.04, ("F", LOW): 0.98, ("B", HIGH): 0.97, ("B", LOW): 1.03}
    found = measured_change_delays([ran(factor=lambda kind, clock: shares[kind, clock])])
    assert found.up_s == pytest.approx(UP_S, rel=0.15)
    assert found.down_s == pytest.approx(DOWN_S, rel=0.15)


def test_delays_that_waiting_covers_are_not_certain() -> None:
    always = [("F", LOW if position // 3 % 2 else HIGH) for position in range(24)]
    found = measured_change_delays([ran(order=always, noise=0.003)])
    assert (found.up_s, found.down_s) == (None, None)


def test_instructions_that_all_have_a_change_show_no_delay() -> None:
    """Without one of its like to compare with, a longer time may be the profile's error."""
    every = [("B", LOW), *[("F", HIGH), ("F", LOW)] * 12]
    found = measured_change_delays([ran(order=every, wait_s=0.0, noise=0.003)])
    assert (found.up_s, found.down_s) == (None, None)


def test_much_noise_and_no_changes_leave_the_delays_uncertain() -> None:
    found = measured_change_delays([ran(noise=0.1)])
    assert (found.up_s, found.down_s) == (None, None)
    still = [("F", HIGH), ("B", HIGH)] * 6
    found = measured_change_delays([ran(order=still)])
    assert (found.up_s, found.down_s) == (None, None)
