"""Calls to NVML, with its errors as ours; what is read here changes nothing."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import pynvml as _pynvml

from flyball_client.gpu._base import (
    GpuError,
    GpuNotFoundError,
    GpuNotSupportedError,
    GpuPermissionError,
)

# nvidia-ml-py has no types; its results are converted by the callers.
pynvml: Any = _pynvml

# name of the code -> (error, advice)
NVML_ERRORS: dict[str, tuple[type[GpuError], str]] = {
    "NVML_ERROR_UNINITIALIZED": (GpuError, "open the GPU again"),
    "NVML_ERROR_INVALID_ARGUMENT": (GpuError, "the driver refuses this value"),
    "NVML_ERROR_NOT_SUPPORTED": (
        GpuNotSupportedError,
        "this GPU or its driver cannot do it (locked clocks need Volta or later)",
    ),
    "NVML_ERROR_NO_PERMISSION": (
        GpuPermissionError,
        "run as root or give the process CAP_SYS_ADMIN",
    ),
    "NVML_ERROR_ALREADY_INITIALIZED": (GpuError, "open the GPU again"),
    "NVML_ERROR_NOT_FOUND": (GpuNotFoundError, "nvidia-smi -L lists the GPUs"),
    "NVML_ERROR_INSUFFICIENT_SIZE": (GpuError, "update nvidia-ml-py"),
    "NVML_ERROR_INSUFFICIENT_POWER": (GpuError, "check the GPU's power cables"),
    "NVML_ERROR_DRIVER_NOT_LOADED": (GpuNotFoundError, "load the NVIDIA driver"),
    "NVML_ERROR_TIMEOUT": (GpuError, "try again"),
    "NVML_ERROR_IRQ_ISSUE": (GpuError, "see the kernel log for the GPU's interrupts"),
    "NVML_ERROR_LIBRARY_NOT_FOUND": (
        GpuNotFoundError,
        "install the NVIDIA driver, or set FLYBALL_GPU=emulated:PROFILE.csv",
    ),
    "NVML_ERROR_FUNCTION_NOT_FOUND": (GpuNotSupportedError, "update the NVIDIA driver"),
    "NVML_ERROR_CORRUPTED_INFOROM": (GpuError, "have the GPU checked"),
    "NVML_ERROR_GPU_IS_LOST": (GpuNotFoundError, "the GPU fell off the bus; reboot"),
    "NVML_ERROR_RESET_REQUIRED": (GpuError, "reset the GPU with nvidia-smi -r"),
    "NVML_ERROR_OPERATING_SYSTEM": (
        GpuError,
        "the system or the container blocks the GPU; allow the device",
    ),
    "NVML_ERROR_LIB_RM_VERSION_MISMATCH": (
        GpuError,
        "driver and library differ; reboot or reload the driver",
    ),
    "NVML_ERROR_IN_USE": (GpuError, "another process holds the GPU; try again"),
    "NVML_ERROR_MEMORY": (GpuError, "free some memory"),
    "NVML_ERROR_NO_DATA": (GpuNotSupportedError, "the GPU has no such data"),
    "NVML_ERROR_VGPU_ECC_NOT_SUPPORTED": (GpuNotSupportedError, "the virtual GPU needs ECC off"),
    "NVML_ERROR_INSUFFICIENT_RESOURCES": (GpuError, "close other users of the GPU"),
    "NVML_ERROR_FREQ_NOT_SUPPORTED": (
        GpuNotSupportedError,
        "flyball clocks lists the supported clocks",
    ),
    "NVML_ERROR_ARGUMENT_VERSION_MISMATCH": (
        GpuNotSupportedError,
        "nvidia-ml-py and the driver differ; update the older of the two",
    ),
    "NVML_ERROR_DEPRECATED": (GpuNotSupportedError, "the driver no longer offers this"),
    "NVML_ERROR_NOT_READY": (GpuError, "try again"),
    "NVML_ERROR_GPU_NOT_FOUND": (GpuNotFoundError, "nvidia-smi -L lists the GPUs"),
    "NVML_ERROR_INVALID_STATE": (GpuError, "the GPU is in a state that does not allow this"),
    "NVML_ERROR_RESET_TYPE_NOT_SUPPORTED": (GpuNotSupportedError, "reboot instead"),
    "NVML_ERROR_UNKNOWN": (GpuError, "see the kernel log of the NVIDIA driver"),
}

# An older nvidia-ml-py lacks the newest names.
_BY_CODE: dict[int, tuple[type[GpuError], str]] = {
    int(getattr(pynvml, name)): mapped
    for name, mapped in NVML_ERRORS.items()
    if hasattr(pynvml, name)
}


def call_nvml(doing: str, function: str, *arguments: object) -> Any:  # noqa: ANN401 - untyped
    """Call a function of NVML and return its result; `doing` is for an error's text.

    Raises:
        GpuError: Error of NVML's code, as in the table above.
    """
    try:
        return getattr(pynvml, function)(*arguments)
    except pynvml.NVMLError as error:
        raise gpu_error(doing, error.value, str(error)) from None


def gpu_error(doing: str, code: int, description: str) -> GpuError:
    """Return the client's error for a code; a code that is not in the table is a GpuError."""
    kind, advice = _BY_CODE.get(code, (GpuError, "see NVML's documentation of this code"))
    return kind(f"{doing}: {description.rstrip('.')}; {advice}")


@contextmanager
def nvml_session() -> Generator[None, None, None]:
    """Start NVML for a `with` block, which the functions below need.

    Raises:
        GpuError: NVML cannot be started.
    """
    call_nvml("starting NVML", "nvmlInit")
    try:
        yield
    finally:
        call_nvml("ending NVML", "nvmlShutdown")


def num_gpus() -> int:
    """Return the number of GPUs, lost ones included."""
    return int(call_nvml("counting GPUs", "nvmlDeviceGetCount"))


def handle_at(index: int) -> object:
    """Return the handle of the GPU at this index in NVML's order."""
    return call_nvml(f"opening GPU {index}", "nvmlDeviceGetHandleByIndex", index)


def handle_of(uuid: str) -> object:
    """Return the handle of the GPU with this UUID."""
    return call_nvml(f"opening {uuid}", "nvmlDeviceGetHandleByUUID", uuid)


def uuid_at(index: int) -> str:
    """Return the UUID of the GPU at this index in NVML's order."""
    return str(call_nvml(f"opening GPU {index}", "nvmlDeviceGetUUID", handle_at(index)))


def event_reasons(handle: object, uuid: str) -> int:
    """Return the bits of nvmlClocksEventReason* that hold now."""
    doing = f"reading the limits of the clock of {uuid}"
    try:
        return int(call_nvml(doing, "nvmlDeviceGetCurrentClocksEventReasons", handle))
    except GpuNotSupportedError:  # the function's former name
        return int(call_nvml(doing, "nvmlDeviceGetCurrentClocksThrottleReasons", handle))


def module_power_code(handle: object, uuid: str) -> int | None:
    """Return NVML's code for the power of the GPU's whole module; None: the call failed."""
    field = (pynvml.NVML_FI_DEV_POWER_INSTANT, pynvml.NVML_POWER_SCOPE_MODULE)
    doing = f"reading the module's power of {uuid}"
    try:
        (value,) = call_nvml(doing, "nvmlDeviceGetFieldValues", handle, [field])
    except GpuError:
        return None
    return int(value.nvmlReturn)
