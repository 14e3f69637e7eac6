"""Which of zeusd's GPUs is the one that NVML shows here: its number must never be another's.

zeusd numbers what it sees itself. In a container this process may see fewer GPUs, and the
address of zeusd may be another machine's, so a number of NVML's is not taken for one of zeusd's
without a reason.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flyball_client.gpu._base import (
    GpuError,
    GpuNotFoundError,
    GpuNotSupportedError,
    GpuPermissionError,
)
from flyball_client.gpu.nvml import NvmlGpu
from flyball_client.gpu.nvml_errors import call_nvml
from flyball_client.gpu.zeusd_connection import ZeusdConnection

_MJ_PER_J = 1000.0

# How far zeusd's reading of the energy may lie outside of two readings around it: what a GPU
# draws while a counter stands still. Two GPUs that are so near each other are rare.
_ENERGY_SLACK_J = 200.0

_PCI_ADDRESS = re.compile(r"(?:([0-9A-Fa-f]+):)?([0-9A-Fa-f]+):([0-9A-Fa-f]+)(?:\.[0-7])?")

PciAddress = tuple[int, int, int]
"""Domain, bus and device; a GPU's function is 0."""


@dataclass(frozen=True, kw_only=True)
class _Discovery:
    """What `GET /discover` tells; the fields came one after the other in zeusd's history."""

    gpus: Mapping[int, PciAddress | None]
    may_control: bool
    wants_token: bool


def zeusd_gpu_id(connection: ZeusdConnection, gpu: NvmlGpu) -> int:
    """The number by which zeusd calls this GPU.

    Raises:
        GpuNotFoundError: zeusd cannot be reached, or does not have it, or it cannot be known
            which one it is.
        GpuPermissionError: zeusd does not set clocks, or wants a token.
        GpuError: it answered an error or nonsense.
    """
    discovery = _discover(connection)
    if not discovery.may_control:
        raise GpuPermissionError(
            f"zeusd at {connection.endpoint} does not set clocks; start it with its API group"
            " gpu-control"
        )
    if discovery.wants_token and not connection.has_token:
        raise GpuPermissionError(f"zeusd at {connection.endpoint} wants a token; set ZEUSD_TOKEN")
    gpu_id = _find(connection, discovery.gpus, gpu)
    _check_energy(connection, gpu_id, gpu)
    return gpu_id


def _discover(connection: ZeusdConnection) -> _Discovery:
    doing = "asking zeusd for its GPUs"
    answer = connection.ask(doing, "GET", "/discover")
    if answer.status != 200:
        raise connection.refusal(doing, answer)
    try:
        return _parse(answer.json())
    except (AttributeError, KeyError, TypeError, ValueError):
        raise connection.nonsense(doing) from None


def _parse(document: Any) -> _Discovery:  # noqa: ANN401 - JSON
    if "gpus" in document:
        gpus = {int(gpu["id"]): _pci_address(gpu.get("pci_address")) for gpu in document["gpus"]}
    else:
        gpus = dict.fromkeys(map(int, document["gpu_ids"]))
    return _Discovery(
        gpus=gpus,
        may_control="gpu-control" in document.get("enabled_api_groups", ("gpu-control",)),
        wants_token=bool(document.get("auth_required")),
    )


def _pci_address(text: str | None) -> PciAddress | None:
    if text is None:
        return None
    found = _PCI_ADDRESS.fullmatch(text)
    if found is None:
        raise ValueError("no PCI address")
    domain, bus, device = (int(part or "0", 16) for part in found.groups())
    return domain, bus, device


def _find(connection: ZeusdConnection, gpus: Mapping[int, PciAddress | None], gpu: NvmlGpu) -> int:
    doing = f"finding {gpu.uuid} at zeusd"
    handle = call_nvml(doing, "nvmlDeviceGetHandleByUUID", gpu.uuid)
    if all(address is not None for address in gpus.values()):
        pci = call_nvml(doing, "nvmlDeviceGetPciInfo", handle)
        own: PciAddress = (int(pci.domain), int(pci.bus), int(pci.device))
        for gpu_id, address in gpus.items():
            if address == own:
                return gpu_id
        raise _not_the_same(connection, gpu)
    num_here = int(call_nvml(doing, "nvmlDeviceGetCount"))
    if len(gpus) != num_here:
        raise GpuNotFoundError(
            f"zeusd at {connection.endpoint} sees {len(gpus)} GPUs and this process {num_here},"
            " and this zeusd cannot say which is which; update zeusd, or show this process all"
        )
    # Both go by PCI bus.
    return sorted(gpus)[int(call_nvml(doing, "nvmlDeviceGetIndex", handle))]


def _check_energy(connection: ZeusdConnection, gpu_id: int, gpu: NvmlGpu) -> None:
    """Where both show an energy counter, it must be the same one."""
    doing = f"comparing the energy of {gpu.uuid} with zeusd's"
    try:
        before_j = gpu.total_energy_j()
    except GpuNotSupportedError:
        return
    answer = connection.ask(doing, "GET", f"/gpu/get_cumulative_energy?gpu_ids={gpu_id}")
    if answer.status == 401:  # better now than at the first clock
        raise connection.refusal(doing, answer)
    if answer.status != 200:  # it may not tell; that is no reason not to set clocks
        return
    try:
        told_j = int(answer.json()[str(gpu_id)]["energy_mj"]) / _MJ_PER_J
    except (KeyError, TypeError, ValueError):
        raise connection.nonsense(doing) from None
    if not before_j - _ENERGY_SLACK_J <= told_j <= gpu.total_energy_j() + _ENERGY_SLACK_J:
        raise _not_the_same(connection, gpu)


def _not_the_same(connection: ZeusdConnection, gpu: NvmlGpu) -> GpuError:
    return GpuNotFoundError(
        f"zeusd at {connection.endpoint} does not have {gpu.uuid}; it must run on this machine:"
        " see ZEUSD_SOCK_PATH and ZEUSD_HOST_PORT"
    )
