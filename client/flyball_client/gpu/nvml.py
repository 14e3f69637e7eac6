"""Real NVIDIA GPUs through NVML; the only place that knows its milliwatts and millijoules."""

from __future__ import annotations

import os
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from flyball_client.gpu._base import (
    ClockLimit,
    GpuAddress,
    GpuError,
    GpuNotFoundError,
    GpuNotSupportedError,
    SmClockRange,
)
from flyball_client.gpu.nvml_facts import call_nvml, pynvml


def select_visible(
    local_rank: int, environ: Mapping[str, str], gpus: Sequence[tuple[str, str]]
) -> str:
    """UUID of the GPU that CUDA calls `cuda:local_rank`.

    As CUDA does, the list of CUDA_VISIBLE_DEVICES ends before its first entry that names no
    GPU; entries are indices, or UUIDs of which the beginning is enough.

    Args:
        local_rank: CUDA's device number, from 0.
        environ: with CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER, if set.
        gpus: (name, UUID) of each GPU in NVML's order.

    Raises:
        GpuNotFoundError: fewer GPUs are visible.
        GpuNotSupportedError: the list names MIG instances.
        GpuError: indices are used among different GPUs, and CUDA's order is not NVML's.
    """
    listed = environ.get("CUDA_VISIBLE_DEVICES")
    entries = [str(i) for i in range(len(gpus))] if listed is None else listed.split(",")
    visible: list[str] = []
    for entry in (entry.strip() for entry in entries):
        uuid = _named_gpu(entry, environ, gpus)
        if uuid is None:
            break
        visible.append(uuid)
    if not 0 <= local_rank < len(visible):
        setting = "is not set" if listed is None else f"is {listed!r}"
        raise GpuNotFoundError(
            f"local rank {local_rank} has no GPU: {len(visible)} of {len(gpus)} are visible"
            f" (CUDA_VISIBLE_DEVICES {setting})"
        )
    return visible[local_rank]


def _named_gpu(
    entry: str, environ: Mapping[str, str], gpus: Sequence[tuple[str, str]]
) -> str | None:
    if entry.startswith("MIG-"):
        raise GpuNotSupportedError(
            "CUDA_VISIBLE_DEVICES names a MIG instance, whose clock cannot be set alone;"
            " name whole GPUs"
        )
    if entry.startswith("GPU-"):
        matching = [uuid for _, uuid in gpus if uuid.startswith(entry)]
        return matching[0] if len(matching) == 1 else None
    if not (entry.isascii() and entry.isdigit() and int(entry) < len(gpus)):
        return None
    _check_order(environ, gpus)
    return gpus[int(entry)][1]


def _check_order(environ: Mapping[str, str], gpus: Sequence[tuple[str, str]]) -> None:
    # By default CUDA puts the fastest GPU first and NVML goes by PCI bus; among equal GPUs
    # both go by PCI bus.
    is_mixed = len({name for name, _ in gpus}) > 1
    if is_mixed and environ.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID":
        raise GpuError(
            "the GPUs of this machine differ, so CUDA numbers them its own way;"
            " set CUDA_DEVICE_ORDER=PCI_BUS_ID"
        )


_MJ_PER_J = 1000.0

# The bits of nvmlClocksEventReason* by what they mean. "HW slowdown" (8) comes with the bit of
# its cause where the driver knows it. Locked clocks (2) and sync boost (0x10) are not listed:
# they are no reason for less than a lock asks for.
_LIMIT_REASONS = {
    ClockLimit.IDLE: 0x1,
    ClockLimit.POWER: 0x4 | 0x80,  # software power cap, hardware power brake
    ClockLimit.THERMAL: 0x20 | 0x40,  # software and hardware thermal slowdown
    ClockLimit.OTHER: 0x8 | 0x100,  # hardware slowdown, display clock setting
}


@dataclass(frozen=True, kw_only=True)
class NvmlGpuInfo:
    """Facts that NVML reports of one GPU.

    Attributes:
        index: in NVML's order, by PCI bus.
        sm_clocks_mhz: that can be locked, MHz, falling; empty where the GPU does not tell.
        has_mig: divided into instances (MIG); its clocks are then not set.
    """

    index: int
    name: str
    uuid: str
    sm_clocks_mhz: tuple[int, ...]
    has_mig: bool


