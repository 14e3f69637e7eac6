"""NVIDIA's GPUs: which there are, who may set their clocks, and how."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Literal

from flyball_client.gpu._base import (
    GpuAddress,
    GpuDevice,
    GpuError,
    GpuNotSupportedError,
    GpuPermissionError,
)
from flyball_client.gpu.nvml import facts
from flyball_client.gpu.nvml.conditions import read_conditions
from flyball_client.gpu.nvml.device import NvmlGpu, name_of, sm_clocks_of
from flyball_client.gpu.nvml.facts import nvml_session
from flyball_client.gpu.vendor import ClockSettings, GpuChecks, ListedGpu, VisibleGpus
from flyball_client.gpu.zeusd.settings import DEFAULT_SOCKET, ZeusdSettings, socket_exists

_PROCESS = Path("/proc/self")
_CAP_SYS_ADMIN = 21
# /proc/PID/uid_map without a user namespace.
_ALL_IDS = ["0", "0", "4294967295"]

ClockRights = Literal["yes", "no", "only in a user namespace", "unknown"]


class NvidiaVendor:
    """The GpuVendor of NVIDIA's GPUs: read through NVML, set through NVML or zeusd.

    Args:
        default_socket: Socket of zeusd where the environment names none.
        process: Folder in /proc of the process whose rights count.
    """

    library = "NVML"
    lister = "nvidia-smi -L"
    uuid_prefix = "GPU-"
    controls: tuple[str, ...] = ("nvml", "zeusd")
    torch_backend = "cuda"

    def __init__(self, *, default_socket: Path = DEFAULT_SOCKET, process: Path = _PROCESS) -> None:
        self._default_socket = default_socket
        self._process = process

    def session(self) -> AbstractContextManager[object]:
        """Start NVML for a `with` block."""
        return nvml_session()

    @nvml_session()
    def driver_version(self) -> str:
        """Return the driver's version, as nvidia-smi prints it."""
        return str(facts.call_nvml("reading the driver's version", "nvmlSystemGetDriverVersion"))

    @nvml_session()
    def uuids(self) -> list[str | GpuError]:
        """Return the UUID of each GPU by NVML's index, or its error."""
        return [_uuid_or_error(index) for index in range(facts.num_gpus())]

    @nvml_session()
    def describe(self, index: int) -> ListedGpu:
        """Return the GPU at this index, also one that MIG divides."""
        handle, uuid = facts.handle_at(index), facts.uuid_at(index)
        try:
            clocks_mhz = sm_clocks_of(handle, uuid)
        except GpuNotSupportedError:
            clocks_mhz = ()
        return ListedGpu(
            index=index,
            name=name_of(handle),
            uuid=uuid,
            sm_clocks_mhz=clocks_mhz,
            conditions=read_conditions(handle, uuid),
        )

    @nvml_session()
    def visible(self, environ: Mapping[str, str]) -> VisibleGpus:
        """Return the GPUs that CUDA sees, as `visible_gpus`.

        A lost GPU keeps its index, and no rank of another GPU has to do without clocks for it.
        """
        return visible_gpus(environ, [_name_and_uuid(index) for index in range(facts.num_gpus())])

    @nvml_session()
    def computing_processes(self, uuid: str) -> tuple[int, ...]:
        """Return the numbers of the processes that compute on the GPU, as the driver counts."""
        doing, handle = f"listing the processes on {uuid}", facts.handle_of(uuid)
        processes = facts.call_nvml(doing, "nvmlDeviceGetComputeRunningProcesses", handle)
        return tuple(int(process.pid) for process in processes)

    def check_settings(self, settings: ClockSettings, environ: Mapping[str, str]) -> None:
        """Raise ValueError if a variable of zeusd cannot be used, unless NVML is chosen."""
        if settings.control in {"auto", "zeusd"}:
            ZeusdSettings.read(environ)

    def addresses(
        self, uuid: str, settings: ClockSettings, environ: Mapping[str, str]
    ) -> list[GpuAddress]:
        """Return zeusd's address where it is named or needed, and NVML's unless zeusd is chosen."""
        direct = GpuAddress(control="nvml", uuid=uuid, return_range=settings.return_range)
        if settings.control == "nvml":
            return [direct]
        named, is_chosen = ZeusdSettings.read(environ), settings.control == "zeusd"
        endpoint = named.endpoint
        if endpoint is None and (is_chosen or self._finds_zeusd()):
            endpoint = str(self._default_socket)
        if endpoint is None:
            return [direct]
        through = replace(direct, control="zeusd", endpoint=endpoint, token=named.token)
        return [through] if is_chosen else [through, direct]

    def _finds_zeusd(self) -> bool:
        """Return whether a zeusd that no variable names is here, and needed."""
        return not may_set_clocks(self._process) and socket_exists(self._default_socket)

    def open(self, address: GpuAddress) -> GpuDevice:
        """Open the GPU at this address.

        Raises:
            ValueError: The address is zeusd's, without an endpoint.
            GpuError: The GPU cannot be opened.
        """
        if address.control == "nvml":
            return NvmlGpu.open(uuid=address.uuid, return_range=address.return_range)
        if address.endpoint is None:
            raise ValueError(f"the address of {address.uuid} has no endpoint of zeusd")
        # Imported here, since its HTTP takes a third of the start of a governor.
        from flyball_client.gpu.zeusd.device import ZeusdGpu  # noqa: PLC0415

        return ZeusdGpu.connect(
            uuid=address.uuid,
            endpoint=address.endpoint,
            token=address.token,
            return_range=address.return_range,
        )

    def check_rights(self, address: GpuAddress) -> None:
        """Raise GpuPermissionError if clocks are set through NVML, without CAP_SYS_ADMIN."""
        if address.control == "nvml" and not may_set_clocks(self._process):
            raise GpuPermissionError(
                "this process has no right to set clocks; run as root, give it CAP_SYS_ADMIN, or"
                " use zeusd"
            )

    def checks(self) -> GpuChecks:
        """Return the checks of driver, zeusd and GPUs."""
        from flyball_client.gpu.nvml.checks import NvidiaChecks  # noqa: PLC0415 - of doctor alone

        return NvidiaChecks(self._default_socket)


