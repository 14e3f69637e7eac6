"""Real GPUs through NVML, and the one that is a rank's."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest
from tests.false_nvml.library import SUPPORTED_MHZ, FalseNvml
from tests.integration.command_in_process import flyball

from flyball_client.gpu._base import (
    GpuError,
    GpuNotFoundError,
    GpuNotSupportedError,
    GpuPermissionError,
)
from flyball_client.gpu.nvml.device import NvmlGpu
from flyball_client.gpu.nvml.facts import NVML_ERRORS, gpu_error, pynvml
from flyball_client.gpu.nvml.vendor import NvidiaVendor, visible_gpus
from flyball_profiles.gpu_conditions import GpuConditions
from flyball_profiles.stage_profile import EnergyScope

NO_PERMISSION = 4
NOT_SUPPORTED = 3
GPU_IS_LOST = 15
UNKNOWN_TO_US = 777
IDLE = 0x1


def test_every_code_of_nvml_has_its_error_which_says_what_was_done_and_what_to_do() -> None:
    codes = {name for name in dir(pynvml) if name.startswith("NVML_ERROR_")}
    assert codes - set(NVML_ERRORS) == set()
    for name in codes:
        kind, advice = NVML_ERRORS[name]
        error = gpu_error("locking", getattr(pynvml, name), "Description.")
        assert type(error) is kind
        assert str(error) == f"locking: Description; {advice}"


def test_a_code_newer_than_the_table_is_a_plain_error(loaded_nvml: FalseNvml) -> None:
    loaded_nvml.fail("nvmlDeviceGetCount_v2", UNKNOWN_TO_US)
    with pytest.raises(GpuError, match="counting GPUs: false NVML error 777"):
        NvidiaVendor().uuids()


@pytest.mark.parametrize("function", ["", "nvmlDeviceGetUUID", "nvmlDeviceGetName"])
def test_a_lost_gpu_keeps_its_index_and_costs_the_others_nothing(
    loaded_nvml: FalseNvml, function: str
) -> None:
    loaded_nvml.fail(function, GPU_IS_LOST, gpu=0)
    assert NvidiaVendor().visible({}).select(1) == loaded_nvml.uuid(1)
    assert NvidiaVendor().visible({"CUDA_VISIBLE_DEVICES": "1"}).select(0) == loaded_nvml.uuid(1)
    with pytest.raises(GpuNotFoundError, match="cuda:0 cannot be opened"):
        NvidiaVendor().visible({}).select(0)
    assert NvidiaVendor().describe(1).uuid == loaded_nvml.uuid(1)
    with pytest.raises(GpuNotFoundError, match="fell off the bus"):
        NvidiaVendor().describe(0)
    listed = flyball("clocks")
    assert listed.returncode == 0
    assert listed.stderr.startswith("flyball clocks: GPU 0: ")
    assert listed.stdout.startswith(f"GPU 1  False GPU  {loaded_nvml.uuid(1)}")


@pytest.mark.parametrize("uuid", ["GPU-unknown", "nonsense", "GPU-\u00e4"])
def test_an_unknown_uuid_is_not_found(loaded_nvml: FalseNvml, uuid: str) -> None:
    with pytest.raises(GpuNotFoundError):
        NvmlGpu.open(uuid=uuid)
    # Whoever failed to open has ended NVML again.
    assert len(loaded_nvml.calls("nvmlInitWithFlags")) == len(loaded_nvml.calls("nvmlShutdown"))


def test_a_mig_instance_or_a_divided_gpu_is_refused_and_one_without_mig_is_whole(
    loaded_nvml: FalseNvml,
) -> None:
    with pytest.raises(GpuNotSupportedError, match="MIG instance"):
        NvmlGpu.open(uuid="MIG-1")
    loaded_nvml.set_mig(1)
    assert NvidiaVendor().describe(0).sm_clocks_mhz == SUPPORTED_MHZ
    loaded_nvml.fail("nvmlDeviceGetMigMode", NOT_SUPPORTED)
    gpu = NvmlGpu.open(uuid=loaded_nvml.uuid(0))
    assert gpu.supported_sm_clocks_mhz() == SUPPORTED_MHZ
    gpu.close()


def test_closing_ends_nvml_even_if_the_clock_cannot_be_given_back(loaded_nvml: FalseNvml) -> None:
    gpu = NvmlGpu.open(uuid=loaded_nvml.uuid(0))
    gpu.lock_sm_clock_mhz(1410)
    loaded_nvml.fail("nvmlDeviceResetGpuLockedClocks", NO_PERMISSION)
    with pytest.raises(GpuPermissionError, match="restoring the SM clock"):
        gpu.close()
    gpu.close()
    assert len(loaded_nvml.calls("nvmlShutdown")) == 1


def test_the_counter_of_a_module_is_known_by_the_power_that_its_module_has(
    loaded_nvml: FalseNvml,
) -> None:
    loaded_nvml.set_module_w(150, 1)
    alone, of_module = (NvmlGpu.open(uuid=loaded_nvml.uuid(index)) for index in (0, 1))
    assert (alone.energy_scope(), of_module.energy_scope()) == (EnergyScope.GPU, EnergyScope.MODULE)
    for code in (GPU_IS_LOST, UNKNOWN_TO_US):
        loaded_nvml.fail("nvmlDeviceGetFieldValues", code)
        assert of_module.energy_scope() is None
    for gpu in (alone, of_module):
        gpu.close()


def test_conditions_are_those_of_the_driver_at_that_moment(loaded_nvml: FalseNvml) -> None:
    gpu = NvmlGpu.open(uuid=loaded_nvml.uuid(0))
    before = GpuConditions(
        power_limit_w=700.0,
        default_power_limit_w=700.0,
        power_profile="none",
        memory_clock_mhz=2619,
        application_clock_mhz=1980,
        ecc=True,
        persistence=True,
        driver="false-0",
    )
    assert gpu.conditions() == before
    loaded_nvml.set_module_w(150)
    loaded_nvml.set_conditions(
        limit_w=500,
        module_limit_w=900,
        profiles=1 << 1 | 1 << 7,
        memory_mhz=1593,
        application_mhz=1410,
        ecc=False,
    )
    assert gpu.conditions() == replace(
        before,
        power_limit_w=500.0,
        module_power_limit_w=900.0,
        power_profile="max-q+llm-training",
        memory_clock_mhz=1593,
        application_clock_mhz=1410,
        ecc=False,
    )
    gpu.close()


def test_a_power_profile_that_is_requested_counts_once_it_is_enforced(
    loaded_nvml: FalseNvml,
) -> None:
    max_p, max_q = 1 << 0, 1 << 1
    gpu = NvmlGpu.open(uuid=loaded_nvml.uuid(0))

    def profile() -> str | None:
        found = gpu.conditions()
        return None if found is None else found.power_profile

    loaded_nvml.set_conditions(unenforced=max_q)
    assert profile() == "none"
    loaded_nvml.set_conditions(profiles=max_p)
    assert profile() == "max-p"
    loaded_nvml.set_conditions(profiles=max_q, unenforced=max_p)
    assert profile() == "max-q"
    loaded_nvml.set_conditions(profiles=-1)
    assert profile() is None
    gpu.close()


def test_each_reading_may_be_refused_and_costs_no_other(loaded_nvml: FalseNvml) -> None:
    loaded_nvml.set_module_w(150)
    loaded_nvml.set_conditions(limit_w=600, module_limit_w=900)
    gpu = NvmlGpu.open(uuid=loaded_nvml.uuid(0))
    whole = gpu.conditions()
    assert whole is not None
    assert None not in vars(whole).values()
    for function, name in (
        ("nvmlDeviceGetEnforcedPowerLimit", "power_limit_w"),
        ("nvmlDeviceGetPowerManagementDefaultLimit", "default_power_limit_w"),
        ("nvmlDeviceGetFieldValues", "module_power_limit_w"),
        ("nvmlDeviceWorkloadPowerProfileGetCurrentProfiles", "power_profile"),
        ("nvmlDeviceGetClockInfo", "memory_clock_mhz"),
        ("nvmlDeviceGetApplicationsClock", "application_clock_mhz"),
        ("nvmlDeviceGetEccMode", "ecc"),
        ("nvmlDeviceGetPersistenceMode", "persistence"),
        ("nvmlSystemGetDriverVersion", "driver"),
    ):
        loaded_nvml.fail(function, NOT_SUPPORTED)
        assert gpu.conditions() == replace(whole, **{name: None})
        loaded_nvml.work_again()
    loaded_nvml.set_event_reasons(IDLE)  # its memory clock is that of a GPU at rest
    assert gpu.conditions() == replace(whole, memory_clock_mhz=None)
    loaded_nvml.fail("", GPU_IS_LOST)
    assert gpu.conditions() is None
    loaded_nvml.work_again()
    gpu.close()


def test_the_energy_is_in_joules(loaded_nvml: FalseNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = NvmlGpu.open(uuid=loaded_nvml.uuid(0))
    monkeypatch.setattr(pynvml, "nvmlDeviceGetTotalEnergyConsumption", lambda _: 1234567)
    assert gpu.total_energy_j() == pytest.approx(1234.567)
    gpu.close()


WITHOUT_LIBRARY = """
import pynvml
def CDLL(name): raise OSError
pynvml.CDLL = CDLL
from flyball_client.gpu._base import GpuNotFoundError
from flyball_client.gpu.nvml.vendor import NvidiaVendor
try:
    NvidiaVendor().uuids()
