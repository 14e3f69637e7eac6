"""Physics of the emulated GPU, against the formula, figures by hand and small time steps."""

from __future__ import annotations

import math
import multiprocessing
import random
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median, quantiles

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.planner.patience import wait_until
from tests.unit.client.tiny_profile import HandClock, one_stage, point

from flyball_client.gpu._base import ClockLimit
from flyball_client.gpu.emulated import (
    IDEAL_GPU,
    EmulatedGpu,
    EmulatedGpuSettings,
    EmulatedNode,
    RandomTime,
)
from flyball_client.gpu.emulated.execution import Execution
from flyball_profiles.gpu_windows import load_gpu_window

# MHz: time in s, energy in J of the forward; powers of 300, 225 and 125 W.
FORWARD = {1400: (0.1, 30.0), 1200: (0.12, 27.0), 700: (0.2, 25.0)}
WAITING_W = 80.0
PROFILE = one_stage(FORWARD)
CLOCKS = st.sampled_from([*FORWARD])


@dataclass
class Bench:
    """A GPU in virtual time."""

    clock: HandClock
    gpu: EmulatedGpu

    @classmethod
    def of(
        cls,
        settings: EmulatedGpuSettings,
        *,
        node: EmulatedNode | None = None,
        waiting_w: float = WAITING_W,
        time_scale: float = 1.0,
    ) -> Bench:
        clock = HandClock()
        gpu = EmulatedGpu(
            PROFILE,
            0,
            blocking_power_w=waiting_w,
            settings=settings,
            node=node,
            time_scale=time_scale,
            counter_period_s=0.01,
            clock=clock,
        )
        return cls(clock=clock, gpu=gpu)

    def wait_until(self, moment_s: float) -> None:
        """Move to this emulated moment."""
        self.clock.move(moment_s - self.gpu.emulated_time_s())

    def run(self) -> tuple[float, float]:
        """Return time in s and energy in J of a forward."""
        began_s, began_j = self.gpu.emulated_time_s(), self.gpu.exact_energy_j()
        self.gpu.on_instruction_begin("forward")
        self.gpu.on_instruction_end("forward")
        return self.gpu.emulated_time_s() - began_s, self.gpu.exact_energy_j() - began_j


def exact(time_s: float) -> RandomTime:
    return RandomTime(p50_s=time_s)


def test_a_request_replaces_a_timed_one_before_its_moment_and_not_from_then_on() -> None:
    bench = Bench.of(EmulatedGpuSettings.exact_delay(0.01))

    def clocks(*moments_s: float) -> list[int]:
        seen = []
        for moment_s in moments_s:
            bench.wait_until(moment_s)
            seen.append(bench.gpu.sm_clock_mhz())
        return seen

    bench.gpu.lock_sm_clock_mhz_at(700, 0.1)
    assert bench.gpu.timed_request_s() == pytest.approx(1000.1)
    bench.wait_until(0.05)
    bench.gpu.lock_sm_clock_mhz_at(1200, 0.2)  # in its place
    assert clocks(0.19, 0.209, 0.211) == [1400, 1400, 1200]
    bench.gpu.lock_sm_clock_mhz_at(700, 0.3)
    bench.wait_until(0.299)
    bench.gpu.lock_sm_clock_mhz(1200)  # the one that is in force: no call, and 700 is dropped
    assert clocks(0.5) == [1200]
    bench.gpu.lock_sm_clock_mhz_at(700, 0.6)
    bench.wait_until(0.605)
    bench.gpu.lock_sm_clock_mhz(1400)  # 700 was requested before, and comes for 5 ms
    assert clocks(0.609, 0.611, 0.614, 0.616) == [1200, 700, 700, 1400]
    bench.gpu.lock_sm_clock_mhz_at(700, 0.7)
    bench.gpu.reset_sm_clock()
    assert clocks(0.8) == [1400]
    with pytest.raises(ValueError, match="has no 701 MHz"):
        bench.gpu.lock_sm_clock_mhz_at(701, 1.0)


def test_a_timed_call_queues_from_its_moment_on_and_behind_a_request_that_waits() -> None:
    """Calls take 10 ms: this GPU's own until 10 and 20 ms, another one's until 30 ms."""
    settings, node = replace(IDEAL_GPU, call_time=exact(0.01)), EmulatedNode()
    bench, other = (Bench.of(settings, node=node) for _ in range(2))
    bench.gpu.lock_sm_clock_mhz(1200)
    bench.gpu.lock_sm_clock_mhz(1400)
    bench.gpu.lock_sm_clock_mhz_at(700, 0.005)
    other.wait_until(0.004)
    other.gpu.lock_sm_clock_mhz(700)
    bench.wait_until(0.029)
    assert bench.gpu.sm_clock_mhz() == 1400
    assert bench.gpu.last_call() is None
    bench.wait_until(0.0401)
    assert bench.gpu.sm_clock_mhz() == 700
    call = bench.gpu.last_call()
    assert call is not None
    moments_s = (call.requested_s, call.began_s, call.returned_s)
    assert [moment_s - 1000 for moment_s in moments_s] == pytest.approx([0.005, 0.02, 0.04])


