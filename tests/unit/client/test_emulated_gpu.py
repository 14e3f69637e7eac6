from __future__ import annotations

import math
import time
from dataclasses import replace
from statistics import correlation, fmean, pstdev
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.client.tiny_profile import HandClock, point, tiny_profile

from flyball_client.gpu.emulated import (
    IDEAL_GPU,
    EmulatedGpu,
    EmulatedGpuSettings,
    LeapingClock,
    WallClock,
)
from flyball_client.gpu.emulated.choice import drawn_work
from flyball_pipeline.instruction import InstructionKind
from flyball_profiles.stage_profile import ProfileError, StageProfile


def make_gpu(clock: HandClock, **options: Any) -> EmulatedGpu:  # noqa: ANN401 - of EmulatedGpu
    options = {"settings": IDEAL_GPU} | options
    return EmulatedGpu(tiny_profile(), 0, blocking_power_w=80.0, clock=clock, **options)


def run(gpu: EmulatedGpu, kind: str, chunk: int = 0) -> float:
    """Return how long an instruction without computation took, emulated s."""
    began_s = gpu.emulated_time_s()
    gpu.on_instruction_begin(kind, chunk)
    gpu.on_instruction_end(kind, chunk)
    return gpu.emulated_time_s() - began_s


def test_an_instruction_makes_no_progress_while_it_waits_and_draws_waiting_power() -> None:
    clock = HandClock()
    gpu = make_gpu(clock)
    gpu.on_instruction_begin("forward")
    clock.move(0.25)
    gpu.on_wait_begin()
    clock.move(3.0)
    gpu.on_wait_end()
    gpu.on_instruction_end("forward")
    assert gpu.emulated_time_s() == pytest.approx(1.0 + 3.0)
    assert gpu.exact_energy_j() == pytest.approx(300.0 + 3.0 * 80.0)
    assert gpu.num_overruns == 0


def test_what_is_completed_within_a_wait_computes_first_and_waits_then() -> None:
    clock = HandClock()
    gpu = make_gpu(clock)
    gpu.on_instruction_begin("forward")
    gpu.on_wait_begin()
    gpu.complete()
    assert gpu.emulated_time_s() == pytest.approx(1.0)
    clock.move(2.0)
    gpu.on_wait_end()
    gpu.on_instruction_end("forward")
    assert gpu.exact_energy_j() == pytest.approx(300.0 + 2.0 * 80.0)


def test_a_microbatchs_work_is_a_factor_of_its_time_and_energy() -> None:
    clock = HandClock()
    gpu = make_gpu(clock, work=lambda step, microbatch: 1.0 + step + microbatch / 2)
    gpu.begin_work(0, 0)
    assert run(gpu, "forward") == pytest.approx(1.0)
    gpu.begin_work(1, 1)
    gpu.set_slowdown(2.0)
    assert run(gpu, "forward") == pytest.approx(2 * 2.5)
    assert gpu.exact_energy_j() == pytest.approx((1 + 2 * 2.5) * 300.0)


def test_a_completed_instruction_may_go_on_and_only_its_computation_is_an_overrun() -> None:
    clock = HandClock()
    gpu = make_gpu(clock)
    gpu.complete()  # nothing runs
    gpu.on_instruction_begin("forward")
    clock.move(0.25)
    gpu.complete()
    assert gpu.emulated_time_s() == pytest.approx(1.0)
    clock.move(0.5)
    gpu.on_instruction_end("forward")
    assert gpu.emulated_time_s() == pytest.approx(1.5)
    assert gpu.num_overruns == 0
    gpu.on_instruction_begin("forward")
    clock.move(1.25)
    gpu.complete()
    gpu.on_instruction_end("forward")
    assert gpu.num_overruns == 1
    gpu.on_instruction_begin("forward")
    clock.move(1.0)  # all of its time
    gpu.on_instruction_end("forward")
    assert gpu.num_overruns == 1


def test_drawn_work_is_the_same_in_all_ranks_of_a_pipeline_and_of_mean_1() -> None:
    ranks = [drawn_work(0.3, 4), drawn_work(0.3, 4)]
    drawn = [[work(step, m) for step in range(200) for m in range(4)] for work in ranks]
    assert (
        drawn[0]
        == drawn[1]
        != [drawn_work(0.3, 5)(step, m) for step in range(200) for m in range(4)]
    )
    assert fmean(drawn[0]) == pytest.approx(1, abs=0.05)
    assert pstdev(map(math.log, drawn[0])) == pytest.approx(0.3, rel=0.1)


