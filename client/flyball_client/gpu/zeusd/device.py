"""Real NVIDIA GPUs whose clocks zeusd sets, for processes without the right to set them.

zeusd is the daemon of the Zeus project. It has the right to set clocks, and does so on requests
over HTTP on a Unix socket or TCP.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flyball_client.gpu._base import (
    GpuAddress,
    GpuError,
    GpuNotFoundError,
    GpuNotSupportedError,
    GpuPermissionError,
    SmClockRange,
)
from flyball_client.gpu.nvml.device import NvmlGpu
from flyball_client.gpu.nvml.facts import call_nvml, num_gpus
from flyball_client.gpu.zeusd.connection import ZeusdAnswer, ZeusdConnection

_MJ_PER_J = 1000.0

# Tolerance of zeusd's energy reading against NVML's readings before and after it: the energy of one
# period of the counter.
_ENERGY_SLACK_J = 200.0

_PCI_ADDRESS = re.compile(r"(?:([0-9A-Fa-f]+):)?([0-9A-Fa-f]+):([0-9A-Fa-f]+)(?:\.[0-7])?")

PciAddress = tuple[int, int, int]
"""Domain, bus and device; a GPU's function is 0."""


@dataclass(frozen=True, kw_only=True)
class Discovery:
    """Answer to `GET /discover`; fields that older versions of zeusd lack have defaults.

    Attributes:
        gpus: PCI addresses by zeusd's numbers; None: not reported.
        may_control: True: zeusd sets clocks.
        wants_token: True: zeusd requires a token.
    """

    gpus: Mapping[int, PciAddress | None]
    may_control: bool
    wants_token: bool


def zeusd_gpu_id(connection: ZeusdConnection, gpu: NvmlGpu) -> int:
    """Return zeusd's number of this GPU.

    Raises:
        GpuNotFoundError: zeusd cannot be reached, does not have the GPU, or cannot identify it.
        GpuPermissionError: zeusd does not set clocks, or requires a token.
        GpuError: zeusd failed, or did not follow its API.
    """
    discovery = discover(connection)
    if not discovery.may_control:
        raise GpuPermissionError(
            f"zeusd at {connection.endpoint} does not set clocks; start it with its API group"
            " gpu-control"
        )
    if discovery.wants_token and not connection.has_token:
        raise GpuPermissionError(
            f"zeusd at {connection.endpoint} requires a token; set ZEUSD_TOKEN"
        )
    gpu_id = _find(connection, discovery.gpus, gpu)
    _check_energy(connection, gpu_id, gpu)
    return gpu_id


def discover(connection: ZeusdConnection) -> Discovery:
    """Return zeusd's GPUs and its requirements.

    Raises:
        GpuError: zeusd cannot be reached, failed, or did not follow its API.
    """
    doing = "listing the GPUs of zeusd"
    answer = connection.ask(doing, "GET", "/discover")
    if answer.status != 200:
        raise connection.refusal(doing, answer)
    try:
        return _parse(answer.json())
    except (AttributeError, KeyError, TypeError, ValueError):
        raise connection.not_zeusd(doing) from None


