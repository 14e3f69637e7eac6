"""Opening of real GPUs: of a training rank, by UUID, or by an address.

`FLYBALL_CLOCK_CONTROL` selects the way of setting clocks: NVML in this process, or zeusd.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from flyball_client.gpu._base import (
    GpuAddress,
    GpuDevice,
    GpuError,
    GpuNotFoundError,
    GpuNotSupportedError,
    GpuPermissionError,
    SmClockRange,
)
from flyball_client.gpu.clock_settings import ClockSettings
from flyball_client.gpu.nvml import NvmlGpu, rank_gpu_uuid, visible_gpu_uuid
from flyball_client.gpu.nvml_facts import index_of, uuid_at

_logger = logging.getLogger(__name__)

DEFAULT_SOCKET = Path("/run/zeusd/zeusd.sock")
_PROCESS = Path("/proc/self")
_OPEN_TIMEOUT_S = 2.0
_OPEN_PAUSE_S = 0.1
_LASTING_ERRORS = (GpuNotFoundError, GpuNotSupportedError, GpuPermissionError)
_CAP_SYS_ADMIN = 21
# /proc/PID/uid_map without a user namespace.
_ALL_IDS = ["0", "0", "4294967295"]
_INDEX_OR_UUID = re.compile(r"[0-9]{1,4}|GPU-[0-9A-Za-z-]{1,80}")

ClockRights = Literal["yes", "no", "only in a user namespace", "unknown"]


def open_gpu(address: GpuAddress) -> GpuDevice:
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
    from flyball_client.gpu.zeusd import ZeusdGpu  # noqa: PLC0415

    return ZeusdGpu.connect(
        uuid=address.uuid,
        endpoint=address.endpoint,
        token=address.token,
        return_range=address.return_range,
    )


def open_local_gpu(
    number: int,
    environ: Mapping[str, str],
    *,
    default_socket: Path = DEFAULT_SOCKET,
    process: Path = _PROCESS,
) -> GpuDevice:
    """Open the GPU that CUDA calls `cuda:number`.

    Args:
        number: CUDA's device number in this process.
        environ: As for `open_gpu_by_uuid`, with CUDA_VISIBLE_DEVICES, if set.
        default_socket: As for `open_gpu_by_uuid`.
        process: As for `open_gpu_by_uuid`.

    Raises:
        ValueError: A variable cannot be used; the text names it.
        GpuError: The GPU cannot be found or opened.
    """
    ClockSettings.read(environ)  # an invalid variable takes precedence over a missing GPU
    uuid = visible_gpu_uuid(number, environ)
    return open_gpu_by_uuid(uuid, environ, default_socket=default_socket, process=process)


def open_rank_gpu(
    environ: Mapping[str, str], *, uuid: str | None, local_rank: int | None
) -> GpuDevice:
    """Open a rank's GPU; a driver that fails for a moment is waited for.

    Args:
        environ: As for `open_local_gpu`.
        uuid: UUID, of the framework's device; None: it is found by `local_rank`.
        local_rank: Number of the rank on its node, as for `select_for_rank`; None: not known.

    Raises:
        ValueError: A variable cannot be used; the text names it.
        GpuError: The GPU cannot be found or opened.
    """
    ClockSettings.read(environ)
    give_up_s = time.monotonic() + _OPEN_TIMEOUT_S
    while True:
        try:
            return open_gpu_by_uuid(uuid or rank_gpu_uuid(local_rank, environ), environ)
        except _LASTING_ERRORS:
            raise
        except GpuError:
            # As where all ranks of a node start at once.
            if time.monotonic() > give_up_s:
                raise
        time.sleep(_OPEN_PAUSE_S)


def open_gpu_by_uuid(
    uuid: str,
    environ: Mapping[str, str],
    *,
    default_socket: Path = DEFAULT_SOCKET,
    process: Path = _PROCESS,
) -> GpuDevice:
    """Open the GPU with this UUID, with the clock control that the environment selects.

    With `auto`, NVML replaces a zeusd that cannot be used, with one warning.

    Args:
        uuid: UUID, `GPU-...`.
        environ: Environment, with FLYBALL_CLOCK_CONTROL, FLYBALL_RETURN_CLOCKS_MHZ,
            ZEUSD_SOCK_PATH, ZEUSD_HOST_PORT and ZEUSD_TOKEN, if set.
        default_socket: Socket of zeusd where the environment names none.
        process: Folder in /proc of this process.

    Raises:
        ValueError: A variable cannot be used; the text names it.
        GpuError: The GPU cannot be found or opened.
    """
    settings = ClockSettings.read(environ)
    endpoint = settings.endpoint
    if endpoint is None and (
        settings.control == "zeusd"
        or (settings.control == "auto" and not may_set_clocks(process) and exists(default_socket))
    ):
        endpoint = str(default_socket)
    address = GpuAddress(
        control="nvml" if endpoint is None else "zeusd",
        uuid=uuid,
        endpoint=endpoint,
        token=settings.token,
        return_range=settings.return_range,
    )
    gpu = _open_or_fall_back(address) if settings.control == "auto" else open_gpu(address)
    try:
        _check_return_range(gpu, settings.return_range)
    except BaseException:
        gpu.close()
        raise
    return gpu


def reset_clock(uuid: str, environ: Mapping[str, str]) -> None:
    """Restore the clock of a GPU, locked or not.

    Args:
        uuid: UUID, `GPU-...`.
        environ: As for `open_gpu_by_uuid`.

    Raises:
        ValueError: A variable cannot be used; the text names it.
        GpuError: It cannot be restored.
    """
    gpu = open_gpu_by_uuid(uuid, environ)
    try:
        gpu.reset_sm_clock()
    finally:
        with contextlib.suppress(GpuError):
            gpu.close()


def _open_or_fall_back(address: GpuAddress) -> GpuDevice:
    try:
        return open_gpu(address)
    except GpuError as error:
        if address.control == "nvml":
            raise
        _logger.warning("clocks are set through NVML, not zeusd: %s", error)
    return NvmlGpu.open(uuid=address.uuid, return_range=address.return_range)


def _check_return_range(gpu: GpuDevice, return_range: SmClockRange | None) -> None:
    """Check the range before it is needed."""
    if return_range is None:
        return
    try:
        clocks_mhz = gpu.supported_sm_clocks_mhz()
    except GpuNotSupportedError:  # no clock will be set or restored
        return
    if return_range.lowest_mhz < clocks_mhz[-1] or return_range.highest_mhz > clocks_mhz[0]:
        raise ValueError(
            f"FLYBALL_RETURN_CLOCKS_MHZ must lie within {clocks_mhz[-1]}:{clocks_mhz[0]}, which"
            f" {gpu.uuid} supports, not {return_range}"
        )


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


def exists(file: Path) -> bool:
    """Return whether a file exists; False in a folder that cannot be read."""
    try:
        return file.exists()
    except OSError:
        return False


def gpu_argument(text: str) -> str:
    """Check an index or a UUID; argparse's `type`."""
    if _INDEX_OR_UUID.fullmatch(text) is None:
        raise argparse.ArgumentTypeError(
            f"{text!r} is neither a GPU's index nor its UUID; nvidia-smi -L lists both"
        )
    return text


def uuid_of(named: str) -> str:
    """Return the UUID of the GPU with this index or UUID, within `nvml_session`.

    Raises:
        GpuNotFoundError: There is no such GPU.
        GpuError: It cannot be read.
    """
    if named.isdigit():
        return uuid_at(int(named))
    index_of(named)
    return named
