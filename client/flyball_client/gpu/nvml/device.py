"""Real NVIDIA GPUs through NVML; the only file that uses its milliwatts and millijoules."""

from __future__ import annotations

from typing import Any, ClassVar

from flyball_client.gpu._base import (
    ClockLimit,
    GpuAddress,
    GpuError,
    GpuNotFoundError,
    GpuNotSupportedError,
    SmClockRange,
)
from flyball_client.gpu.nvml.conditions import read_conditions
from flyball_client.gpu.nvml.facts import (
    call_nvml,
    event_reasons,
    handle_of,
    module_power_code,
    pynvml,
)
from flyball_profiles.gpu_conditions import GpuConditions
from flyball_profiles.stage_profile import EnergyScope

_MJ_PER_J = 1000.0

# Bits of nvmlClocksEventReason* by meaning. "HW slowdown" (8) is combined with the bit of its
# cause where the driver knows it. Locked clocks (2) and sync boost (0x10) are no limits.
_LIMIT_REASONS = {
    ClockLimit.IDLE: 0x1,
    ClockLimit.POWER: 0x4 | 0x80,  # software power cap, hardware power brake
    ClockLimit.THERMAL: 0x20 | 0x40,  # software and hardware thermal slowdown
    ClockLimit.OTHER: 0x8 | 0x100,  # hardware slowdown, display clock setting
}


class NvmlGpu:
    """One GPU, a GpuDevice; created by `open`.

    Locking and resetting clocks needs root or CAP_SYS_ADMIN; reading does not.
    """

    # Errors of `_set_range` after which the clock is unchanged.
    _no_effect: ClassVar[type[GpuError]] = GpuError

    def __init__(self, handle: object, *, name: str, address: GpuAddress) -> None:
        self.handle = handle
        self._name = name
        self._address = address
        self._clocks_mhz: tuple[int, ...] = ()
        self._is_locked = False
        self._is_closed = False

    @classmethod
    def open(cls, *, uuid: str, return_range: SmClockRange | None = None) -> NvmlGpu:
        """Open the GPU with this UUID.

        Args:
            uuid: UUID, `GPU-...`.
            return_range: Clocks that `reset_sm_clock` sets; None: the driver's default.

        Raises:
            GpuNotFoundError: There is no such GPU, or no NVML.
            GpuNotSupportedError: The GPU is divided by MIG.
        """
        call_nvml("starting NVML", "nvmlInit")
        try:
            handle = _handle_of_uuid(uuid)
            address = GpuAddress(control="nvml", uuid=_uuid(handle), return_range=return_range)
            if _has_mig(handle):
                raise GpuNotSupportedError(
                    f"{address.uuid} is divided by MIG, and its instances share one clock;"
                    " disable MIG to set clocks"
                )
            return NvmlGpu(handle, name=name_of(handle), address=address)
        except BaseException:
            pynvml.nvmlShutdown()
            raise

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r} {self.uuid}>"

    @property
    def name(self) -> str:
        """Name of the product."""
        return self._name

    @property
    def uuid(self) -> str:
        """UUID of the GPU."""
        return self._address.uuid

    @property
    def is_emulated(self) -> bool:
        """False."""
        return False

    @property
    def address(self) -> GpuAddress:
        """Address by UUID."""
        return self._address

    def supported_sm_clocks_mhz(self) -> tuple[int, ...]:
        """Return the SM clocks under the highest memory clock, MHz, falling; read once."""
        self._check_open()
        if not self._clocks_mhz:
            self._clocks_mhz = sm_clocks_of(self.handle, self.uuid)
        return self._clocks_mhz

    def lock_sm_clock_mhz(self, sm_clock_mhz: int) -> None:
        """Request this SM clock, as minimum and maximum."""
        if sm_clock_mhz not in self.supported_sm_clocks_mhz():
            raise ValueError(f"{self.uuid} does not support {sm_clock_mhz} MHz")
        # Stored before the call, which may be interrupted: an unnecessary reset is harmless.
        was_locked, self._is_locked = self._is_locked, True
        try:
            self._set_range(f"locking the SM clock of {self.uuid}", sm_clock_mhz, sm_clock_mhz)
        except self._no_effect:
            self._is_locked = was_locked
            raise

    def reset_sm_clock(self) -> None:
        """Restore the driver's default clock, or the configured range."""
        doing = f"restoring the SM clock of {self.uuid}"
        back = self._address.return_range
        if back is None:
            self._reset(doing)
        else:
            self._set_range(doing, back.lowest_mhz, back.highest_mhz)
        self._is_locked = False

    def sm_clock_mhz(self) -> int:
        """Return the SM clock in force, MHz."""
        doing = f"reading the SM clock of {self.uuid}"
        return int(self._call(doing, "nvmlDeviceGetClockInfo", pynvml.NVML_CLOCK_SM))

    def clock_limits(self) -> ClockLimit:
        """Return the current limits of the clock, from NVML's clocks-event reasons."""
        self._check_open()
        reasons = event_reasons(self.handle, self.uuid)
        limits = ClockLimit.NONE
        for limit, bits in _LIMIT_REASONS.items():
            if reasons & bits:
                limits |= limit
        return limits

    def total_energy_j(self) -> float:
        """Return the energy counter, J since the driver was loaded."""
        doing = f"reading the energy of {self.uuid}"
        return int(self._call(doing, "nvmlDeviceGetTotalEnergyConsumption")) / _MJ_PER_J

    def energy_scope(self) -> EnergyScope | None:
        """Return what the energy counter counts: the module, where NVML has the module's power.

        No call of NVML says what the counter counts. On a GH200 it counts the whole module
        (zeus#172), and power can be read by the scope of a module too; a GPU without a module
        answers NOT_SUPPORTED for that scope, and so does GB10 (zeus#242), whose counter is of the
        GPU. None: the driver failed, or knows no scopes.
        """
        self._check_open()
        code = module_power_code(self.handle, self.uuid)
        if code == pynvml.NVML_SUCCESS:
            return EnergyScope.MODULE
        return EnergyScope.GPU if code == pynvml.NVML_ERROR_NOT_SUPPORTED else None

    def conditions(self) -> GpuConditions | None:
        """Return limits and settings; None: none can be read."""
        self._check_open()
        found = read_conditions(self.handle, self.uuid)
        return found if str(found) else None

    def close(self) -> None:
        """Restore a clock that was locked here, and end NVML for this object."""
        if self._is_closed:
            return
        try:
            if self._is_locked:
                self.reset_sm_clock()
        finally:
            self._is_closed = True
            self._free()

    def _set_range(self, doing: str, lowest_mhz: int, highest_mhz: int) -> None:
        self._call(doing, "nvmlDeviceSetGpuLockedClocks", lowest_mhz, highest_mhz)

    def _reset(self, doing: str) -> None:
        self._call(doing, "nvmlDeviceResetGpuLockedClocks")

    def _free(self) -> None:
        call_nvml("ending NVML", "nvmlShutdown")

    def _call(self, doing: str, function: str, *arguments: object) -> Any:  # noqa: ANN401 - untyped
        self._check_open()
        return call_nvml(doing, function, self.handle, *arguments)

    def _check_open(self) -> None:
        if self._is_closed:
            raise GpuError(f"{self.uuid} is closed; open it again")