def _parse(document: Any) -> Discovery:  # noqa: ANN401 - JSON
    if "gpus" in document:
        gpus = {int(gpu["id"]): _pci_address(gpu.get("pci_address")) for gpu in document["gpus"]}
    else:
        gpus = dict.fromkeys(map(int, document["gpu_ids"]))
    return Discovery(
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
    if all(address is not None for address in gpus.values()):
        pci = call_nvml(doing, "nvmlDeviceGetPciInfo", gpu.handle)
        own: PciAddress = (int(pci.domain), int(pci.bus), int(pci.device))
        for gpu_id, address in gpus.items():
            if address == own:
                return gpu_id
        raise _not_the_same(connection, gpu)
    num_here = num_gpus()
    if len(gpus) != num_here:
        raise GpuNotFoundError(
            f"zeusd at {connection.endpoint} has {len(gpus)} GPUs, this process has {num_here},"
            " and this zeusd does not report PCI addresses; update zeusd, or make all GPUs visible"
            " to this process"
        )
    # Both are ordered by PCI bus.
    return sorted(gpus)[int(call_nvml(doing, "nvmlDeviceGetIndex", gpu.handle))]


def read_energy(connection: ZeusdConnection, gpu_id: int, doing: str) -> ZeusdAnswer:
    """Return zeusd's answer about the energy of a GPU.

    Raises:
        GpuPermissionError: The token is refused.
        GpuError: zeusd cannot be reached.
    """
    answer = connection.ask(doing, "GET", f"/gpu/get_cumulative_energy?gpu_ids={gpu_id}")
    if answer.status == 401:
        raise connection.refusal(doing, answer)
    return answer


def _check_energy(connection: ZeusdConnection, gpu_id: int, gpu: NvmlGpu) -> None:
    """Check that zeusd and NVML read the same energy counter, where both can."""
    doing = f"comparing the energy of {gpu.uuid} with zeusd's"
    try:
        before_j = gpu.total_energy_j()
    except GpuNotSupportedError:
        return
    answer = read_energy(connection, gpu_id, doing)
    if answer.status != 200:  # reading may be disabled while clocks can be set
        return
    try:
        energy_j = int(answer.json()[str(gpu_id)]["energy_mj"]) / _MJ_PER_J
    except (KeyError, TypeError, ValueError):
        raise connection.not_zeusd(doing) from None
    if not before_j - _ENERGY_SLACK_J <= energy_j <= gpu.total_energy_j() + _ENERGY_SLACK_J:
        raise _not_the_same(connection, gpu)


def _not_the_same(connection: ZeusdConnection, gpu: NvmlGpu) -> GpuError:
    return GpuNotFoundError(
        f"zeusd at {connection.endpoint} does not have {gpu.uuid}; it must run on this machine:"
        " see ZEUSD_SOCK_PATH and ZEUSD_HOST_PORT"
    )


class ZeusdGpu(NvmlGpu):
    """One GPU whose clock zeusd sets, created by `connect`; it is read through NVML."""

    # After another error zeusd may have carried out the request.
    _no_effect = GpuPermissionError

    def __init__(
        self, nvml: NvmlGpu, address: GpuAddress, connection: ZeusdConnection, gpu_id: int
    ) -> None:
        super().__init__(nvml.handle, name=nvml.name, address=address)
        self._connection = connection
        self._gpu_id = gpu_id

    @classmethod
    def connect(
        cls,
        *,
        uuid: str,
        endpoint: str,
        token: str | None = None,
        return_range: SmClockRange | None = None,
        timeout_s: float = 1.0,
    ) -> ZeusdGpu:
        """Open the GPU with this UUID, and find it at zeusd.

        Args:
            uuid: UUID, `GPU-...`.
            endpoint: Path of zeusd's socket, or `HOST:PORT`.
            token: Token for zeusd, printable ASCII; None: no token.
            return_range: Clocks that `reset_sm_clock` sets; None: the driver's default.
            timeout_s: Timeout in s of connecting, sending and receiving.

        Raises:
            ValueError: Endpoint, token or timeout is invalid.
            GpuNotFoundError: There is no such GPU, no NVML, or no zeusd with this GPU.
            GpuNotSupportedError: The GPU is divided by MIG.
            GpuPermissionError: zeusd refuses access, or does not set clocks.
            GpuError: zeusd fails, does not follow its API, or exceeds the timeout.
        """
        connection = ZeusdConnection(endpoint, token=token, timeout_s=timeout_s)
        address = GpuAddress(
            control="zeusd", uuid=uuid, endpoint=endpoint, token=token, return_range=return_range
        )
        nvml = NvmlGpu.open(uuid=uuid)
        try:
            gpu_id = zeusd_gpu_id(connection, nvml)
        except BaseException:
            connection.close()
            nvml.close()
            raise
        return cls(nvml, address, connection, gpu_id)

    def _set_range(self, doing: str, lowest_mhz: int, highest_mhz: int) -> None:
        self._order(
            doing,
            f"set_gpu_locked_clocks?gpu_ids={self._gpu_id}&min_clock_mhz={lowest_mhz}"
            f"&max_clock_mhz={highest_mhz}",
        )

    def _reset(self, doing: str) -> None:
        self._order(doing, f"reset_gpu_locked_clocks?gpu_ids={self._gpu_id}")

    def _order(self, doing: str, command: str) -> None:
        self._check_open()
        # block=true: zeusd answers after the driver has, with its error.
        self._connection.order(doing, f"/gpu/{command}&block=true")

    def _free(self) -> None:
        self._connection.close()
        super()._free()