def test_changes_up_and_down_have_delays_of_their_own_and_the_last_request_stays() -> None:
    bench = Bench.of(replace(IDEAL_GPU, delay_up=exact(0.005), delay_down=exact(0.02)))

    def clock_at(moment_s: float) -> int:
        bench.wait_until(moment_s)
        return bench.gpu.sm_clock_mhz()

    bench.gpu.lock_sm_clock_mhz(700)
    assert (clock_at(0.0199), clock_at(0.0201)) == (1400, 700)
    bench.wait_until(1.0)
    bench.gpu.lock_sm_clock_mhz(1200)
    assert (clock_at(1.0049), clock_at(1.0051)) == (700, 1200)
    bench.wait_until(2.0)
    bench.gpu.lock_sm_clock_mhz(700)  # would take effect at 2.02 s
    bench.wait_until(2.01)
    bench.gpu.reset_sm_clock()  # takes effect at 2.015 s, and replaces it
    assert (clock_at(2.0149), clock_at(2.0151), clock_at(3.0)) == (1200, 1400, 1400)


@pytest.mark.parametrize("time_scale", [1.0, 3.0])
def test_calls_of_one_node_run_one_at_a_time(time_scale: float) -> None:
    """Eight GPUs at once: the last call begins after seven others, and takes effect 5 ms later."""
    settings = replace(
        IDEAL_GPU, call_time=exact(0.006), delay_up=exact(0.005), delay_down=exact(0.005)
    )
    node, other_node = EmulatedNode(), EmulatedNode()
    benches = [Bench.of(settings, node=node, time_scale=time_scale) for _ in range(8)]
    alone = Bench.of(settings, node=other_node, time_scale=time_scale)
    for bench in [*benches, alone]:
        bench.gpu.lock_sm_clock_mhz(700)
    for place, bench in [*enumerate(benches), (0, alone)]:
        bench.clock.move((place * 0.006 + 0.0049) * time_scale)
        assert bench.gpu.sm_clock_mhz() == 1400
        bench.clock.move(0.0002 * time_scale)
        assert bench.gpu.sm_clock_mhz() == 700


def test_an_instruction_is_completed_at_its_moment_whatever_is_rounded() -> None:
    """The counter's movement cuts it in two; of 5,000 such some had a rest that never ended."""
    for seed in range(5000):
        generator = random.Random(seed)
        execution = Execution(
            {("forward", 0): {1400: point(1400, 0.1, 30.0)}},
            IDEAL_GPU,
            blocking_power_w=WAITING_W,
            clock_mhz=1400,
            counter_period_s=0.1,
        )
        execution.advance(generator.uniform(0, 4))
        execution.begin(("forward", 0), (generator.uniform(0.5, 1.5), 1.0))
        for _ in range(3):
            if execution.completed_s is None:
                execution.advance(execution.completion_s())
        assert execution.completed_s is not None, seed


def test_plans_expect_of_a_nodes_queue_what_emulated_gpus_have() -> None:
    """Of 600 changes of eight GPUs at once, the last one's delay."""
    alone = load_gpu_window("a100").transitions
    assert alone is not None
    assert alone.call_p50_s is not None
    assert alone.call_p95_s is not None
    up = RandomTime(p50_s=alone.up_p50_s)
    ratio = (alone.call_p95_s / alone.call_p50_s) ** (2.326 / 1.645)
    call = RandomTime(p50_s=alone.call_p50_s, p99_s=alone.call_p50_s * ratio)
    settings = replace(IDEAL_GPU, call_time=call, delay_up=up)
    node = EmulatedNode()
    benches = [Bench.of(replace(settings, seed=seed), node=node) for seed in range(8)]
    delays_s = []
    for number in range(1, 601):
        for bench in benches:
            bench.wait_until(float(number))
            bench.gpu.lock_sm_clock_mhz(700)
            bench.wait_until(number + 0.5)
        requested_s = benches[0].clock.now_s()
        for bench in benches:
            last_s = node.book_s(requested_s, 0.0)
            bench.gpu.lock_sm_clock_mhz(1400)
        delays_s.append(last_s - requested_s + alone.up_p50_s)
    expected = replace(alone, up_p5_s=up.p50_s, up_p95_s=up.p50_s).of_queue(8)
    cuts_s = quantiles(delays_s, n=20)
    found_s = (cuts_s[0], median(delays_s), cuts_s[18])
    assert found_s == pytest.approx(
        (expected.up_p5_s, expected.up_p50_s, expected.up_p95_s), rel=0.08
    )


