"""The contract of GpuDevice, over every implementation."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from tests.false_nvml.library import FalseNvml
from tests.false_zeusd.server import FalseZeusd
from tests.made_up_gpus.vendor import UUIDS

from flyball_client.gpu._base import (
    ClockLimit,
    GpuAddress,
    GpuDevice,
    GpuError,
    GpuNotSupportedError,
    SmClockRange,
)
from flyball_client.gpu.emulated import IDEAL_GPU, EmulatedGpu
from flyball_client.gpu.registry import open_gpu, vendor_of
from flyball_pipeline.instruction import InstructionKind
from flyball_profiles.stage_profile import OperatingPoint, StageProfile

CALLS: dict[str, Callable[[GpuDevice], object]] = {
    "supported_sm_clocks_mhz": lambda gpu: gpu.supported_sm_clocks_mhz(),
    "lock_sm_clock_mhz": lambda gpu: gpu.lock_sm_clock_mhz(1410),
    "reset_sm_clock": lambda gpu: gpu.reset_sm_clock(),
    "sm_clock_mhz": lambda gpu: gpu.sm_clock_mhz(),
    "clock_limits": lambda gpu: gpu.clock_limits(),
    "total_energy_j": lambda gpu: gpu.total_energy_j(),
    "energy_scope": lambda gpu: gpu.energy_scope(),
    "conditions": lambda gpu: gpu.conditions(),
}

# With their noise.
EMULATED = {"emulated": 0.0, "emulated-noisy": 0.2}
REAL = ["nvml", "zeusd-unix", "zeusd-tcp"]
TOKEN = "a token"  # noqa: S105 - nobody's

Open = Callable[..., GpuDevice]


def emulated_gpu(*, noise: float = 0.0) -> EmulatedGpu:
    points = tuple(
        OperatingPoint(frequency_mhz=mhz, time_s=140.0 / mhz, energy_j=0.02 * mhz)
        for mhz in range(1410, 900, -15)
    )
    profile = StageProfile(
        points={(0, InstructionKind.FORWARD): points, (0, InstructionKind.BACKWARD): points},
        num_ranks_per_stage=(1,),
    )
    return EmulatedGpu(
        profile, 0, blocking_power_w=80.0, settings=replace(IDEAL_GPU, noise=noise, seed=1)
    )


@contextmanager
def reachable(kind: str, nvml: FalseNvml, folder: Path) -> Generator[GpuAddress, None, None]:
    """The false NVML's first GPU, by one of the ways to reach it."""
    if kind == "nvml":
        yield GpuAddress(control="nvml", uuid=nvml.uuid(0))
        return
    place = folder / "zeusd.sock" if kind == "zeusd-unix" else None
    with FalseZeusd(nvml, place, token=TOKEN) as zeusd:
        yield GpuAddress(control="zeusd", uuid=nvml.uuid(0), endpoint=zeusd.endpoint, token=TOKEN)


@pytest.fixture(params=REAL)
def address(
    request: pytest.FixtureRequest, loaded_nvml: FalseNvml, tmp_path: Path
) -> Iterator[GpuAddress]:
    """Each way to reach a real GPU."""
    with reachable(request.param, loaded_nvml, tmp_path) as found:
        yield found


@pytest.fixture
def open_here(address: GpuAddress) -> Iterator[Open]:
    """Opens that GPU, as often as it is called; closes all."""
    with ExitStack() as opened:

        def open_one(return_range: SmClockRange | None = None) -> GpuDevice:
            device = open_gpu(replace(address, return_range=return_range))
            opened.callback(device.close)
            return device

        yield open_one


