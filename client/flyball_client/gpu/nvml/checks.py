"""The part of `flyball doctor` that is NVIDIA's: driver, generations, rights, and zeusd."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from importlib import metadata
from pathlib import Path

from flyball_client.gpu._base import ClockLimit, GpuAddress, GpuDevice, GpuNotSupportedError
from flyball_client.gpu.checks import CheckResult, counted, ok, problem, warning
from flyball_client.gpu.nvml.facts import (
    call_nvml,
    event_reasons,
    handle_of,
    nvml_session,
)
from flyball_client.gpu.nvml.vendor import NvidiaVendor, clock_rights
from flyball_client.gpu.zeusd.check import check_zeusd

_HOW_TO_GET_IT = (
    "run the ranks as root, give their container --cap-add SYS_ADMIN, or run zeusd and set"
    " ZEUSD_SOCK_PATH"
)
_VOLTA = 7  # first compute capability with locked clocks
# nvmlClocksEventReasonApplicationsClocksSetting: the clocks were set, locked or not.
_CHOSEN_CLOCKS = 0x2


class NvidiaChecks:
    """The GpuChecks of NVIDIA's GPUs."""

    no_gpus_advice = "give the container its GPUs (docker: --gpus all), or see the kernel's log"
    numbering_advice = "set CUDA_VISIBLE_DEVICES to whole GPUs"
    lock_advice = "nvidia-smi -q -d CLOCK shows application clocks"
    limit_advice: Mapping[ClockLimit, str] = {
        ClockLimit.THERMAL: "check the cooling: nvidia-smi -q -d TEMPERATURE",
        ClockLimit.POWER: "compare the limit with its default: nvidia-smi -q -d POWER",
        ClockLimit.OTHER: "see nvidia-smi -q -d PERFORMANCE",
    }

    def __init__(self, default_socket: Path) -> None:
        self._default_socket = default_socket

    def check_daemons(self, environ: Mapping[str, str]) -> Iterator[CheckResult]:
        """Check zeusd."""
        yield check_zeusd(environ, self._default_socket)

    @nvml_session()
    def check_driver(self) -> CheckResult:
        """Return the versions in use."""
        try:
            version = str(call_nvml("reading NVML's version", "nvmlSystemGetNVMLVersion"))
            nvml = f", NVML {version}"
        except GpuNotSupportedError:
            nvml = ""
        try:
            binding = metadata.version("nvidia-ml-py")
        except metadata.PackageNotFoundError:
            binding = "unknown"
        driver = NvidiaVendor().driver_version()
        return ok("NVML", f"driver {driver}{nvml}, nvidia-ml-py {binding}")

    def parts(self) -> Mapping[str, Callable[[GpuDevice, str], CheckResult]]:
        """Return the checks of the GPU's generation and of the persistence mode."""
        return {"model": self._check_model, "persistence": self._check_persistence}

    @nvml_session()
    def _check_model(self, gpu: GpuDevice, name: str) -> CheckResult:
        """Check that the GPU's clocks can be locked: from Volta on."""
        what = f"{gpu.name}, {gpu.uuid}"
        clocks_mhz = gpu.supported_sm_clocks_mhz()
        number = counted(len(clocks_mhz), "SM clock")
        doing = f"reading the compute capability of {gpu.uuid}"
        try:
            major, minor = call_nvml(
                doing, "nvmlDeviceGetCudaComputeCapability", handle_of(gpu.uuid)
            )
        except GpuNotSupportedError:  # the list of clocks is sufficient
            major, minor = _VOLTA, 0
        if major < _VOLTA or len(clocks_mhz) < 2:
            return problem(
                name,
                f"{what}: compute capability {major}.{minor}, {number}",
                "use a GPU of the Volta generation (7.0) or later; this one sets no clocks",
            )
        return ok(name, f"{what}: {number}, {clocks_mhz[-1]} to {clocks_mhz[0]} MHz")

    @nvml_session()
    def _check_persistence(self, gpu: GpuDevice, name: str) -> CheckResult:
        """Check that the driver stays loaded while the GPU is not in use."""
        doing = f"reading the persistence mode of {gpu.uuid}"
        try:
            mode = call_nvml(doing, "nvmlDeviceGetPersistenceMode", handle_of(gpu.uuid))
        except GpuNotSupportedError:
            return ok(name, "this driver has no persistence mode")
        if int(mode) == 1:
            return ok(name, "persistence mode is on")
        return warning(
            name,
            "persistence mode is off: the driver resets clocks and power limits while the GPU is"
            " not in use, and every start waits for it",
            "start nvidia-persistenced, or run nvidia-smi -pm 1 as root",
        )

    def check_control(self, name: str, address: GpuAddress | None, note: str) -> CheckResult:
        """Check the right to set clocks, of zeusd or of this process."""
        if address is not None and address.control == "zeusd":
            return ok(name, f"through zeusd at {address.endpoint}")
        result = _check_rights(name)
        if note and result.state == "ok":
            advice = "NVML works; unset the variables of zeusd if it is not meant"
            return CheckResult.of_error(name, RuntimeError(note), advice, state="warning")
        return result

    @nvml_session()
    def has_chosen_clocks(self, uuid: str) -> bool:
        """Return whether the driver reports a clock setting as the limit of the clock."""
        return bool(event_reasons(handle_of(uuid), uuid) & _CHOSEN_CLOCKS)


def _check_rights(name: str) -> CheckResult:
    rights = clock_rights()
    if rights == "unknown":
        rights = "yes" if os.geteuid() == 0 else "no"
    if rights == "yes":
        return ok(name, "through NVML, with CAP_SYS_ADMIN")
    if rights == "no":
        found = "this process may not set clocks: it has no CAP_SYS_ADMIN and uses no zeusd"
        return problem(name, found, _HOW_TO_GET_IT)
    return warning(
        name,
        "CAP_SYS_ADMIN is limited to this user namespace (a rootless container?), and the driver"
        " will probably refuse",
        f"outside of the namespace: {_HOW_TO_GET_IT}",
    )