def _uuid_or_error(index: int) -> str | GpuError:
    try:
        return facts.uuid_at(index)
    except GpuError as error:
        return error


def _name_and_uuid(index: int) -> tuple[str, str]:
    try:
        return name_of(facts.handle_at(index)), facts.uuid_at(index)
    except GpuError:
        return "", ""


def visible_gpus(environ: Mapping[str, str], gpus: Sequence[tuple[str, str]]) -> VisibleGpus:
    """Return the GPUs that CUDA sees, in its order.

    As in CUDA, the list of CUDA_VISIBLE_DEVICES ends before its first invalid entry; entries are
    indices, or UUIDs, which may be abbreviated.

    Args:
        environ: Environment, with CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER, if set.
        gpus: Name and UUID of each GPU in NVML's order; empty: it cannot be opened.

    Raises:
        GpuNotSupportedError: The list names MIG instances.
        GpuError: Indices are used among different GPUs, which CUDA and NVML order differently.
    """
    listed = environ.get("CUDA_VISIBLE_DEVICES")
    entries = [str(i) for i in range(len(gpus))] if listed is None else listed.split(",")
    visible: list[str] = []
    for entry in (entry.strip() for entry in entries):
        uuid = _named_gpu(entry, environ, gpus)
        if uuid is None:
            break
        visible.append(uuid)
    setting = "is not set" if listed is None else f"is {listed!r}"
    return VisibleGpus(uuids=visible, num_gpus=len(gpus), setting=f"CUDA_VISIBLE_DEVICES {setting}")


def _named_gpu(
    entry: str, environ: Mapping[str, str], gpus: Sequence[tuple[str, str]]
) -> str | None:
    if entry.startswith("MIG-"):
        raise GpuNotSupportedError(
            "CUDA_VISIBLE_DEVICES names a MIG instance, whose clock cannot be set separately;"
            " name whole GPUs"
        )
    if entry.startswith("GPU-"):
        matching = [uuid for _, uuid in gpus if uuid.startswith(entry)]
        return matching[0] if len(matching) == 1 else None
    if not (entry.isascii() and entry.isdigit() and int(entry) < len(gpus)):
        return None
    # By default CUDA lists the fastest GPU first, and NVML by PCI bus; equal GPUs both by PCI bus.
    is_mixed = len({name for name, _ in gpus if name}) > 1
    if is_mixed and environ.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID":
        raise GpuError(
            "the GPUs of this machine differ, so CUDA numbers them differently from NVML;"
            " set CUDA_DEVICE_ORDER=PCI_BUS_ID"
        )
    return gpus[int(entry)][1]


def clock_rights(process: Path = _PROCESS) -> ClockRights:
    """Return whether a process has CAP_SYS_ADMIN, as root has outside of containers.

    In a user namespace, as of rootless containers, it does not extend to the driver.

    Args:
        process: Folder in /proc of the process.
    """
    try:
        lines = (process / "status").read_text(encoding="utf-8", errors="replace").splitlines()
        masks = [int(line.split()[1], 16) for line in lines if line.startswith("CapEff:")]
    except (OSError, ValueError, IndexError):
        return "unknown"
    if not masks:
        return "unknown"
    if not masks[0] >> _CAP_SYS_ADMIN & 1:
        return "no"
    try:
        ids = (process / "uid_map").read_text(encoding="ascii").split()
    except (OSError, ValueError):  # a kernel without user namespaces
        return "yes"
    return "yes" if ids == _ALL_IDS else "only in a user namespace"


def may_set_clocks(process: Path = _PROCESS) -> bool:
    """Return whether a process may try to set clocks."""
    rights = clock_rights(process)
    return os.geteuid() == 0 if rights == "unknown" else rights != "no"