@pytest.fixture(params=[*EMULATED, *REAL, "made-up"])
def gpu(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[GpuDevice]:
    """Each implementation, open, at its default clock."""
    if request.param in EMULATED:
        device: GpuDevice = emulated_gpu(noise=EMULATED[request.param])
        yield device
        device.close()
        return
    if request.param == "made-up":
        request.getfixturevalue("made_up_gpus")
        device = open_gpu(GpuAddress(control="mul", uuid=UUIDS[0]))
        yield device
        device.close()
        return
    nvml = request.getfixturevalue("loaded_nvml")
    assert isinstance(nvml, FalseNvml)
    with reachable(request.param, nvml, tmp_path) as found:
        device = open_gpu(found)
        yield device
        device.close()


class TestGpuDevice:
    def test_its_names_say_whether_it_is_emulated_and_its_clocks_fall(self, gpu: GpuDevice) -> None:
        assert gpu.name.startswith("emulated ") == gpu.is_emulated
        prefix = "EMULATED-" if gpu.is_emulated else vendor_of(gpu.uuid).uuid_prefix
        assert gpu.uuid.startswith(prefix)
        clocks_mhz = gpu.supported_sm_clocks_mhz()
        assert len(clocks_mhz) > 1
        assert list(clocks_mhz) == sorted(set(clocks_mhz), reverse=True)
        assert gpu.supported_sm_clocks_mhz() == clocks_mhz

    def test_a_locked_clock_is_in_force(self, gpu: GpuDevice) -> None:
        for clock_mhz in gpu.supported_sm_clocks_mhz():
            gpu.lock_sm_clock_mhz(clock_mhz)
            assert gpu.sm_clock_mhz() == clock_mhz

    def test_an_unsupported_clock_changes_nothing(self, gpu: GpuDevice) -> None:
        gpu.lock_sm_clock_mhz(1200)
        for clock_mhz in (0, -1410, 1, 1411, 10**6):
            with pytest.raises(ValueError, match=str(clock_mhz)):
                gpu.lock_sm_clock_mhz(clock_mhz)
            assert gpu.sm_clock_mhz() == 1200

    def test_a_reset_brings_the_default_back_and_may_come_at_any_time(self, gpu: GpuDevice) -> None:
        default_mhz = gpu.sm_clock_mhz()
        gpu.reset_sm_clock()
        assert gpu.sm_clock_mhz() == default_mhz
        gpu.lock_sm_clock_mhz(gpu.supported_sm_clocks_mhz()[-1])
        for _ in range(2):
            gpu.reset_sm_clock()
            assert gpu.sm_clock_mhz() == default_mhz

    def test_nothing_limits_the_clock_of_a_gpu_at_rest(self, gpu: GpuDevice) -> None:
        assert gpu.clock_limits() == ClockLimit.NONE
        gpu.lock_sm_clock_mhz(1200)
        assert gpu.clock_limits() == ClockLimit.NONE  # the lock itself is no limit

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

    def test_after_closing_every_call_is_an_error_of_ours(self, gpu: GpuDevice) -> None:
        gpu.lock_sm_clock_mhz(1200)
        gpu.close()
        gpu.close()
        for call in CALLS.values():
            with pytest.raises(GpuError, match="closed"):
                call(gpu)


class TestRealGpuDevice:
    def test_its_address_opens_the_same_gpu_in_the_same_way(
        self, address: GpuAddress, open_here: Open, loaded_nvml: FalseNvml
    ) -> None:
        gpu = open_here()
        assert gpu.address == address
        again = open_gpu(gpu.address)
        assert (again.uuid, type(again)) == (gpu.uuid, type(gpu))
        gpu.close()
        again.lock_sm_clock_mhz(1200)
        assert loaded_nvml.locked_mhz() == 1200
        again.close()

    def test_minimum_and_maximum_of_this_gpu_alone_are_locked_together(
        self, open_here: Open, loaded_nvml: FalseNvml
    ) -> None:
        loaded_nvml.set_range_mhz(900, 900, 1)
        gpu = open_here()
        gpu.lock_sm_clock_mhz(1410)
        assert loaded_nvml.range_mhz() == (1410, 1410)
        gpu.reset_sm_clock()
        assert loaded_nvml.range_mhz() == (0, 0)
        gpu.close()
        assert loaded_nvml.locked_mhz(1) == 900
        # Whoever was opened and closed has ended NVML again.
        started = loaded_nvml.calls("nvmlInitWithFlags")
        assert len(started) == len(loaded_nvml.calls("nvmlShutdown")) > 0

    def test_what_limits_the_clock_is_told_in_our_terms(
        self, open_here: Open, loaded_nvml: FalseNvml
    ) -> None:
        gpu = open_here()
        gpu.lock_sm_clock_mhz(1410)
        loaded_nvml.hold_below_mhz(1200)
        assert gpu.sm_clock_mhz() == 1200
        assert gpu.clock_limits() == ClockLimit.POWER
        loaded_nvml.hold_below_mhz(0)
        assert gpu.clock_limits() == ClockLimit.NONE
        for reasons, limits in (
            (0x2 | 0x10, ClockLimit.NONE),  # clocks set, sync boost
            (0x1, ClockLimit.IDLE),
            (0x80, ClockLimit.POWER),
            (0x20, ClockLimit.THERMAL),
            (0x8 | 0x40, ClockLimit.THERMAL | ClockLimit.OTHER),
            (0x4 | 0x100, ClockLimit.POWER | ClockLimit.OTHER),
        ):
            loaded_nvml.set_event_reasons(reasons)
            assert gpu.clock_limits() == limits, hex(reasons)

    def test_a_clock_goes_back_to_the_range_that_the_device_was_opened_with(
        self, open_here: Open, loaded_nvml: FalseNvml
    ) -> None:
        back = SmClockRange(lowest_mhz=210, highest_mhz=1410)
        gpu = open_here(back)
        assert gpu.address is not None
        assert gpu.address.return_range == back
        gpu.lock_sm_clock_mhz(1200)
        gpu.reset_sm_clock()
        assert loaded_nvml.range_mhz() == (210, 1410)
        gpu.lock_sm_clock_mhz(1200)
        gpu.close()
        assert loaded_nvml.range_mhz() == (210, 1410)

    def test_closing_gives_back_what_was_locked_here_and_nothing_else(
        self, open_here: Open, loaded_nvml: FalseNvml
    ) -> None:
        watching = open_here()
        locking = open_here()
        locking.lock_sm_clock_mhz(1200)
        watching.close()
        assert loaded_nvml.locked_mhz() == 1200
        locking.close()
        assert loaded_nvml.range_mhz() == (0, 0)

    def test_a_gpu_that_mig_divides_is_refused(
        self, open_here: Open, loaded_nvml: FalseNvml
    ) -> None:
        loaded_nvml.set_mig(1)
        with pytest.raises(GpuNotSupportedError, match="divided by MIG"):
            open_here()
