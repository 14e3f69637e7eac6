"""Measured clock changes of emulated GPUs, which must be what their settings hide."""

from __future__ import annotations

import math
import tomllib
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from random import Random

import pytest

from flyball_client.gpu._base import ClockCall, ClockLimit
from flyball_client.gpu.emulated import DEFAULT_PHYSICS, EmulatedGpuSettings, RandomTime
from flyball_client.profiling.transitions import measurement
from flyball_client.profiling.transitions.bench import EmulatedLoops, TransitionBench
from flyball_client.profiling.transitions.detection import Loop
from flyball_client.profiling.transitions.measurement import (
    TransitionsFailedError,
    calls_queue,
    measure_transitions,
)
from flyball_profiles.clock_transitions import TRANSITIONS, transitions_of_table
from flyball_profiles.examples import load_example_profile
from flyball_profiles.measured_transitions import MeasuredTransitions, transitions_toml

PROFILE = load_example_profile()
SIGMAS_P95, SIGMAS_P99 = 1.6449, 2.3263
CallPair = tuple[ClockCall, ClockCall]


def measured(settings: EmulatedGpuSettings, *clocks_mhz: int) -> MeasuredTransitions:
    loops = EmulatedLoops(PROFILE, settings)
    with TransitionBench(loops.gpu, loops, other=loops.other, sleep=loops.sleep) as bench:
        found = measure_transitions(bench, clocks_mhz)
    # The clocks are restored.
    assert {gpu.requested_sm_clock_mhz for gpu in (loops.gpu, loops.other)} == {1410}
    return found


def percentile_s(hidden: RandomTime, sigmas: float) -> float:
    assert hidden.p99_s is not None
    return hidden.p50_s * math.exp(math.log(hidden.p99_s / hidden.p50_s) * sigmas / SIGMAS_P99)


@pytest.mark.slow
def test_the_delays_and_call_times_of_the_default_physics_are_found_within_10_percent() -> None:
    found, hidden = measured(DEFAULT_PHYSICS, 1410, 1230, 1050), DEFAULT_PHYSICS
    for name, of, percentiles in (
        ("up", hidden.delay_up, (5, 50, 95)),
        ("down", hidden.delay_down, (5, 50, 95)),
        ("call", hidden.call_time, (50, 95)),
    ):
        for number in percentiles:
            sigmas = {5: -SIGMAS_P95, 50: 0.0, 95: SIGMAS_P95}[number]
            value_s = getattr(found.times, f"{name}_p{number}_s")
            assert value_s == pytest.approx(percentile_s(of, sigmas), rel=0.1), (name, number)
    assert found.times.queues_in_node is True
    assert len(found.pairs) == 6
    for pair in found.pairs:
        of = hidden.delay_up if pair.from_mhz < pair.to_mhz else hidden.delay_down
        assert pair.completion.p50_s == pytest.approx(of.p50_s, rel=0.1)
        assert (pair.num, pair.num_left_out) == (30, 0)


def test_delays_of_a_fraction_of_a_millisecond_are_found() -> None:
    up_s, down_s = 0.0004, 0.002
    settings = replace(
        EmulatedGpuSettings.exact_delay(up_s), delay_down=RandomTime(p50_s=down_s), noise=0.005
    )
    found = measured(settings, 1410, 1050)
    up, down = found.pairs
    assert (up.from_mhz, up.to_mhz, down.to_mhz) == (1050, 1410, 1050)
    assert up.completion.p50_s == pytest.approx(up_s, abs=2e-5)
    assert down.onset.p50_s == pytest.approx(down_s, abs=2e-5)
    assert found.times.up_p50_s == up.completion.p50_s
    assert found.times.down_p50_s == down.onset.p50_s
    # Calls that take no time cannot be seen to queue.
    assert found.times.queues_in_node is None


CALL_S = 0.0045


def two_calls(chance: Random, *, sigma: float, late_s: float, is_queueing: bool) -> CallPair:
    """Two log-normal calls, of which the second begins up to `late_s` after the first."""
    first_s, second_s = (chance.lognormvariate(math.log(CALL_S), sigma) for _ in range(2))
    began_s = chance.uniform(0, late_s)
    returned_s = (max(began_s, first_s) if is_queueing else began_s) + second_s
    calls = (called(0.0, first_s), called(began_s, returned_s))
    return calls if first_s < returned_s else calls[::-1]


def called(began_s: float, returned_s: float) -> ClockCall:
    return ClockCall(sm_clock_mhz=1410, requested_s=began_s, began_s=began_s, returned_s=returned_s)


@pytest.mark.parametrize("is_queueing", [True, False])
@pytest.mark.parametrize("late_s", [0.0, 0.001, 0.003])
@pytest.mark.parametrize("sigma", [0.0, 0.42])
def test_calls_queue_where_the_last_one_waits_for_the_first(
    *, sigma: float, late_s: float, is_queueing: bool
) -> None:
    """0.42 is the deviation of the logarithm on a V100; of 200 checks 2 % may be wrong."""
    chance = Random(0)
    found = Counter(
        calls_queue(
            [
                two_calls(chance, sigma=sigma, late_s=late_s, is_queueing=is_queueing)
                for _ in range(19)
            ],
            CALL_S,
        )
        for _ in range(200)
    )
    assert found[is_queueing] >= 196


