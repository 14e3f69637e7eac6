"""Real NVIDIA GPUs whose clocks zeusd sets: for processes that may not set them themselves.

zeusd is the daemon of the Zeus project. It runs with the right to set clocks and does so for
others, over HTTP on a Unix socket or TCP.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flyball_client.gpu._base import (
    ClockLimit,
    GpuAddress,
    GpuError,
    GpuNotFoundError,
    GpuNotSupportedError,
    GpuPermissionError,
    SmClockRange,
)
from flyball_client.gpu.nvml import NvmlGpu
from flyball_client.gpu.nvml_facts import call_nvml
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
    """Answer to `GET /discover`; zeusd added its fields one after the other."""

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
    """Check that both show the same energy counter, where both show one."""
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


class ZeusdGpu:
    """One GPU, a GpuDevice; made by `open`. It is read through NVML, which anybody may."""

    def __init__(
        self,
        nvml: NvmlGpu,
        connection: ZeusdConnection,
        *,
        gpu_id: int,
        address: GpuAddress,
    ) -> None:
        self._nvml = nvml
        self._connection = connection
        self._gpu_id = gpu_id
        self._address = address
        self._is_locked = False
        self._is_closed = False

    @classmethod
    def open(
        cls,
        *,
        uuid: str,
        endpoint: str,
        token: str | None = None,
        return_range: SmClockRange | None = None,
        timeout_s: float = 1.0,
    ) -> ZeusdGpu:
        """The GPU of this UUID, found at zeusd too.

        Args:
            uuid: `GPU-...`.
            endpoint: the path of zeusd's socket, or `HOST:PORT`.
            token: where zeusd wants one; printable ASCII.
            return_range: what `reset_sm_clock` goes back to; None: the driver's default.
            timeout_s: of connecting to zeusd, sending and receiving each, s.

        Raises:
            ValueError: endpoint, token or timeout cannot be one.
            GpuNotFoundError: there is no such GPU, no NVML, or no zeusd that has it.
            GpuNotSupportedError: the GPU is divided by MIG.
            GpuPermissionError: zeusd may not be reached, or does not set clocks for us.
            GpuError: zeusd answers errors or nonsense, or not in time.
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
        return cls(nvml, connection, gpu_id=gpu_id, address=address)

    def __repr__(self) -> str:
        return f"<ZeusdGpu {self.name!r} {self.uuid} through {self._connection.endpoint}>"

    @property
    def name(self) -> str:
        """The product's name."""
        return self._nvml.name

    @property
    def uuid(self) -> str:
        """The GPU's UUID."""
        return self._nvml.uuid

    @property
    def is_emulated(self) -> bool:
        """False."""
        return False

    @property
    def address(self) -> GpuAddress:
        """Through zeusd, by UUID."""
        return self._address

    def supported_sm_clocks_mhz(self) -> tuple[int, ...]:
        """SM clocks under the highest memory clock, MHz, falling; asked once."""
        return self._nvml.supported_sm_clocks_mhz()

    def lock_sm_clock_mhz(self, sm_clock_mhz: int) -> None:
        """Have zeusd request this SM clock, as minimum and maximum."""
        if sm_clock_mhz not in self.supported_sm_clocks_mhz():
            raise ValueError(f"{self.uuid} does not support {sm_clock_mhz} MHz")
        # Remembered before the call: interrupted in between, a reset too many does no harm.
        was_locked, self._is_locked = self._is_locked, True
        try:
            self._set_range(f"locking the SM clock of {self.uuid}", sm_clock_mhz, sm_clock_mhz)
        except GpuPermissionError:
            # After any other error it is not known whether zeusd did it.
            self._is_locked = was_locked
            raise

    def reset_sm_clock(self) -> None:
        """Have zeusd give the SM clock back to the driver, or to the configured range."""
        doing = f"giving back the SM clock of {self.uuid}"
        to = self._address.return_range
        if to is None:
            self._order(doing, f"/gpu/reset_gpu_locked_clocks?gpu_ids={self._gpu_id}&block=true")
        else:
            self._set_range(doing, to.lowest_mhz, to.highest_mhz)
        self._is_locked = False

    def sm_clock_mhz(self) -> int:
        """The SM clock in force, MHz."""
        return self._nvml.sm_clock_mhz()

    def clock_limits(self) -> ClockLimit:
        """Return what holds the clock down at this moment."""
        return self._nvml.clock_limits()

    def total_energy_j(self) -> float:
        """The energy counter, J since the driver was loaded."""
        return self._nvml.total_energy_j()

    def close(self) -> None:
        """Give back a clock that was locked here, and end NVML for this object."""
        if self._is_closed:
            return
        try:
            if self._is_locked:
                self.reset_sm_clock()
        finally:
            self._is_closed = True
            self._connection.close()
            self._nvml.close()

    def _set_range(self, doing: str, lowest_mhz: int, highest_mhz: int) -> None:
        # block=true: zeusd answers when the driver has done it, and says if it refused.
        self._order(
            doing,
            f"/gpu/set_gpu_locked_clocks?gpu_ids={self._gpu_id}&min_clock_mhz={lowest_mhz}"
            f"&max_clock_mhz={highest_mhz}&block=true",
        )

    def _order(self, doing: str, path: str) -> None:
        if self._is_closed:
            raise GpuError(f"{self.uuid} is closed; open it again to go on")
        self._connection.order(doing, path)
