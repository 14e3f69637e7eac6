"""Delays of clock changes from the times of single instructions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from flyball_server.profiling.change_delays import TimedStage, measured_change_delays

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
    step_s = 2e-5
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


def test_a_slow_rank_and_further_stages_change_nothing() -> None:
    stage = ran(noise=0.003)
    slow = replace(stage, begin_s=1.3 * stage.begin_s, compute_s=1.3 * stage.compute_s)
    found = measured_change_delays([slow, stage])
    assert found.up_s == pytest.approx(UP_S, rel=0.25)
    assert found.down_s == pytest.approx(DOWN_S, rel=0.25)
