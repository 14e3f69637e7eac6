"""Opening a real GPU: the one of a training rank, as the environment says, or one by its address.

`FLYBALL_CLOCK_CONTROL` says who sets the clocks: this process through NVML, or zeusd.
"""

from __future__ import annotations

import argparse
import logging
import os
import re
from collections.abc import Mapping
from pathlib import Path

from flyball_client.gpu._base import (
    GpuAddress,
    GpuDevice,
    GpuError,
    GpuNotFoundError,
    GpuNotSupportedError,
    SmClockRange,
)
from flyball_client.gpu.clock_settings import ClockSettings
from flyball_client.gpu.nvml import NvmlGpu, visible_gpu_uuid
from flyball_client.gpu.nvml_facts import index_of, num_gpus, uuid_at

_logger = logging.getLogger(__name__)

DEFAULT_SOCKET = Path("/run/zeusd/zeusd.sock")
_PROCESS_STATUS = Path("/proc/self/status")
_CAP_SYS_ADMIN = 21


def open_gpu(address: GpuAddress) -> GpuDevice:
    """The GPU at this address, opened in this process too.

    Raises:
        ValueError: the address says zeusd, but not where it is.
        GpuError: it cannot be opened.
    """
    if address.control == "nvml":
        return NvmlGpu.open(uuid=address.uuid, return_range=address.return_range)
    if address.endpoint is None:
        raise ValueError(f"the address of {address.uuid} does not say where zeusd is")
    # Its HTTP would take a third of the start of a governor, which mostly needs NVML alone.
    from flyball_client.gpu.zeusd import ZeusdGpu  # noqa: PLC0415

    return ZeusdGpu.open(
        uuid=address.uuid,
        endpoint=address.endpoint,
        token=address.token,
        return_range=address.return_range,
    )


def open_local_gpu(
    local_rank: int,
    environ: Mapping[str, str],
    *,
    default_socket: Path = DEFAULT_SOCKET,
    process_status: Path = _PROCESS_STATUS,
) -> GpuDevice:
    """The GPU that CUDA calls `cuda:local_rank`, its clocks set by whom the environment names.

    Args:
        local_rank: CUDA's device number in this process.
        environ: as for `open_gpu_by_uuid`, with CUDA_VISIBLE_DEVICES, if set.
        default_socket: likewise.
        process_status: likewise.

    Raises:
        ValueError: a variable cannot be used; the text names it.
        GpuError: the GPU cannot be found or opened.
    """
    ClockSettings.read(environ)  # what is said wrongly, before what is not there
    return open_gpu_by_uuid(
        visible_gpu_uuid(local_rank, environ),
        environ,
        default_socket=default_socket,
        process_status=process_status,
    )


def open_gpu_by_uuid(
    uuid: str,
    environ: Mapping[str, str],
    *,
    default_socket: Path = DEFAULT_SOCKET,
    process_status: Path = _PROCESS_STATUS,
) -> GpuDevice:
    """The GPU of this UUID, its clocks set by whom the environment names.

    With `auto`, a zeusd that cannot be used is told in one warning, and NVML takes its place.

    Args:
        uuid: `GPU-...`.
        environ: the environment, with FLYBALL_CLOCK_CONTROL, FLYBALL_RETURN_CLOCKS_MHZ,
            ZEUSD_SOCK_PATH, ZEUSD_HOST_PORT and ZEUSD_TOKEN, if set.
        default_socket: where zeusd is when the environment does not say.
        process_status: where the kernel tells this process's capabilities.

    Raises:
        ValueError: a variable cannot be used; the text names it.
        GpuError: the GPU cannot be found or opened.
    """
    settings = ClockSettings.read(environ)
    endpoint = settings.endpoint
    if endpoint is None and (
        settings.control == "zeusd"
        or (
            settings.control == "auto"
            and not _may_set_clocks(process_status)
            and _exists(default_socket)
        )
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


def _open_or_fall_back(address: GpuAddress) -> GpuDevice:
    try:
        return open_gpu(address)
    except GpuError as error:
        if address.control == "nvml":
            raise
        _logger.warning("clocks are set through NVML, not zeusd: %s", error)
    return NvmlGpu.open(uuid=address.uuid, return_range=address.return_range)


def _check_return_range(gpu: GpuDevice, return_range: SmClockRange | None) -> None:
    """Now, not when a clock is to be given back and the driver refuses."""
    if return_range is None:
        return
    try:
        clocks_mhz = gpu.supported_sm_clocks_mhz()
    except GpuNotSupportedError:  # no clock will be set, and none given back
        return
    if return_range.lowest_mhz < clocks_mhz[-1] or return_range.highest_mhz > clocks_mhz[0]:
        raise ValueError(
            f"FLYBALL_RETURN_CLOCKS_MHZ must lie within {clocks_mhz[-1]}:{clocks_mhz[0]}, which"
            f" {gpu.uuid} supports, not {return_range.lowest_mhz}:{return_range.highest_mhz}"
        )


def _may_set_clocks(process_status: Path) -> bool:
    """Return whether this process has CAP_SYS_ADMIN, as root has outside of containers."""
    try:
        lines = process_status.read_text().splitlines()
    except OSError:
        return os.geteuid() == 0
    masks = [line.split()[1] for line in lines if line.startswith("CapEff:")]
    return any(int(mask, 16) >> _CAP_SYS_ADMIN & 1 for mask in masks)


def _exists(file: Path) -> bool:
    try:
        return file.exists()
    except OSError:  # in a folder that may not be entered
        return False


_INDEX_OR_UUID = re.compile(r"[0-9]{1,4}|GPU-[0-9A-Za-z-]{1,80}")


def gpu_argument(text: str) -> str:
    """An index or a UUID, as argparse's `type`."""
    if _INDEX_OR_UUID.fullmatch(text) is None:
        raise argparse.ArgumentTypeError(
            f"{text!r} is neither a GPU's index nor its UUID; nvidia-smi -L lists both"
        )
    return text


def uuid_of(named: str) -> str:
    """UUID of the GPU that an argument names; within `nvml_session`.

    Raises:
        GpuNotFoundError: there is no such GPU.
        GpuError: it cannot be asked.
    """
    if not named.isdigit():
        index_of(named)
        return named
    num_here = num_gpus()
    if int(named) >= num_here:
        raise GpuNotFoundError(f"there is no GPU {named}; NVML counts {num_here}, from 0")
    return uuid_at(int(named))


def open_by_uuid(uuid: str, environ: Mapping[str, str]) -> GpuDevice:
    """The GPU of this UUID, its clocks set by whom the environment names.

    Raises:
        ValueError: a variable cannot be used; the text names it.
        GpuError: the GPU cannot be found or opened.
    """
    if not uuid.startswith("GPU-"):
        raise GpuNotFoundError(f"{uuid!r} is no GPU's UUID; nvidia-smi -L lists them")
    return open_gpu_by_uuid(uuid, environ)