def test_an_instruction_that_is_broken_off_leaves_the_next_one_whole() -> None:
    clock = HandClock()
    gpu = make_gpu(clock)
    gpu.break_off()  # nothing runs
    gpu.on_instruction_begin("forward")
    clock.move(0.25)
    gpu.on_wait_begin()
    gpu.break_off()
    clock.move(2.0)
    assert gpu.exact_energy_j() == pytest.approx(300.0 / 4 + 2.0 * 80.0)
    assert run(gpu, "forward") == pytest.approx(1.0)


def test_the_counter_shows_the_energy_of_its_last_period() -> None:
    clock = HandClock()
    gpu = make_gpu(clock, counter_period_s=0.25)
    clock.move(0.2)
    assert gpu.total_energy_j() == 0.0
    clock.move(0.1)
    assert gpu.total_energy_j() == pytest.approx(20.0)  # as of 0.25 s
    gpu.on_instruction_begin("forward")  # at 0.3 s
    clock.move(0.3)
    assert gpu.total_energy_j() == pytest.approx(24.0 + 300.0 * 0.2)  # as of 0.5 s


def two_chunks() -> StageProfile:
    """The tiny profile's stage as chunk 0; chunk 1 is four times as fast, of other clocks too."""
    whole = tiny_profile(num_ranks=2)
    faster = StageProfile(
        points={
            (0, InstructionKind.FORWARD): (point(1400, 0.25, 80.0), point(1000, 0.5, 40.0)),
            (0, InstructionKind.BACKWARD): (point(1400, 0.5, 120.0), point(1000, 0.75, 100.0)),
        },
        num_ranks_per_stage=(2,),
    )
    return replace(whole, chunks=(tiny_profile(num_ranks=2), faster))


def test_each_chunk_takes_its_own_time_and_energy() -> None:
    profile = two_chunks()
    gpu = EmulatedGpu(
        profile, 0, blocking_power_w=80.0, num_chunks=2, settings=IDEAL_GPU, clock=HandClock()
    )
    assert run(gpu, "forward", 0) == pytest.approx(1.0)  # 150 J of two ranks' 300
    assert run(gpu, "forward", 1) == pytest.approx(0.25)  # 40 J
    gpu.lock_sm_clock_mhz(1000)
    assert run(gpu, "backward", 1) == pytest.approx(0.75)  # 50 J
    assert run(gpu, "backward", 0) == pytest.approx(3.0)  # at 1200 MHz: 225 J
    assert gpu.exact_energy_j() == pytest.approx(150 + 40 + 50 + 225)
    whole = EmulatedGpu(profile, 0, blocking_power_w=80.0, clock=HandClock())
    assert whole.supported_sm_clocks_mhz() == (1400, 1200, 900)
    assert run(whole, "forward") == pytest.approx(1.0)
    with pytest.raises(ValueError, match="no forward of stage 0, chunk 1 to emulate"):
        whole.on_instruction_begin("forward", 1)
    for num_chunks in (0, 3):
        with pytest.raises(ProfileError, match=f"has 2 chunks, and {num_chunks} are run"):
            EmulatedGpu(profile, 0, blocking_power_w=80.0, num_chunks=num_chunks)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["forward", "backward"]),
            st.sampled_from([None, 1400, 1200, 900]),
            st.floats(0, 5),
            st.floats(0, 5),
        ),
        max_size=12,
    ),
    st.sampled_from([0.1, 0.25, 1.0]),
    st.sampled_from([1.0, 2.0]),
)
def test_whatever_runs_takes_its_profiled_time_and_the_counter_lags_by_less_than_a_period(
    steps: list[tuple[str, int | None, float, float]], period_s: float, time_scale: float
) -> None:
    """At a clock without a point, time and energy are those of the next point above."""
    clock = HandClock()
    gpu = make_gpu(clock, counter_period_s=period_s, time_scale=time_scale)
    shown_j = expected_j = 0.0
    num_overruns = 0
    highest_power_w = 300.0
    profile = tiny_profile()
    for kind, clock_mhz, computation_s, idle_s in steps:
        if clock_mhz is None:
            gpu.reset_sm_clock()
        else:
            gpu.lock_sm_clock_mhz(clock_mhz)
        began_s = clock.now_s()
        gpu.on_instruction_begin(kind)
        clock.move(computation_s * time_scale)
        gpu.on_instruction_end(kind)
        taken_s = (clock.now_s() - began_s) / time_scale
        clock.move(idle_s * time_scale)
        rising = sorted(
            (p for (_, k), ps in profile.points.items() for p in ps if k == kind),
            key=lambda p: p.frequency_mhz,
        )
        used = next((p for p in rising if p.frequency_mhz >= (clock_mhz or 1400)), rising[-1])
        assert taken_s == pytest.approx(max(used.time_s, computation_s))
        excess_s = max(0.0, computation_s - used.time_s)
        num_overruns += excess_s > 1e-6
        expected_j += used.energy_j + 80.0 * (excess_s + idle_s)
        assert gpu.exact_energy_j() == pytest.approx(expected_j)
        assert gpu.total_energy_j() >= shown_j
        shown_j = gpu.total_energy_j()
        lag_j = gpu.exact_energy_j() - shown_j
        assert -1e-6 <= lag_j <= highest_power_w * period_s * (1 + 1e-6) + 1e-6
    assert gpu.num_overruns >= num_overruns


