"""Share of the machine's CPU time that other processes used during a measurement."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Sequence
from pathlib import Path

# Below this share of all CPUs others hardly meet what is measured.
QUIET_SHARE = 0.05
_WINDOW_S = 0.2
_IDLE, _IOWAIT = 3, 4
# The guests' time is counted in the user's too.
_NUM_COUNTED = 8
_USER_TIME, _SYSTEM_TIME = 11, 12  # of /proc/PID/stat, counted behind the command's name


class CpuUse:
    """From its making on.

    Args:
        pids: of the processes that are measured; all their threads count as their own.
    """

    def __init__(self, pids: Sequence[int]) -> None:
        self._pids = pids
        self._began = _machine_ticks()
        self._began_own = _own_ticks(pids)

    def others_share(self) -> float:
        """Share of all CPUs' time that others used, 0 to 1; as coarse as the kernel's 10 ms."""
        total, busy = (
            now - before for now, before in zip(_machine_ticks(), self._began, strict=True)
        )
        others = busy - (_own_ticks(self._pids) - self._began_own)
        return min(max(others / total, 0.0), 1.0) if total else 0.0


def cpu_time_ns(pid: int) -> int:
    """CPU time that a process has used, ns, with its threads that have ended.

    Raises:
        ProcessLookupError: there is no such process.
    """
    clock = ctypes.c_int()
    # 0 would be this process.
    if pid <= 0 or ctypes.CDLL(None).clock_getcpuclockid(pid, ctypes.byref(clock)) != 0:
        raise ProcessLookupError(pid)
    return time.clock_gettime_ns(clock.value)


def own_threads_time_ns(prefix: str) -> int:
    """CPU time that this process's Python threads with such names have used, ns."""
    threads = [thread for thread in threading.enumerate() if thread.name.startswith(prefix)]
    clocks = [time.pthread_getcpuclockid(thread.ident) for thread in threads if thread.ident]
    return sum(map(time.clock_gettime_ns, clocks))


def wait_until_quiet(pids: Sequence[int], give_up_s: float) -> None:
    """Until others than these processes use little of the CPUs, or so long, s, has gone by."""
    until_s = time.monotonic() + give_up_s
    while time.monotonic() < until_s:
        used = CpuUse(pids)
        time.sleep(_WINDOW_S)
        if used.others_share() < QUIET_SHARE:
            return


def _machine_ticks() -> tuple[int, int]:
    """All CPUs' time, and of it what was not idle; what a hypervisor took is not idle."""
    line = Path("/proc/stat").read_text(encoding="ascii").splitlines()[0]
    ticks = [int(field) for field in line.split()[1 : 1 + _NUM_COUNTED]]
    return sum(ticks), sum(ticks) - ticks[_IDLE] - ticks[_IOWAIT]


def _own_ticks(pids: Sequence[int]) -> int:
    own = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        own += int(fields[_USER_TIME]) + int(fields[_SYSTEM_TIME])
    return own
