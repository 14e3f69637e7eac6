"""Conditions of an NVIDIA GPU, read through NVML; no call changes anything."""

from __future__ import annotations

import ctypes
import functools
import re
from typing import Any

from flyball_client.gpu._base import GpuError
from flyball_client.gpu.nvml.facts import call_nvml, event_reasons, pynvml
from flyball_profiles.gpu_conditions import GpuConditions

_MW_PER_W, _MOST_MW = 1000.0, 10**9
# nvmlClocksEventReasonGpuIdle: the memory clock of an idle GPU is no condition of its work.
_IDLE = 0x1
_NO_PROFILE = "none"


def read_conditions(handle: object, uuid: str) -> GpuConditions:
    """Return the conditions of a GPU; what cannot be read is None."""
    read = functools.partial(_read, uuid)
    return GpuConditions(
        power_limit_w=_watts(read("nvmlDeviceGetEnforcedPowerLimit", handle)),
        default_power_limit_w=_watts(read("nvmlDeviceGetPowerManagementDefaultLimit", handle)),
        module_power_limit_w=_watts(_module_limit_mw(handle, uuid)),
        power_profile=_power_profile(handle, uuid),
        memory_clock_mhz=_memory_clock_mhz(handle, uuid),
        application_clock_mhz=read("nvmlDeviceGetApplicationsClock", handle, pynvml.NVML_CLOCK_SM),
        ecc=_is_on(read("nvmlDeviceGetEccMode", handle)),
        persistence=_is_on(read("nvmlDeviceGetPersistenceMode", handle)),
        driver=_word(read("nvmlSystemGetDriverVersion")),
    )


def _read(uuid: str, function: str, *arguments: object) -> Any:  # noqa: ANN401 - untyped
    """Return the result of a function of NVML; None: it fails, or this nvidia-ml-py lacks it."""
    if not hasattr(pynvml, function):
        return None
    try:
        return call_nvml(f"reading the conditions of {uuid}", function, *arguments)
    except GpuError:
        return None


def _watts(power_mw: int | None) -> float | None:
    """Return a limit in W; None: not read, or a mark of no limit."""
    return None if power_mw is None or power_mw > _MOST_MW else power_mw / _MW_PER_W


def _is_on(mode: int | list[int] | None) -> bool | None:
    """Return whether a mode is on, of ECC the current mode and not that from the next start on."""
    if mode is None:
        return None
    return bool(mode[0] if isinstance(mode, list) else mode)


def _word(text: str | None) -> str | None:
    return None if text is None else re.sub(r"[^A-Za-z0-9._+-]+", "-", str(text))[:64] or None


def _memory_clock_mhz(handle: object, uuid: str) -> int | None:
    try:
        if event_reasons(handle, uuid) & _IDLE:
            return None
    except GpuError:
        return None
    found = _read(uuid, "nvmlDeviceGetClockInfo", handle, pynvml.NVML_CLOCK_MEM)
    return None if found is None else int(found)


def _module_limit_mw(handle: object, uuid: str) -> int | None:
    """Return the enforced limit of the GPU's whole module, mW; None: it has none of its own."""
    names = ("NVML_FI_DEV_POWER_CURRENT_LIMIT", "NVML_POWER_SCOPE_MODULE")
    if not all(hasattr(pynvml, name) for name in names):
        return None
    field = tuple(getattr(pynvml, name) for name in names)
    values = _read(uuid, "nvmlDeviceGetFieldValues", handle, [field])
    if values is None or values[0].nvmlReturn != pynvml.NVML_SUCCESS:
        return None
    return int(values[0].value.uiVal)


def _power_profile(handle: object, uuid: str) -> str | None:
    """Return the names of the enforced workload power profiles; None: the GPU has no profiles.

    A requested profile that others keep from being enforced is not among them.
    """
    if not hasattr(pynvml, "c_nvmlWorkloadPowerProfileCurrentProfiles_v1_t"):
        return None
    found = pynvml.c_nvmlWorkloadPowerProfileCurrentProfiles_v1_t()
    function = "nvmlDeviceWorkloadPowerProfileGetCurrentProfiles"
    if _read(uuid, function, handle, ctypes.byref(found)) is None:
        return None
    if not any(found.perfProfilesMask.mask):
        return None
    words = found.enforcedProfilesMask.mask
    enforced = [bit for bit in range(32 * len(words)) if words[bit // 32] >> bit % 32 & 1]
    names = _profile_names()
    listed = [names.get(number, f"profile-{number}") for number in enforced]
    return "+".join(listed)[:64] or _NO_PROFILE


@functools.cache
def _profile_names() -> dict[int, str]:
    """Return the names of the profiles by number, as this nvidia-ml-py has them."""
    prefix = "NVML_POWER_PROFILE_"
    names = [name.removeprefix(prefix) for name in dir(pynvml) if name.startswith(prefix)]
    return {
        int(getattr(pynvml, prefix + name)): name.lower().replace("_", "-")
        for name in names
        if not name.startswith("OPERATION_") and name != "MAX"  # the number of them
    }
