"""Finding a clock change in loops: steps, ramps and stalls whose moments are known."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flyball_client.profiling.transitions.detection import Baseline, Loop, find_change

LOOP_S = 1e-4
LOW = Baseline(rate=1.0e9, tolerance=3e6)
HIGH = Baseline(rate=1.4e9, tolerance=4e6)
WORK = LOOP_S * HIGH.rate
# Accuracy of summing small steps.
EXACT_S = 1e-9


def loops_of(work_until: Callable[[float], float], end_s: float) -> list[Loop]:
    """Loops of equal work, of a rising function of the work done until a moment in s."""
    moments_s = [0.0]
    while moments_s[-1] < end_s:
        wanted = len(moments_s) * WORK
        low_s, high_s = moments_s[-1], moments_s[-1] + 1.0
        for _ in range(60):
            middle_s = (low_s + high_s) / 2
            low_s, high_s = (
                (low_s, middle_s) if work_until(middle_s) > wanted else (middle_s, high_s)
            )
        moments_s.append(high_s)
    return [Loop(begin_s, end_s, WORK) for begin_s, end_s in pairwise(moments_s)]


def step(before: Baseline, after: Baseline, at_s: float, *, stall_s: float = 0.0) -> list[Loop]:
    """Loops around a change at a moment, with no progress for a time from then on."""

    def work_until(moment_s: float) -> float:
        done = before.rate * min(moment_s, at_s)
        return done + after.rate * max(0.0, moment_s - at_s - stall_s)

    return loops_of(work_until, at_s + stall_s + 0.003)


@settings(max_examples=25)
@given(is_up=st.booleans(), requested_s=st.floats(0.0, 0.01), delay_s=st.floats(0.0, 0.02))
def test_a_step_is_found_within_its_loop(
    *, is_up: bool, requested_s: float, delay_s: float
) -> None:
    before, after = (LOW, HIGH) if is_up else (HIGH, LOW)
    found = find_change(step(before, after, requested_s + delay_s), requested_s, before, after)
    assert found is not None
    # Within a band's share of a loop: a change at its very edge is not seen in its rate.
    assert found.completion_s == pytest.approx(delay_s, abs=0.02 * LOOP_S)
    assert found.onset_s == pytest.approx(delay_s, abs=0.02 * LOOP_S)


def test_a_gradual_change_has_an_onset_and_a_completion() -> None:
    """From 5 ms to 8 ms the rate rises evenly; the bands are 0.3 % of it."""
    begin_s, end_s = 0.005, 0.008

    def work_until(moment_s: float) -> float:
        rising_s = min(max(moment_s - begin_s, 0.0), end_s - begin_s)
        slope = (HIGH.rate - LOW.rate) / (end_s - begin_s)
        after_s = max(0.0, moment_s - end_s)
        return LOW.rate * (moment_s - after_s) + slope * rising_s**2 / 2 + HIGH.rate * after_s

    found = find_change(loops_of(work_until, 0.012), 0.001, LOW, HIGH)
    assert found is not None
    # A loop of which the most is as before is not told from those before.
    assert found.onset_s == pytest.approx(0.004, abs=2 * LOOP_S)
    assert found.completion_s == pytest.approx(0.007, abs=2 * LOOP_S)


@pytest.mark.parametrize(("before", "after"), [(LOW, HIGH), (HIGH, LOW)])
@pytest.mark.parametrize("stall_s", [0.0007, 0.005])
def test_a_stall_lies_between_onset_and_completion(
    before: Baseline, after: Baseline, stall_s: float
) -> None:
    found = find_change(step(before, after, 0.006, stall_s=stall_s), 0.001, before, after)
    assert found is not None
    assert found.onset_s == pytest.approx(0.005, abs=1.5 * LOOP_S)
    assert found.completion_s == pytest.approx(0.005 + stall_s, abs=1.5 * LOOP_S)


def with_delayed_loop(loops: Sequence[Loop], place: int, late_s: float) -> list[Loop]:
    """The same loops, of which one was interrupted and all later ones come later."""
    return [
        *loops[:place],
        loops[place]._replace(end_s=loops[place].end_s + late_s),
        *(
            Loop(begin_s + late_s, end_s + late_s, work)
            for begin_s, end_s, work in loops[place + 1 :]
        ),
    ]


def test_single_interrupted_loops_are_neither_onset_nor_completion() -> None:
    loops = step(LOW, HIGH, 0.006)
    late_s = 0.3 * LOOP_S
    disturbed = with_delayed_loop(with_delayed_loop(loops, len(loops) - 4, late_s), 20, late_s)
    found = find_change(disturbed, 0.001, LOW, HIGH)
    assert found is not None
    assert found.onset_s == pytest.approx(0.005 + late_s, abs=EXACT_S)
    assert found.completion_s == pytest.approx(0.005 + late_s, abs=EXACT_S)


def test_a_change_that_does_not_come_or_just_came_is_not_found() -> None:
    loops = step(LOW, HIGH, 0.006)
    change = next(place for place, loop in enumerate(loops) if loop.end_s > 0.006)
    assert find_change(loops[: change + 1], 0.001, LOW, HIGH) is None
    assert find_change(loops[: change + 4], 0.001, LOW, HIGH) is None
    assert find_change([], 0.001, LOW, HIGH) is None


def test_a_gpu_that_computes_only_after_the_change_bounds_the_delay() -> None:
    loops = [loop for loop in step(LOW, HIGH, 0.002) if loop.begin_s > 0.003]
    found = find_change(loops, 0.001, LOW, HIGH)
    assert found is not None
    assert found.onset_s == found.completion_s == pytest.approx(0.002, abs=LOOP_S)


def test_a_baseline_is_the_median_and_has_the_noise_of_most_loops() -> None:
    loops = [Loop(0.0, LOOP_S * (1 + 0.01 * (place % 5 - 2)), WORK) for place in range(100)]
    loops[7] = Loop(0.0, 1.0, WORK)
    baseline = Baseline.of(loops)
    assert baseline.rate == pytest.approx(HIGH.rate)
    # Deviations of 0, 1 and 2 %; their median is 1 %, of a normal distribution 1.48 % sigma.
    assert baseline.tolerance == pytest.approx(4 * 0.0148 * HIGH.rate, rel=0.02)
    assert not baseline.has(loops[7])
    assert not baseline.differs_from(replace(baseline, rate=0.9 * baseline.rate))
    assert baseline.differs_from(replace(baseline, rate=0.8 * baseline.rate))
    with pytest.raises(ValueError, match="19 loops are too few"):
        Baseline.of(loops[:19])
