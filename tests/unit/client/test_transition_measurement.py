"""Measured clock changes of emulated GPUs, which must be what their settings hide."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Sequence
from dataclasses import replace

import pytest

from flyball_client.gpu._base import ClockCall, ClockLimit
from flyball_client.gpu.emulated import DEFAULT_PHYSICS, EmulatedGpuSettings, RandomTime
from flyball_client.profiling.transitions._base import LoadedRun, Loop, ObservedChange
from flyball_client.profiling.transitions.emulated_bench import EmulatedBench
from flyball_client.profiling.transitions.measurement import (
    TransitionRule,
    TransitionsFailedError,
    measure_transitions,
    nums_at_once,
)
from flyball_profiles.clock_transitions import TRANSITIONS, transitions_of_table
from flyball_profiles.examples import load_example_profile
from flyball_profiles.measured_transitions import (
    MeasuredTransitions,
    TransitionLoad,
    transitions_toml,
)

pytestmark = pytest.mark.slow

PROFILE = load_example_profile()
BLOCKING_POWER_W = 83.64
SIGMAS_P95, SIGMAS_P99 = 1.6449, 2.3263
COMPUTING = (TransitionLoad.COMPUTING,)


def measured(
    settings: EmulatedGpuSettings,
    *clocks_mhz: int,
    num_gpus: int = 1,
    loads: tuple[TransitionLoad, ...] = COMPUTING,
    num_repetitions: int = 30,
) -> MeasuredTransitions:
    bench = EmulatedBench(
        PROFILE,
        0,
        num_gpus=num_gpus,
        blocking_power_w=BLOCKING_POWER_W,
        settings=settings,
    )
    rule = TransitionRule(
        clocks_mhz=clocks_mhz,
        loads=loads,
        num_repetitions=num_repetitions,
        nums_at_once=nums_at_once(num_gpus),
    )
    with bench.governed():
        found = measure_transitions(bench, rule)
    # The clocks are restored.
    assert {gpu.requested_sm_clock_mhz for gpu in bench.gpus} == {1410}
    return found


@pytest.fixture(scope="module")
def queued() -> MeasuredTransitions:
    """Of two GPUs whose calls take 6 ms and queue; each clock is in force 5 ms later."""
    settings = replace(EmulatedGpuSettings.exact_delay(0.005), call_time=RandomTime(p50_s=0.006))
    return measured(settings, 1410, 1050, num_gpus=2)


def percentile_s(hidden: RandomTime, sigmas: float) -> float:
    assert hidden.p99_s is not None
    return hidden.p50_s * math.exp(math.log(hidden.p99_s / hidden.p50_s) * sigmas / SIGMAS_P99)


def test_the_delays_and_call_times_of_the_default_physics_are_found_within_10_percent() -> None:
    found = measured(
        DEFAULT_PHYSICS, 1410, 1230, 1050, loads=(*TransitionLoad,), num_repetitions=40
    )
    times, hidden = found.times, DEFAULT_PHYSICS
    for name, of, percentiles in (
        ("up", hidden.delay_up, (5, 50, 95)),
        ("down", hidden.delay_down, (5, 50, 95)),
        ("call", hidden.call_time, (50, 95)),
    ):
        for number in percentiles:
            sigmas = {5: -SIGMAS_P95, 50: 0.0, 95: SIGMAS_P95}[number]
            value_s = getattr(times, f"{name}_p{number}_s")
            assert value_s == pytest.approx(percentile_s(of, sigmas), rel=0.1), (name, number)
    assert times.queues_in_node is None
    assert len(found.pairs) == 2 * 6
    for pair in found.pairs:
        of = hidden.delay_up if pair.from_mhz < pair.to_mhz else hidden.delay_down
        assert pair.completion.p50_s == pytest.approx(of.p50_s, rel=0.1)
        assert (pair.num, pair.num_left_out) == (40, 0)


@pytest.mark.parametrize(("up_s", "down_s"), [(0.0004, 0.002), (0.05, 0.03)])
def test_delays_from_a_fraction_of_a_millisecond_to_many_are_found(
    up_s: float, down_s: float
) -> None:
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


def test_the_queue_of_a_node_or_that_there_is_none_is_found(queued: MeasuredTransitions) -> None:
    """Of n GPUs at once, the last waits for n - 1 calls of 6 ms, then 5 ms for its clock."""
    assert [queue.num_gpus for queue in queued.at_once] == [1, 2]
    for queue in queued.at_once:
        last_s = 0.006 * (queue.num_gpus - 1) + 0.005
        assert queue.last.p50_s == pytest.approx(last_s, rel=0.01)
        assert queue.call.p95_s == pytest.approx(0.006 * queue.num_gpus)
    assert queued.times.queues_in_node is True
    assert queued.times.call_p50_s == pytest.approx(0.006)
    without = measured(EmulatedGpuSettings.exact_delay(0.005), 1410, 1050, num_gpus=2)
    assert without.times.queues_in_node is False
    assert without.at_once[-1].last.p50_s == pytest.approx(0.005, rel=0.01)


def test_clocks_that_are_not_held_are_found_and_pairs_at_one_clock_left_out() -> None:
    """The forward takes 475 W at 1410 MHz, and the limit allows 1110 MHz and below."""
    settings = replace(EmulatedGpuSettings.exact_delay(0.005), power_limit_w=300.0)
    found = measured(settings, 1410, 1230, 900)
    assert [(clock.mhz, clock.ran_mhz, clock.limit) for clock in found.clocks] == [
        (1410, 1110, "power"),
        (1230, 1110, "power"),
        (900, 900, None),
    ]
    assert {(pair.from_mhz, pair.to_mhz) for pair in found.pairs} == {
        (900, 1410),
        (1410, 900),
        (900, 1230),
        (1230, 900),
    }
    with pytest.raises(TransitionsFailedError, match="same rate at all clocks, MHz: 1410, 1230"):
        measured(settings, 1410, 1230)


def test_a_pair_within_the_noise_is_left_out() -> None:
    found = measured(replace(EmulatedGpuSettings.exact_delay(0.005), noise=0.02), 1410, 1395, 900)
    assert {pair.from_mhz + pair.to_mhz for pair in found.pairs} == {1410 + 900, 1395 + 900}


def test_a_stall_is_found() -> None:
    found = measured(replace(EmulatedGpuSettings.exact_delay(0.005), stall_s=0.003), 1410, 1050)
    for pair in found.pairs:
        assert pair.stall_s == pytest.approx(0.003, rel=0.1)
        assert pair.onset.p50_s == pytest.approx(0.005, rel=0.1)
        assert pair.completion.p50_s == pytest.approx(0.008, rel=0.1)


class ScriptedBench:
    """A GPU whose changes take the times of a list; the clocks are also its rates."""

    num_gpus, counts_cycles = 1, False

    def __init__(self, delays_s: Sequence[float | None]) -> None:
        self._delays_s = list(delays_s)
        self._mhz = 1410
        self._now_s = 0.0
        self.num_changes = 0

    def run(self, gpus: Sequence[int], time_s: float) -> tuple[LoadedRun, ...]:
        loops = self._loops(math.inf, self._mhz, self._mhz, time_s)
        return (LoadedRun(loops=loops, sm_clock_mhz=self._mhz, limits=ClockLimit.NONE),)

    def change(
        self,
        gpus: Sequence[int],
        clock_mhz: int,
        *,
        load: TransitionLoad,
        lead_s: float,
        window_s: float,
    ) -> tuple[ObservedChange, ...]:
        # To the lowest clock, to the highest, and back.
        is_settling = self.num_changes < 3
        delay_s = 0.005 if is_settling else self._delays_s[self.num_changes - 3]
        self.num_changes += 1
        requested_s = self._now_s + lead_s
        at_s = math.inf if delay_s is None else requested_s + delay_s
        loops = self._loops(at_s, self._mhz, clock_mhz, lead_s + window_s)
        self._mhz = clock_mhz
        call = ClockCall(
            sm_clock_mhz=clock_mhz,
            requested_s=requested_s,
            began_s=requested_s,
            returned_s=requested_s + 0.001,
        )
        return (ObservedChange(call=call, loops=loops),)

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


def scripted(
    delays_s: Sequence[float | None], loads: tuple[TransitionLoad, ...] = COMPUTING
) -> MeasuredTransitions:
    rule = TransitionRule(clocks_mhz=(1410, 1050), loads=loads)
    return measure_transitions(ScriptedBench(delays_s), rule)


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


@pytest.mark.parametrize(
    ("delays_s", "loads"),
    [
        ([None] * 60, COMPUTING),
        # Those of an idle GPU stand in for none: the clock is 1050 MHz as the second load begins.
        ([None] * 60 + [0.005] * 60, (*TransitionLoad,)),
    ],
)
def test_changes_that_never_come_are_an_error(
    delays_s: list[float | None], loads: tuple[TransitionLoad, ...]
) -> None:
    with pytest.raises(TransitionsFailedError, match="no change was seen within 1 s"):
        scripted(delays_s, loads)


def test_the_table_is_read_as_it_was_measured(queued: MeasuredTransitions) -> None:
    found = queued
    text = transitions_toml(found, 'a "GPU",\nmeasured')
    document = tomllib.loads(text)
    times, sources = transitions_of_table(document[TRANSITIONS])
    assert set(sources.values()) == {'a "GPU",?measured'}
    for name in ("up_p5_s", "up_p95_s", "down_p50_s", "call_p95_s"):
        assert getattr(times, name) == pytest.approx(getattr(found.times, name), abs=1e-6)
    assert times.queues_in_node is True
    first = document[TRANSITIONS]["pairs"][0]
    assert (first["from_mhz"], first["to_mhz"], first["load"]) == (1050, 1410, "computing")
    assert first["completion_ms"]["max"] == pytest.approx(
        1e3 * found.pairs[0].completion.max_s, abs=1e-3
    )
    assert document[TRANSITIONS]["at_once"][1]["num_gpus"] == 2


def test_a_rule_says_how_many_changes_it_takes() -> None:
    rule = TransitionRule(clocks_mhz=(1410, 1230, 1050), nums_at_once=nums_at_once(6))
    assert rule.nums_at_once == (1, 2, 4, 6)
    # Six directed pairs, two loads, 30 times; then up and down at four numbers of GPUs.
    assert rule.num_changes == 6 * 2 * 30 + 2 * 4 * 30
    assert nums_at_once(1) == ()
    with pytest.raises(ValueError, match="two clocks"):
        TransitionRule(clocks_mhz=(1410, 1410))
    with pytest.raises(ValueError, match="at least 30"):
        TransitionRule(clocks_mhz=(1410, 1050), num_repetitions=29)