except GpuNotFoundError as error:
    print(error)
"""


def test_without_the_library_no_gpu_is_found() -> None:
    command = [sys.executable, "-W", "error", "-c", WITHOUT_LIBRARY]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.startswith("starting NVML: NVML Shared Library Not Found")
    assert done.stdout.count("\n") == 1


EQUAL = [("H200", "GPU-aaaa-0"), ("H200", "GPU-aabb-1"), ("H200", "GPU-cccc-2")]
MIXED = [("T4", "GPU-aaaa-0"), ("H200", "GPU-aabb-1")]


@pytest.mark.parametrize(
    ("setting", "local_rank", "uuid"),
    [
        (None, 1, "GPU-aabb-1"),
        ("2,0", 1, "GPU-aaaa-0"),
        (" 1 , 2 ", 1, "GPU-cccc-2"),
        ("GPU-cccc-2", 0, "GPU-cccc-2"),
        ("GPU-c,GPU-aaa", 1, "GPU-aaaa-0"),
        ("1,-1,2", 0, "GPU-aabb-1"),
    ],
)
def test_the_number_counts_within_what_is_visible(
    setting: str | None, local_rank: int, uuid: str
) -> None:
    environ = {} if setting is None else {"CUDA_VISIBLE_DEVICES": setting}
    assert visible_gpus(environ, EQUAL).select(local_rank) == uuid


@pytest.mark.parametrize(
    ("setting", "local_rank", "num_visible"),
    [
        ("", 0, 0),
        (None, 3, 3),
        (None, -1, 3),
        ("0,1", 2, 2),
        ("0,-1,1", 1, 1),
        ("7", 0, 0),
        ("GPU-aa", 0, 0),  # two GPUs begin like this
        ("none", 0, 0),
    ],
)
def test_a_number_beyond_what_is_visible_is_not_found(
    setting: str | None, local_rank: int, num_visible: int
) -> None:
    environ = {} if setting is None else {"CUDA_VISIBLE_DEVICES": setting}
    with pytest.raises(GpuNotFoundError, match=f": {num_visible} of 3 GPUs are visible"):
        visible_gpus(environ, EQUAL).select(local_rank)


@pytest.mark.parametrize("setting", [None, "0,2"])
def test_of_several_visible_gpus_none_is_chosen_without_a_number(setting: str | None) -> None:
    environ = {} if setting is None else {"CUDA_VISIBLE_DEVICES": setting}
    with pytest.raises(GpuError, match="no variable such as LOCAL_RANK or SLURM_LOCALID says"):
        visible_gpus(environ, EQUAL).select_for_rank(None)
    assert visible_gpus(environ, EQUAL).select_for_rank(1) == visible_gpus(environ, EQUAL).select(1)


@pytest.mark.parametrize("local_rank", [None, 0, 2])
def test_one_visible_gpu_is_the_ranks_whatever_its_number(local_rank: int | None) -> None:
    # A launcher shows each rank its own.
    assert (
        visible_gpus({"CUDA_VISIBLE_DEVICES": "1"}, EQUAL).select_for_rank(local_rank)
        == "GPU-aabb-1"
    )
    assert visible_gpus({}, EQUAL[:1]).select_for_rank(local_rank) == "GPU-aaaa-0"


def test_a_mig_instance_is_refused_and_different_gpus_need_the_order_of_the_bus() -> None:
    with pytest.raises(GpuNotSupportedError, match="names a MIG instance"):
        visible_gpus({"CUDA_VISIBLE_DEVICES": "MIG-1234"}, EQUAL).select(0)
    with pytest.raises(GpuError, match="set CUDA_DEVICE_ORDER=PCI_BUS_ID"):
        visible_gpus({}, MIXED).select(0)
    ordered = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    assert visible_gpus(ordered, MIXED).select(0) == "GPU-aaaa-0"
    by_uuid = {"CUDA_VISIBLE_DEVICES": "GPU-aabb"}
    assert visible_gpus(by_uuid, MIXED).select(0) == "GPU-aabb-1"
