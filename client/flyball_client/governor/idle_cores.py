"""Whether the machine has a core with nothing to do, which is there for whoever polls.

It is the machine's cores that are counted: that a job may use some of them only, by its CPU set or
quota, does not show. A core that waits for a disk counts as busy.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

# How often it is looked at; the kernel counts idle time in hundredths of a second.
PERIOD_NS = 1_000_000_000
# Of all cores together.
LEAST_IDLE_CORES = 0.75


def read_uptime() -> tuple[float, float]:
    """The time since the machine's start, and for how long its cores were idle, summed up, s.

    `/proc/uptime`, see proc(5). Some containers (lxcfs) have a file of their own there, whose idle
    time is not summed up over cores; some (gVisor) have a kernel of their own, which tells none.

    Raises:
        OSError: it cannot be read, or it is not the kernel's.
        ValueError: it holds something else, or no idle time.
    """
    # Once a second in the middle of a training: without the layers of an open file.
    fd = os.open("/proc/uptime", os.O_RDONLY | os.O_CLOEXEC)
    try:
        if os.fstat(fd).st_dev != Path("/proc").stat().st_dev:
            raise OSError("/proc/uptime is not the kernel's own")
        uptime_s, idle_s = map(float, os.read(fd, 128).split())
    finally:
        os.close(fd)
    if not idle_s:
        raise ValueError("/proc/uptime tells no idle time")
    return uptime_s, idle_s


class IdleCores:
    """Counts how many cores were idle, on average between two looks.

    Args:
        least: how many it takes.
        read: as `read_uptime`.
    """

    def __init__(
        self,
        least: float,
        read: Callable[[], tuple[float, float]] = read_uptime,
    ) -> None:
        self._least = least
        self._read = read
        self._before: tuple[float, float] | None = None
        self._next_look_ns = 0
        self._are_enough = True

    def are_enough(self, now_ns: int) -> bool:
        """Whether so many were idle at the last look; where that is not known, yes.

        Args:
            now_ns: CLOCK_MONOTONIC, ns.
        """
        if now_ns >= self._next_look_ns:
            self._next_look_ns = now_ns + PERIOD_NS
            self._look()
        return self._are_enough

    def _look(self) -> None:
        before, self._before = self._before, None
        self._are_enough = True
        try:
            self._before = now = self._read()
        except (OSError, ValueError):
            return
        if before is not None and now[0] > before[0]:
            self._are_enough = (now[1] - before[1]) / (now[0] - before[0]) >= self._least
