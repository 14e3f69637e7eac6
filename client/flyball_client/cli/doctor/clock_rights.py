"""Whether this process has the right to set clocks through NVML; told without setting any."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

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