def test_calls_that_do_not_meet_cannot_be_seen_to_queue() -> None:
    assert calls_queue([(called(0.0, 0.004), called(0.003, 0.008))] * 19, 0.004) is None
    assert calls_queue([], 0.004) is None


def test_a_pair_within_the_noise_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measurement, "NUM_REPETITIONS", 5)
    found = measured(replace(EmulatedGpuSettings.exact_delay(0.005), noise=0.02), 1410, 1395, 900)
    assert {pair.from_mhz + pair.to_mhz for pair in found.pairs} == {1410 + 900, 1395 + 900}


class ScriptedBench(TransitionBench):
    """A GPU whose changes take the times of a list; the clocks are also its rates."""

    counts_cycles = False

    def __init__(self, delays_s: Sequence[float | None]) -> None:
        # To the lowest clock, to the highest, and back.
        self._delays_s = [*[0.005] * 3, *delays_s]
        self._mhz = 1410
        self._now_s = 0.0

    def run(self, time_s: float) -> tuple[tuple[Loop, ...], int, ClockLimit]:
        loops = self._loops(math.inf, self._mhz, self._mhz, time_s)
        return loops, self._mhz, ClockLimit.NONE

    def calls_at_once(self, clocks_mhz: Sequence[int]) -> list[CallPair]:
        return []

    def change(
        self, clock_mhz: int, *, lead_s: float, window_s: float
    ) -> tuple[ClockCall, tuple[Loop, ...]]:
        delay_s, requested_s = self._delays_s.pop(0), self._now_s + lead_s
        at_s = math.inf if delay_s is None else requested_s + delay_s
        loops = self._loops(at_s, self._mhz, clock_mhz, lead_s + window_s)
        self._mhz = clock_mhz
        call = ClockCall(
            sm_clock_mhz=clock_mhz,
            requested_s=requested_s,
            began_s=requested_s,
            returned_s=requested_s + 0.001,
        )
        return call, loops

    def _loops(self, at_s: float, before: float, after: float, time_s: float) -> tuple[Loop, ...]:
        """Loops of 0.5 ms and the work of that time."""
        loops, begin_s = [], self._now_s
        self._now_s += time_s
        while begin_s < self._now_s:
            end_s = begin_s + 5e-4
            old_s = min(max(at_s - begin_s, 0.0), 5e-4)
            loops.append(Loop(begin_s, end_s, old_s * before + (5e-4 - old_s) * after))
            begin_s = end_s
        return tuple(loops)


def scripted(delays_s: Sequence[float | None]) -> MeasuredTransitions:
    return measure_transitions(ScriptedBench(delays_s), (1410, 1050))


def test_outliers_and_changes_that_are_not_seen_are_left_out_and_counted() -> None:
    """Of 30 ups one takes 27 ms, of 30 downs one does not come; 4.7 to 5.3 ms are no outliers."""
    delays_s: list[float | None] = [0.0047 + 0.0001 * (number % 7) for number in range(60)]
    delays_s[20], delays_s[41] = 0.027, None
    up, down = scripted(delays_s).pairs
    assert (up.num, up.num_left_out) == (29, 1)
    assert up.completion.max_s == pytest.approx(0.0053, abs=1e-5)
    assert (down.num, down.num_left_out) == (29, 1)


def test_a_second_mode_of_the_gpu_is_no_outlier() -> None:
    delays_s = [0.02 if number % 10 < 2 else 0.005 for number in range(60)]
    up, _ = scripted(delays_s).pairs
    assert (up.num, up.num_left_out) == (30, 0)
    assert up.completion.p95_s == pytest.approx(0.02, abs=1e-5)


def test_changes_that_take_longer_than_the_first_window_are_waited_for() -> None:
    """Windows of 0.15, 0.3, 0.6 and 1 s: the third is the first to see it."""
    up, down = scripted([0.4] * 60).pairs
    assert (up.num + down.num, up.num_left_out + down.num_left_out) == (58, 2)
    assert up.completion.p50_s == pytest.approx(0.4, abs=1e-5)


def test_changes_that_never_come_are_an_error() -> None:
    with pytest.raises(TransitionsFailedError, match="no change was seen within 1 s"):
        scripted([None] * 60)


def test_the_table_is_read_as_it_was_measured() -> None:
    found = scripted([0.005 + 1e-4 * (number % 5) for number in range(60)])
    found = replace(found, times=replace(found.times, queues_in_node=True))
    document = tomllib.loads(transitions_toml(found, 'a "GPU",\nmeasured'))
    times, sources = transitions_of_table(document[TRANSITIONS])
    assert set(sources.values()) == {'a "GPU",?measured'}
    for name in ("up_p5_s", "up_p95_s", "down_p50_s", "call_p95_s"):
        assert getattr(times, name) == pytest.approx(getattr(found.times, name), abs=1e-6)
    assert times.queues_in_node is True
    first = document[TRANSITIONS]["pairs"][0]
    assert (first["from_mhz"], first["to_mhz"], first["num"]) == (1050, 1410, 30)
    assert first["completion_ms"]["max"] == pytest.approx(
        1e3 * found.pairs[0].completion.max_s, abs=1e-3
    )