class NvmlGpu:
    """One GPU, a GpuDevice; made by `open`.

    Locking and resetting clocks needs root or CAP_SYS_ADMIN; the rest does not.
    """

    def __init__(
        self, handle: object, *, name: str, uuid: str, return_range: SmClockRange | None
    ) -> None:
        self._handle = handle
        self._name = name
        self._uuid = uuid
        self._return_range = return_range
        self._clocks_mhz: tuple[int, ...] = ()
        self._is_locked = False
        self._is_closed = False

    @classmethod
    def open(
        cls,
        *,
        uuid: str | None = None,
        index: int | None = None,
        return_range: SmClockRange | None = None,
    ) -> NvmlGpu:
        """The GPU of this UUID, or at this index in NVML's order.

        Args:
            uuid: `GPU-...`.
            index: from 0.
            return_range: what `reset_sm_clock` goes back to; None: the driver's default.

        Raises:
            ValueError: neither or both are given.
            GpuNotFoundError: there is no such GPU, or no NVML.
            GpuNotSupportedError: the GPU is divided by MIG.
        """
        if (uuid is None) == (index is None):
            raise ValueError("give either uuid or index")
        call_nvml("starting NVML", "nvmlInit")
        try:
            handle = _handle_of_uuid(uuid) if uuid is not None else _handle_of_index(index or 0)
            gpu = cls(handle, name=_name(handle), uuid=_uuid(handle), return_range=return_range)
            if _has_mig(handle):
                raise GpuNotSupportedError(
                    f"{gpu.uuid} is divided by MIG, and its instances share one clock;"
                    " turn MIG off to set clocks"
                )
        except BaseException:
            pynvml.nvmlShutdown()
            raise
        return gpu

    def __repr__(self) -> str:
        return f"<NvmlGpu {self._name!r} {self._uuid}>"

    @property
    def name(self) -> str:
        """The product's name."""
        return self._name

    @property
    def uuid(self) -> str:
        """The GPU's UUID."""
        return self._uuid

    @property
    def is_emulated(self) -> bool:
        """False."""
        return False

    @property
    def address(self) -> GpuAddress:
        """Through NVML, by UUID."""
        return GpuAddress(control="nvml", uuid=self._uuid, return_range=self._return_range)

    def supported_sm_clocks_mhz(self) -> tuple[int, ...]:
        """SM clocks under the highest memory clock, MHz, falling; asked once."""
        self._check_open()
        if not self._clocks_mhz:
            self._clocks_mhz = _sm_clocks_mhz(self._handle, self._uuid)
        return self._clocks_mhz

    def lock_sm_clock_mhz(self, sm_clock_mhz: int) -> None:
        """Request this SM clock, as minimum and maximum."""
        if sm_clock_mhz not in self.supported_sm_clocks_mhz():
            raise ValueError(f"{self._uuid} does not support {sm_clock_mhz} MHz")
        # Remembered before the call: interrupted in between, a reset too many does no harm.
        was_locked, self._is_locked = self._is_locked, True
        try:
            self._call(
                f"locking the SM clock of {self._uuid}",
                "nvmlDeviceSetGpuLockedClocks",
                sm_clock_mhz,
                sm_clock_mhz,
            )
        except GpuError:
            self._is_locked = was_locked
            raise

    def reset_sm_clock(self) -> None:
        """Give the SM clock back to the driver, or to the configured range."""
        doing = f"giving back the SM clock of {self._uuid}"
        if self._return_range is None:
            self._call(doing, "nvmlDeviceResetGpuLockedClocks")
        else:
            self._call(
                doing,
                "nvmlDeviceSetGpuLockedClocks",
                self._return_range.lowest_mhz,
                self._return_range.highest_mhz,
            )
        self._is_locked = False

    def sm_clock_mhz(self) -> int:
        """The SM clock in force, MHz."""
        doing = f"reading the SM clock of {self._uuid}"
        return int(self._call(doing, "nvmlDeviceGetClockInfo", pynvml.NVML_CLOCK_SM))

    def clock_limits(self) -> ClockLimit:
        """Return what holds the clock down at this moment, from NVML's clocks-event reasons."""
        doing = f"reading what limits the clock of {self._uuid}"
        try:
            reasons = int(self._call(doing, "nvmlDeviceGetCurrentClocksEventReasons"))
        except GpuNotSupportedError:  # a driver from before the function got this name
            reasons = int(self._call(doing, "nvmlDeviceGetCurrentClocksThrottleReasons"))
        limits = ClockLimit.NONE
        for limit, bits in _LIMIT_REASONS.items():
            if reasons & bits:
                limits |= limit
        return limits

    def total_energy_j(self) -> float:
        """The energy counter, J since the driver was loaded."""
        doing = f"reading the energy of {self._uuid}"
        return int(self._call(doing, "nvmlDeviceGetTotalEnergyConsumption")) / _MJ_PER_J

    def close(self) -> None:
        """Give back a clock that was locked here, and end NVML for this object."""
        if self._is_closed:
            return
        try:
            if self._is_locked:
                self.reset_sm_clock()
        finally:
            self._is_closed = True
            call_nvml("ending NVML", "nvmlShutdown")

    def _call(self, doing: str, function: str, *arguments: object) -> Any:  # noqa: ANN401 - untyped
        self._check_open()
        return call_nvml(doing, function, self._handle, *arguments)

    def _check_open(self) -> None:
        if self._is_closed:
            raise GpuError(f"{self._uuid} is closed; open it again to go on")