def _handle_of_uuid(uuid: str) -> object:
    if uuid.startswith("MIG-"):
        raise GpuNotSupportedError(
            f"{uuid} is a MIG instance, whose clock cannot be set separately"
        )
    if not (uuid.startswith("GPU-") and uuid.isascii()):
        raise GpuNotFoundError(f"{uuid!r} is not the UUID of a GPU; nvidia-smi -L lists them")
    return handle_of(uuid)


def name_of(handle: object) -> str:
    """Return the name of the product."""
    return str(call_nvml("reading a GPU's name", "nvmlDeviceGetName", handle))


def _uuid(handle: object) -> str:
    return str(call_nvml("reading a GPU's UUID", "nvmlDeviceGetUUID", handle))


def _has_mig(handle: object) -> bool:
    try:
        return int(call_nvml("reading the MIG mode", "nvmlDeviceGetMigMode", handle)[0]) == 1
    except GpuNotSupportedError:
        return False


def sm_clocks_of(handle: object, uuid: str) -> tuple[int, ...]:
    """Return the SM clocks under the highest memory clock, MHz, falling."""
    doing = f"reading the supported clocks of {uuid}"
    memory_mhz = call_nvml(doing, "nvmlDeviceGetSupportedMemoryClocks", handle)
    if not memory_mhz:
        raise GpuNotSupportedError(f"{doing}: the GPU lists no memory clock")
    # Lower memory clocks support the lowest SM clocks only.
    clocks_mhz = call_nvml(doing, "nvmlDeviceGetSupportedGraphicsClocks", handle, max(memory_mhz))
    return tuple(sorted({int(clock_mhz) for clock_mhz in clocks_mhz}, reverse=True))