def times_and_energies(gpu: EmulatedGpu, kind: str, num_runs: int) -> list[tuple[float, float]]:
    """Of each of so many instructions: how long it lasted, s, and what it took, J."""
    found: list[tuple[float, float]] = []
    for _ in range(num_runs):
        before_j = gpu.exact_energy_j()
        time_s = run(gpu, kind)
        found.append((time_s, gpu.exact_energy_j() - before_j))
    return found


@pytest.mark.parametrize("noise", [0.02, 0.29])
def test_noise_follows_its_seed_with_the_profiles_mean_and_the_deviation_that_was_asked_for(
    noise: float,
) -> None:
    num_runs = 2000
    gpu, again, other = (
        make_gpu(HandClock(), settings=EmulatedGpuSettings(noise=noise, seed=seed))
        for seed in (1, 1, 2)
    )
    found = times_and_energies(gpu, "forward", num_runs)
    assert times_and_energies(again, "forward", 5) == found[:5]
    assert times_and_energies(other, "forward", 1) != found[:1]
    for values, profiled in zip(zip(*found, strict=True), (1.0, 300.0), strict=True):
        assert fmean(values) == pytest.approx(profiled, rel=4 * noise / math.sqrt(num_runs))
        assert pstdev(values) / profiled == pytest.approx(noise, rel=0.08)
    times_s, energies_j = zip(*found, strict=True)
    assert abs(correlation(times_s, energies_j)) < 4 / math.sqrt(num_runs)
    assert gpu.num_overruns == 0


def test_a_slower_pace_takes_longer_at_the_same_power_until_it_is_set_back() -> None:
    gpu = make_gpu(HandClock())
    gpu.set_slowdown(1.5)
    gpu.lock_sm_clock_mhz(900)
    assert times_and_energies(gpu, "forward", 1) == [pytest.approx((3.0, 300.0))]
    for slowdown in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(ValueError, match="slowdown must be positive and finite"):
            gpu.set_slowdown(slowdown)
    gpu.set_slowdown(0.5)
    assert times_and_energies(gpu, "forward", 1) == [pytest.approx((1.0, 100.0))]
    gpu.set_slowdown(1.0)
    assert times_and_energies(gpu, "forward", 1) == [pytest.approx((2.0, 200.0))]


def test_what_cannot_be_emulated_is_refused_in_words() -> None:
    gpu = make_gpu(HandClock())
    with pytest.raises(ValueError, match="no recompute of stage 0"):
        gpu.on_instruction_begin("recompute")
    gpu.on_instruction_begin("forward")
    with pytest.raises(ValueError, match="backward begins while forward runs"):
        gpu.on_instruction_begin("backward")
    with pytest.raises(ValueError, match="backward ends on emulated GPU but is not running"):
        gpu.on_instruction_end("backward")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"stage": 1}, "stage must be 0 to 0, not 1"),
        ({"time_scale": 0.0}, "time_scale must be positive"),
        ({"time_scale": float("nan")}, "time_scale must be positive"),
        ({"counter_period_s": 0.0}, "counter_period_s must be positive"),
        ({"blocking_power_w": float("inf")}, "blocking_power_w must not be negative and finite"),
    ],
)
def test_arguments_out_of_range_are_refused(arguments: dict[str, float], text: str) -> None:
    given_arguments = {"blocking_power_w": 80.0} | arguments
    stage = int(given_arguments.pop("stage", 0))
    with pytest.raises(ValueError, match=text):
        EmulatedGpu(tiny_profile(), stage, **given_arguments)  # type: ignore[arg-type] # floats


def test_the_wall_clock_never_wakes_before_its_deadline() -> None:
    clock = WallClock()
    for wait_s in (0.0, 0.0003, 0.005, 0.02):
        deadline_s = time.monotonic() + wait_s
        clock.sleep_until(deadline_s)
        assert clock.now_s() >= deadline_s


def test_a_leaping_clock_is_at_once_at_its_deadline_and_never_goes_back() -> None:
    clock = LeapingClock()
    for deadline_s, moment_s in ((0.5, 0.5), (0.2, 0.5), (60.0, 60.0)):
        clock.sleep_until(deadline_s)
        assert clock.now_s() == moment_s
