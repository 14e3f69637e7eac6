from __future__ import annotations

import math

import pytest
from tests.unit.client.profiled_gpu import ScriptedGpu

from flyball_client.gpu._base import GpuError
from flyball_client.profiling.blocking_power import (
    BlockingPairError,
    WaitingPower,
    measure_waiting_power,
)


def waiting(power_w: float = 84.0, *, counter_period_s: float = 0.1) -> ScriptedGpu:
    return ScriptedGpu(
        lambda mhz, now_s: 1.0, lambda mhz, now_s: power_w, counter_period_s=counter_period_s
    )


def measure(gpu: ScriptedGpu, num_periods: int) -> WaitingPower:
    return measure_waiting_power(gpu, num_periods=num_periods, now_s=gpu.now_s, pause=gpu.pass_time)


@pytest.mark.parametrize("num_periods", [4, 200])
def test_the_power_of_a_waiting_gpu_is_found_within_its_error(num_periods: int) -> None:
    gpu = waiting()
    found = measure(gpu, num_periods)
    assert abs(found.power_w - 84.0) <= 3 * found.power_error_w
    assert found.power_error_w < 84.0 * 0.03 / num_periods
    assert gpu.moment_s - 50.0 == pytest.approx(0.1 * num_periods, abs=0.11)
    assert found.sm_clock_mhz == 1400


def test_a_counter_that_stands_still_is_an_error() -> None:
    with pytest.raises(GpuError, match="does not move"):
        measure(waiting(counter_period_s=math.inf), 20)


def test_measuring_ends_where_nobody_waits_any_more() -> None:
    gpu = waiting()
    num_looks = 0

    def look() -> None:
        nonlocal num_looks
        num_looks += 1
        if num_looks == 30:
            raise BlockingPairError("rank 1 ended: killed")

    with pytest.raises(BlockingPairError):
        measure_waiting_power(
            gpu, num_periods=100, now_s=gpu.now_s, pause=gpu.pass_time, check=look
        )
    assert num_looks == 30


def test_too_few_periods_tell_nothing() -> None:
    with pytest.raises(ValueError, match="at least 4"):
        measure(waiting(), 3)
