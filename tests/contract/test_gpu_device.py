"""The contract of GpuDevice, over every implementation."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest
from tests.false_nvml.library import FalseNvml

from flyball_client.gpu._base import GpuDevice, GpuError
from flyball_client.gpu.emulated import EmulatedGpu
from flyball_client.gpu.nvml import NvmlGpu
from flyball_profiles.stage_profile import InstructionKind, OperatingPoint, StageProfile

CALLS: dict[str, Callable[[GpuDevice], object]] = {
    "supported_sm_clocks_mhz": lambda gpu: gpu.supported_sm_clocks_mhz(),
    "lock_sm_clock_mhz": lambda gpu: gpu.lock_sm_clock_mhz(1410),
    "reset_sm_clock": lambda gpu: gpu.reset_sm_clock(),
    "sm_clock_mhz": lambda gpu: gpu.sm_clock_mhz(),
    "total_energy_j": lambda gpu: gpu.total_energy_j(),
}


def emulated_gpu() -> EmulatedGpu:
    points = tuple(
        OperatingPoint(frequency_mhz=mhz, time_s=140.0 / mhz, energy_j=0.02 * mhz)
        for mhz in range(1410, 900, -15)
    )
    profile = StageProfile(
        points={(0, InstructionKind.FORWARD): points, (0, InstructionKind.BACKWARD): points},
        num_ranks_per_stage=(1,),
    )
    return EmulatedGpu(profile, 0, blocking_power_w=80.0)


@pytest.fixture(params=["emulated", "nvml"])
def gpu(request: pytest.FixtureRequest) -> Iterator[GpuDevice]:
    """Each implementation, open, at its default clock."""
    if request.param == "emulated":
        device: GpuDevice = emulated_gpu()
    else:
        nvml = request.getfixturevalue("loaded_nvml")
        assert isinstance(nvml, FalseNvml)
        device = NvmlGpu.open(uuid=nvml.uuid(0))
    yield device
    device.close()


class TestGpuDevice:
    def test_its_names_say_whether_it_is_emulated(self, gpu: GpuDevice) -> None:
        assert gpu.name.startswith("emulated ") == gpu.is_emulated
        assert gpu.uuid.startswith("EMULATED-") == gpu.is_emulated
        assert gpu.uuid.startswith("GPU-") != gpu.is_emulated

    def test_supported_clocks_fall_and_are_distinct(self, gpu: GpuDevice) -> None:
        clocks_mhz = gpu.supported_sm_clocks_mhz()
        assert len(clocks_mhz) > 1
        assert list(clocks_mhz) == sorted(set(clocks_mhz), reverse=True)
        assert gpu.supported_sm_clocks_mhz() == clocks_mhz

    def test_a_locked_clock_is_in_force(self, gpu: GpuDevice) -> None:
        for clock_mhz in gpu.supported_sm_clocks_mhz():
            gpu.lock_sm_clock_mhz(clock_mhz)
            assert gpu.sm_clock_mhz() == clock_mhz

    @pytest.mark.parametrize("clock_mhz", [0, -1410, 1, 1411, 10**6])
    def test_an_unsupported_clock_changes_nothing(self, gpu: GpuDevice, clock_mhz: int) -> None:
        gpu.lock_sm_clock_mhz(1200)
        with pytest.raises(ValueError, match=str(clock_mhz)):
            gpu.lock_sm_clock_mhz(clock_mhz)
        assert gpu.sm_clock_mhz() == 1200

    def test_a_reset_brings_the_default_back(self, gpu: GpuDevice) -> None:
        default_mhz = gpu.sm_clock_mhz()
        gpu.lock_sm_clock_mhz(gpu.supported_sm_clocks_mhz()[-1])
        gpu.reset_sm_clock()
        assert gpu.sm_clock_mhz() == default_mhz

    def test_a_reset_may_come_at_any_time_and_often(self, gpu: GpuDevice) -> None:
        default_mhz = gpu.sm_clock_mhz()
        gpu.reset_sm_clock()
        gpu.reset_sm_clock()
        assert gpu.sm_clock_mhz() == default_mhz

    def test_the_energy_never_falls_and_rises_in_the_end(self, gpu: GpuDevice) -> None:
        first_j = last_j = gpu.total_energy_j()
        while last_j == first_j:  # the counter moves about every 100 ms
            time.sleep(0.005)
            energy_j = gpu.total_energy_j()
            assert energy_j >= last_j
            last_j = energy_j
        assert last_j > first_j

    def test_another_thread_may_use_it_in_turn(self, gpu: GpuDevice) -> None:
        seen_mhz: list[int] = []

        def use() -> None:
            gpu.lock_sm_clock_mhz(1200)
            seen_mhz.append(gpu.sm_clock_mhz())

        thread = threading.Thread(target=use)
        thread.start()
        thread.join()
        assert seen_mhz == [1200]
        assert gpu.sm_clock_mhz() == 1200

    def test_closing_again_does_nothing(self, gpu: GpuDevice) -> None:
        gpu.lock_sm_clock_mhz(1200)
        gpu.close()
        gpu.close()

    @pytest.mark.parametrize("call", CALLS)
    def test_after_closing_every_call_is_an_error_of_ours(self, gpu: GpuDevice, call: str) -> None:
        gpu.close()
        with pytest.raises(GpuError, match="closed"):
            CALLS[call](gpu)


def test_closing_gives_back_what_was_locked_here_and_nothing_else(loaded_nvml: FalseNvml) -> None:
    watching = NvmlGpu.open(index=0)
    locking = NvmlGpu.open(index=0)
    locking.lock_sm_clock_mhz(1200)
    watching.close()
    assert loaded_nvml.locked_mhz() == 1200
    locking.close()
    assert loaded_nvml.locked_mhz() == 0