def list_nvml_gpus() -> tuple[NvmlGpuInfo, ...]:
    """All GPUs that NVML sees, in its order; empty when the driver sees none.

    Raises:
        GpuNotFoundError: there is no NVML.
        GpuError: a GPU cannot be asked.
    """
    with _nvml():
        return tuple(_info(index) for index in range(_num_gpus()))


def visible_gpu_uuid(local_rank: int, environ: Mapping[str, str] | None = None) -> str:
    """UUID of the GPU that CUDA calls `cuda:local_rank` under CUDA_VISIBLE_DEVICES.

    Args:
        local_rank: CUDA's device number in this process.
        environ: the environment; None: this process's.

    Raises:
        GpuNotFoundError: no such GPU is visible.
        GpuNotSupportedError: it is a MIG instance.
        GpuError: CUDA's order of the GPUs cannot be known; the text says what to set.
    """
    variables = os.environ if environ is None else environ
    with _nvml():
        handles = [_handle_of_index(index) for index in range(_num_gpus())]
        gpus = [(_name(handle), _uuid(handle)) for handle in handles]
    return select_visible(local_rank, variables, gpus)


@contextmanager
def _nvml() -> Generator[None, None, None]:
    call_nvml("starting NVML", "nvmlInit")
    try:
        yield
    finally:
        call_nvml("ending NVML", "nvmlShutdown")


def _num_gpus() -> int:
    return int(call_nvml("counting GPUs", "nvmlDeviceGetCount"))


def _handle_of_index(index: int) -> object:
    num_gpus = _num_gpus()
    if not 0 <= index < num_gpus:
        raise GpuNotFoundError(f"there is no GPU {index}; NVML counts {num_gpus}, from 0")
    return call_nvml(f"opening GPU {index}", "nvmlDeviceGetHandleByIndex", index)


def _handle_of_uuid(uuid: str) -> object:
    if uuid.startswith("MIG-"):
        raise GpuNotSupportedError(f"{uuid} is a MIG instance, whose clock cannot be set alone")
    if not (uuid.startswith("GPU-") and uuid.isascii()):
        raise GpuNotFoundError(f"{uuid!r} is no GPU's UUID; nvidia-smi -L lists them")
    return call_nvml(f"opening {uuid}", "nvmlDeviceGetHandleByUUID", uuid)


def _info(index: int) -> NvmlGpuInfo:
    handle = _handle_of_index(index)
    uuid = _uuid(handle)
    try:
        clocks_mhz = _sm_clocks_mhz(handle, uuid)
    except GpuNotSupportedError:
        clocks_mhz = ()
    return NvmlGpuInfo(
        index=index,
        name=_name(handle),
        uuid=uuid,
        sm_clocks_mhz=clocks_mhz,
        has_mig=_has_mig(handle),
    )


def _name(handle: object) -> str:
    return str(call_nvml("reading a GPU's name", "nvmlDeviceGetName", handle))


def _uuid(handle: object) -> str:
    return str(call_nvml("reading a GPU's UUID", "nvmlDeviceGetUUID", handle))


def _has_mig(handle: object) -> bool:
    try:
        return int(call_nvml("reading the MIG mode", "nvmlDeviceGetMigMode", handle)[0]) == 1
    except GpuNotSupportedError:
        return False


def _sm_clocks_mhz(handle: object, uuid: str) -> tuple[int, ...]:
    doing = f"reading the supported clocks of {uuid}"
    memory_mhz = call_nvml(doing, "nvmlDeviceGetSupportedMemoryClocks", handle)
    if not memory_mhz:
        raise GpuNotSupportedError(f"{doing}: the GPU names no memory clock")
    # Under its lower memory clocks a GPU offers only its lowest SM clocks.
    clocks_mhz = call_nvml(doing, "nvmlDeviceGetSupportedGraphicsClocks", handle, max(memory_mhz))
    return tuple(sorted({int(clock_mhz) for clock_mhz in clocks_mhz}, reverse=True))
