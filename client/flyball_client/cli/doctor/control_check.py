"""Who would set a GPU's clocks for a rank started here, and whether it may; nothing is set."""

from __future__ import annotations

import logging
import os
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from flyball_client.cli.doctor.check_result import CheckResult
from flyball_client.gpu import open_gpu
from flyball_client.gpu._base import GpuAddress, GpuError
from flyball_client.gpu.nvml import NvmlGpu
from flyball_client.gpu.open_gpu import open_by_uuid

_PROCESS = Path("/proc/self")
_CAP_SYS_ADMIN = 21
# As /proc/PID/uid_map says where no user namespace was made.
_ALL_IDS = ["0", "0", "4294967295"]

ClockRights = Literal["yes", "no", "only in a user namespace", "unknown"]


def clock_rights(process: Path = _PROCESS) -> ClockRights:
    """CAP_SYS_ADMIN, which root has outside of containers.

    In a user namespace, as rootless containers are, it does not reach the driver.

    Args:
        process: the folder in which the kernel tells of this process.
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


_HOW_TO_GET_IT = (
    "run the ranks as root, give their container --cap-add SYS_ADMIN, or run zeusd and set"
    " ZEUSD_SOCK_PATH"
)


def check_control(gpu: NvmlGpu, name: str, environ: Mapping[str, str]) -> CheckResult:
    """Open the GPU as a rank would, and see through whom."""
    try:
        with _warnings_of(open_gpu.__name__) as told:
            device = open_by_uuid(gpu.uuid, environ)
            device.close()
    except (GpuError, ValueError) as error:
        return CheckResult.of_error(name, error, "the ranks set no clock on this GPU until then")
    address = device.address
    if address is not None and address.control == "zeusd":
        return CheckResult(name=name, state="ok", found=f"through zeusd at {_where(address)}")
    result = _through_nvml(name)
    if told and result.state == "ok":
        return CheckResult.of_error(
            name,
            RuntimeError(told[0]),
            "it works; unset the variables of zeusd if it is not meant",
            state="warning",
        )
    return result


def _through_nvml(name: str) -> CheckResult:
    rights = clock_rights()
    if rights == "unknown":
        rights = "yes" if os.geteuid() == 0 else "no"
    if rights == "yes":
        return CheckResult(name=name, state="ok", found="through NVML, with CAP_SYS_ADMIN")
    if rights == "no":
        return CheckResult(
            name=name,
            state="problem",
            found="this process may not set clocks: it has no CAP_SYS_ADMIN and uses no zeusd",
            advice=_HOW_TO_GET_IT,
        )
    return CheckResult(
        name=name,
        state="warning",
        found="CAP_SYS_ADMIN counts in this user namespace only (a rootless container?), and"
        " the driver will probably refuse",
        advice=f"outside of the namespace: {_HOW_TO_GET_IT}",
    )


def _where(address: GpuAddress) -> str:
    return address.endpoint or "its default socket"


@contextmanager
def _warnings_of(logger_name: str) -> Generator[list[str], None, None]:
    """What a logger warns of meanwhile, instead of on stderr."""
    told: list[str] = []
    logger = logging.getLogger(logger_name)
    handler = _Listener(told)
    was_propagating, logger.propagate = logger.propagate, False
    logger.addHandler(handler)
    try:
        yield told
    finally:
        logger.removeHandler(handler)
        logger.propagate = was_propagating


class _Listener(logging.Handler):
    def __init__(self, told: list[str]) -> None:
        super().__init__(logging.WARNING)
        self._told = told

    def emit(self, record: logging.LogRecord) -> None:
        self._told.append(record.getMessage())
