from __future__ import annotations

import pytest
from tests.unit.client.profiled_gpu import RESET, ScriptedGpu

from flyball_client.profiling.held_clock import HeldClock
from flyball_client.profiling.repetition import MeasuringRule, StageProfiler, Sweep
from flyball_client.profiling.workload import Workload, WorkloadError

FAILED = r"^backward at 1400 MHz: ValueError: shapes differ \(test_"


@pytest.fixture
def gpu() -> ScriptedGpu:
    return ScriptedGpu(lambda mhz, now_s: 10.0 / mhz, lambda mhz, now_s: 50.0 + mhz / 10)


def profiler(gpu: ScriptedGpu, workload: Workload) -> StageProfiler:
    return StageProfiler(gpu=gpu, workload=workload, rule=MeasuringRule(), now_s=gpu.now_s)


def test_each_clock_is_set_once_and_given_back_at_the_end(gpu: ScriptedGpu) -> None:
    workload = Workload(instructions={"forward": gpu.run_once, "backward": gpu.run_once})
    sweep = Sweep(workload.kinds, gpu.supported_sm_clocks_mhz())
    with HeldClock(gpu) as clock:
        points = list(profiler(gpu, workload).measure(sweep, clock))
    assert gpu.told == [1400, 1200, 900, 1400, 1200, 900, RESET]
    for point in points:
        assert point.time_s == pytest.approx(10.0 / point.frequency_mhz)


def test_an_instruction_that_fails_is_named_with_its_clock(gpu: ScriptedGpu) -> None:
    def run_once() -> None:
        raise ValueError("shapes\ndiffer")

    workload = Workload(instructions={"backward": run_once})
    sweep = Sweep(workload.kinds, gpu.supported_sm_clocks_mhz())
    with (
        pytest.raises(WorkloadError, match=FAILED),
        HeldClock(gpu) as clock,
    ):
        list(profiler(gpu, workload).measure(sweep, clock))
    assert gpu.told[-1] == RESET


def test_each_instruction_is_warmed_up_at_its_first_clock_only(gpu: ScriptedGpu) -> None:
    workload = Workload(instructions={"forward": gpu.run_once})
    sweep = Sweep(workload.kinds, gpu.supported_sm_clocks_mhz())
    began_s: list[float] = []
    with HeldClock(gpu) as clock:
        warm = StageProfiler(
            gpu=gpu,
            workload=workload,
            rule=MeasuringRule(),
            warm_up_s=100.0,
            now_s=gpu.now_s,
            on_begin=lambda kind, mhz: began_s.append(gpu.now_s()),
        )
        list(warm.measure(sweep, clock))
    assert began_s[1] - began_s[0] > 100.0
    assert began_s[2] - began_s[1] < 50.0
