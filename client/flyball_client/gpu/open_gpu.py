"""Opening a real GPU: the one of a training rank, as the environment says, or one by its address.

`FLYBALL_CLOCK_CONTROL` says who sets the clocks: this process through NVML, or zeusd.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from flyball_client.gpu._base import (
    GpuAddress,
    GpuDevice,
    GpuError,
    GpuNotSupportedError,
    SmClockRange,
)
from flyball_client.gpu.nvml import NvmlGpu, visible_gpu_uuid
from flyball_client.gpu.zeusd import ZeusdGpu
from flyball_client.gpu.zeusd_connection import check_endpoint, check_token

_logger = logging.getLogger(__name__)

DEFAULT_SOCKET = Path("/run/zeusd/zeusd.sock")
_PROCESS_STATUS = Path("/proc/self/status")
_CAP_SYS_ADMIN = 21
_CONTROLS = ("auto", "nvml", "zeusd")


@dataclass(frozen=True, kw_only=True)
class _Zeusd:
    """Where zeusd is, by the environment; `endpoint` None: nothing is said."""

    endpoint: str | None
    token: str | None


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

    With `auto`, a zeusd that cannot be used is told in one warning, and NVML takes its place.

    Args:
        local_rank: CUDA's device number in this process.
        environ: the environment, with FLYBALL_CLOCK_CONTROL, FLYBALL_RETURN_CLOCKS_MHZ,
            ZEUSD_SOCK_PATH, ZEUSD_HOST_PORT, ZEUSD_TOKEN and CUDA_VISIBLE_DEVICES, if set.
        default_socket: where zeusd is when the environment does not say.
        process_status: where the kernel tells this process's capabilities.

    Raises:
        ValueError: a variable cannot be used; the text names it.
        GpuError: the GPU cannot be found or opened.
    """
    control = environ.get("FLYBALL_CLOCK_CONTROL") or "auto"
    if control not in _CONTROLS:
        raise ValueError(f"FLYBALL_CLOCK_CONTROL must be auto, nvml or zeusd, not {control!r}")
    return_range = _return_range(environ)
    zeusd = _Zeusd(endpoint=None, token=None) if control == "nvml" else _zeusd(environ)
    endpoint = zeusd.endpoint
    if endpoint is None and (
        control == "zeusd"
        or (control == "auto" and not _may_set_clocks(process_status) and _exists(default_socket))
    ):
        endpoint = str(default_socket)
    address = GpuAddress(
        control="nvml" if endpoint is None else "zeusd",
        uuid=visible_gpu_uuid(local_rank, environ),
        endpoint=endpoint,
        token=zeusd.token,
        return_range=return_range,
    )
    gpu = _open_or_fall_back(address) if control == "auto" else open_gpu(address)
    try:
        _check_return_range(gpu, return_range)
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


def _zeusd(environ: Mapping[str, str]) -> _Zeusd:
    """Where zeusd is, in the order that Zeus itself goes by: the socket first."""
    token = environ.get("ZEUSD_TOKEN") or None
    if token is not None:
        _check("ZEUSD_TOKEN", check_token, token)
    socket_path = environ.get("ZEUSD_SOCK_PATH")
    if socket_path:
        # Absolute, since another process may open it from another folder.
        endpoint = str(Path(socket_path).absolute())
        _check("ZEUSD_SOCK_PATH", check_endpoint, endpoint)
        return _Zeusd(endpoint=endpoint, token=token)
    host_port = environ.get("ZEUSD_HOST_PORT")
    if not host_port:
        return _Zeusd(endpoint=None, token=token)
    if "/" in host_port:
        raise ValueError(f"ZEUSD_HOST_PORT must be HOST:PORT, not {host_port!r}")
    _check("ZEUSD_HOST_PORT", check_endpoint, host_port)
    return _Zeusd(endpoint=host_port, token=token)


def _check(variable: str, check: Callable[[str], None], value: str) -> None:
    try:
        check(value)
    except ValueError as error:
        raise ValueError(f"{variable}: {error}") from None


def _return_range(environ: Mapping[str, str]) -> SmClockRange | None:
    text = environ.get("FLYBALL_RETURN_CLOCKS_MHZ")
    if not text:
        return None
    lowest, _, highest = text.partition(":")
    try:
        return SmClockRange(lowest_mhz=int(lowest), highest_mhz=int(highest))
    except ValueError:
        raise ValueError(
            f"FLYBALL_RETURN_CLOCKS_MHZ must be LOWEST:HIGHEST in MHz, as 210:1410, not {text!r}"
        ) from None


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
    """Whether this process has CAP_SYS_ADMIN, as root has outside of containers."""
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
