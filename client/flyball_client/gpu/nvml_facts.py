"""Facts that NVML reports of a driver and its GPUs beyond the GPU contract; reads only."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata

from flyball_client.gpu._base import GpuNotSupportedError
from flyball_client.gpu.nvml_errors import call_nvml

# nvmlClocksEventReasonApplicationsClocksSetting: somebody chose the clocks, locked or not.
_CHOSEN_CLOCKS = 0x2


@dataclass(frozen=True, kw_only=True)
class NvmlVersions:
    """Of the driver, of its NVML library (None: too old to tell), of the Python binding."""

    driver: str
    nvml: str | None
    binding: str


@contextmanager
def nvml_session() -> Generator[None, None, None]:
    """NVML started, and ended afterwards; the functions below want to be called within.

    Raises:
        GpuError: NVML cannot be started.
    """
    call_nvml("starting NVML", "nvmlInit")
    try:
        yield
    finally:
        call_nvml("ending NVML", "nvmlShutdown")


def nvml_versions() -> NvmlVersions:
    """Return who answers here."""
    try:
        nvml = str(call_nvml("reading NVML's version", "nvmlSystemGetNVMLVersion"))
    except GpuNotSupportedError:
        nvml = None
    try:
        binding = metadata.version("nvidia-ml-py")
    except metadata.PackageNotFoundError:
        binding = "unknown"
    return NvmlVersions(driver=driver_version(), nvml=nvml, binding=binding)


def driver_version() -> str:
    """The driver's version, as nvidia-smi shows it."""
    return str(call_nvml("reading the driver's version", "nvmlSystemGetDriverVersion"))


def num_gpus() -> int:
    """GPUs that NVML counts, the lost ones too."""
    return int(call_nvml("counting GPUs", "nvmlDeviceGetCount"))


def uuid_at(index: int) -> str:
    """UUID of the GPU at this index in NVML's order."""
    doing = f"opening GPU {index}"
    handle = call_nvml(doing, "nvmlDeviceGetHandleByIndex", index)
    return str(call_nvml(doing, "nvmlDeviceGetUUID", handle))


def index_of(uuid: str) -> int:
    """Index of this GPU in NVML's order."""
    return int(call_nvml(f"counting up to {uuid}", "nvmlDeviceGetIndex", _handle(uuid)))


def is_persistent(uuid: str) -> bool:
    """Return whether the driver stays loaded while nobody uses the GPU."""
    doing = f"reading the persistence mode of {uuid}"
    return int(call_nvml(doing, "nvmlDeviceGetPersistenceMode", _handle(uuid))) == 1


def compute_capability(uuid: str) -> tuple[int, int]:
    """CUDA's generation of the GPU; 7.0 is Volta."""
    doing = f"reading the compute capability of {uuid}"
    major, minor = call_nvml(doing, "nvmlDeviceGetCudaComputeCapability", _handle(uuid))
    return int(major), int(minor)


def has_chosen_clocks(uuid: str) -> bool:
    """Return whether the driver reports that a chosen clock is what bounds the clock now."""
    doing = f"reading what limits the clock of {uuid}"
    handle = _handle(uuid)
    try:
        reasons = int(call_nvml(doing, "nvmlDeviceGetCurrentClocksEventReasons", handle))
    except GpuNotSupportedError:  # a driver from before the function got this name
        reasons = int(call_nvml(doing, "nvmlDeviceGetCurrentClocksThrottleReasons", handle))
    return bool(reasons & _CHOSEN_CLOCKS)


def _handle(uuid: str) -> object:
    return call_nvml(f"opening {uuid}", "nvmlDeviceGetHandleByUUID", uuid)