def test_a_request_during_a_call_takes_the_newest_clock() -> None:
    settings = replace(IDEAL_GPU, call_time=exact(0.01))
    bench = Bench.of(settings)
    bench.gpu.lock_sm_clock_mhz(1200)  # begins at once
    bench.gpu.lock_sm_clock_mhz(700)  # begins at 10 ms
    bench.wait_until(0.005)
    bench.gpu.lock_sm_clock_mhz(1400)  # replaces it
    assert bench.gpu.sm_clock_mhz() == 1200
    bench.wait_until(0.0101)
    assert bench.gpu.sm_clock_mhz() == 1400
    bench.wait_until(0.0102)
    bench.gpu.lock_sm_clock_mhz(700)  # begins at 20 ms: there was no third call before
    bench.wait_until(0.0199)
    assert bench.gpu.sm_clock_mhz() == 1400
    bench.wait_until(0.0201)
    assert bench.gpu.sm_clock_mhz() == 700


def book(file: Path, num_calls: int) -> None:
    node = EmulatedNode(file)
    for _ in range(num_calls):
        node.book_s(100.0, 0.001)


def test_processes_share_a_node_through_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "node"
    other = multiprocessing.get_context("spawn").Process(target=book, args=(file, 200))
    other.start()
    wait_until(file.exists)
    book(file, 200)
    other.join()
    assert EmulatedNode(file).book_s(100.0, 0.0) == pytest.approx(100.4)
    # It is free later, and the moments of an earlier start of the machine do not count.
    assert EmulatedNode(file).book_s(200.0, 0.0) == 200.0
    assert EmulatedNode(file).book_s(3.0, 0.0) == 3.0
    # All GPUs of a user on a machine can share one.
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    EmulatedNode.of_machine().book_s(100.0, 0.01)
    assert EmulatedNode.of_machine().book_s(100.0, 0.0) == pytest.approx(100.01)


def test_call_times_are_log_normal_with_the_median_and_99th_percentile_that_were_published() -> (
    None
):
    node = EmulatedNode()
    bench = Bench.of(EmulatedGpuSettings(seed=3), node=node)
    times_s = []
    for number in range(4000):
        bench.wait_until(float(number + 1))
        now_s = bench.clock.now_s()
        bench.gpu.lock_sm_clock_mhz(700 if number % 2 else 1400 if number else 1200)
        times_s.append(node.book_s(now_s, 0.0) - now_s)
    assert median(times_s) == pytest.approx(0.0045, rel=0.02)
    assert quantiles(times_s, n=100)[98] == pytest.approx(0.012, rel=0.06)
    logs = [math.log(time_s) for time_s in times_s]
    assert quantiles(logs, n=100)[0] == pytest.approx(2 * math.log(0.0045) - math.log(0.012), 0.02)


def test_the_same_seed_has_the_same_delays_whatever_the_noise() -> None:
    spread = RandomTime(p50_s=0.005, p99_s=0.02)

    def effects(settings: EmulatedGpuSettings) -> list[int]:
        bench = Bench.of(settings)
        seen = []
        for number in range(40):
            bench.run()
            bench.wait_until(float(number + 1))
            bench.gpu.lock_sm_clock_mhz(700 if number % 2 else 1200)
            bench.wait_until(number + 1.005)
            seen.append(bench.gpu.sm_clock_mhz())
        return seen

    of_seed_1, noisy, of_seed_2 = (
        effects(replace(IDEAL_GPU, delay_up=spread, delay_down=spread, noise=noise, seed=seed))
        for noise, seed in ((0.0, 1), (0.02, 1), (0.0, 2))
    )
    assert of_seed_1 == noisy != of_seed_2


@pytest.mark.parametrize(
    ("limit_w", "asked_mhz", "held_mhz"),
    [
        *[(300.0, 1400, 1400), (299.0, 1400, 1200), (10.0, 1400, 700), (299.0, 1200, 1200)],
    ],
)
def test_a_power_limit_holds_the_clock_where_the_power_is_within_it(
    limit_w: float, asked_mhz: int, held_mhz: int
) -> None:
    bench = Bench.of(replace(IDEAL_GPU, power_limit_w=limit_w))
    bench.gpu.lock_sm_clock_mhz(asked_mhz)
    assert bench.run() == pytest.approx(FORWARD[held_mhz])
    is_held_down = held_mhz < asked_mhz
    assert bench.gpu.sm_clock_mhz() == held_mhz
    assert bench.gpu.requested_sm_clock_mhz == asked_mhz
    assert bench.gpu.clock_limits() == (ClockLimit.POWER if is_held_down else ClockLimit.NONE)
    bench.gpu.set_power_limit_w(None)
    assert bench.run() == pytest.approx(FORWARD[asked_mhz])
    assert bench.gpu.clock_limits() == ClockLimit.NONE


TIMES = st.integers(0, 60).map(lambda number: number / 1000)


@given(
    requests=st.lists(st.tuples(TIMES, CLOCKS), max_size=6),
    begins_s=TIMES,
    delay_s=TIMES,
    stall_s=st.sampled_from([0.0, 0.004]),
    lag_s=st.sampled_from([0.0, 0.01]),
    limit_w=st.sampled_from([None, 250.0]),
)
def test_any_requests_agree_with_small_time_steps(
    requests: Sequence[tuple[float, int]],
    begins_s: float,
    delay_s: float,
    stall_s: float,
    lag_s: float,
    limit_w: float | None,
) -> None:
    delay = exact(delay_s)
    settings = replace(
        IDEAL_GPU,
        delay_up=delay,
        delay_down=delay,
        stall_s=stall_s,
        power_lag_s=lag_s,
        power_limit_w=limit_w,
    )
    bench = Bench.of(settings)
    requests = sorted(requests, key=lambda request: request[0])
    before = [request for request in requests if request[0] < begins_s]
    for moment_s, mhz in before:
        bench.wait_until(moment_s)
        bench.gpu.lock_sm_clock_mhz(mhz)
    bench.wait_until(begins_s)
    began_j = bench.gpu.exact_energy_j()
    bench.gpu.on_instruction_begin("forward")
    for moment_s, mhz in requests[len(before) :]:
        bench.wait_until(moment_s)
        bench.gpu.lock_sm_clock_mhz(mhz)
    bench.gpu.on_instruction_end("forward")
    ended_s = bench.gpu.emulated_time_s()

    # Clocks in force by their beginning, each of a request that changed something.
    changes = [(-1.0, 1400)]
    requested_mhz = 1400
    for moment_s, mhz in requests:
        if mhz != requested_mhz:
            requested_mhz = mhz
            # Of several at one moment the last one counts.
            changes = [change for change in changes if change[0] != moment_s + delay_s]
            if mhz != changes[-1][1]:
                changes.append((moment_s + delay_s, mhz))

    def clock_at(moment_s: float) -> int:
        return next(mhz for since_s, mhz in reversed(changes) if since_s <= moment_s)

    def held(mhz: int) -> int:
        return 1200 if limit_w is not None and mhz == 1400 else mhz

    step_s = 2e-5
    progress, energy_j, now_s = 0.0, 0.0, begins_s
    while progress < 1:
        middle_s = now_s + step_s / 2
        stalls = any(0 <= middle_s - since_s < stall_s for since_s, _ in changes[1:])
        time_s, _ = FORWARD[held(clock_at(middle_s))]
        power_time_s, power_energy_j = FORWARD[held(clock_at(middle_s - lag_s))]
        power_w = power_energy_j / power_time_s
        energy_j += (WAITING_W if stalls else power_w) * step_s
        progress += 0.0 if stalls else step_s / time_s
        now_s += step_s
    assert ended_s == pytest.approx(now_s, abs=2 * step_s)
    assert bench.gpu.exact_energy_j() - began_j == pytest.approx(energy_j, rel=1e-3, abs=0.01)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: EmulatedGpuSettings(noise=-0.01), "noise must be at least 0 and below 0.3, not"),
        (lambda: EmulatedGpuSettings(noise=0.3), "noise must be at least 0 and below 0.3, not 0.3"),
        (lambda: EmulatedGpuSettings(stall_s=-1.0), "stall_s must not be negative"),
        (lambda: EmulatedGpuSettings(power_lag_s=math.inf), "power_lag_s must not be negative and"),
        (lambda: EmulatedGpuSettings(power_limit_w=0.0), "power_limit_w must be positive"),
        (lambda: RandomTime(p50_s=-0.1), "p50_s must not be negative"),
        (lambda: RandomTime(p50_s=0.1, p99_s=0.05), "p99_s must be finite and at least p50_s"),
        (lambda: RandomTime(p99_s=0.05), "p99_s must be finite and at least p50_s"),
        (lambda: Bench.of(EmulatedGpuSettings(), waiting_w=-1.0), "blocking_power_w must not be"),
    ],
)
def test_settings_out_of_range_are_refused(make: object, text: str) -> None:
    assert callable(make)
    with pytest.raises(ValueError, match=text):
        make()
