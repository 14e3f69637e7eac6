"""What a governor asks of the kernel's scheduler: to run soon once it has something to do."""

from __future__ import annotations

import contextlib
import ctypes
import os
import struct

NICENESS = -10
# How long it wants to run at a time. Since Linux 6.6 a process that wakes waits until the slice of
# the one that runs is over, 3 ms as a rule; since 6.12 not if it asks for a shorter one.
SLICE_NS = 100_000
# Whatever it starts begins with the usual niceness and slice, a standby's start too.
_RESET_ON_FORK = 1
_PR_SET_TIMERSLACK = 29
# The C library has no name for it before glibc 2.41.
_NR_SCHED_SETATTR = {"x86_64": 314, "aarch64": 274}
# size, policy, flags, nice, priority, runtime, deadline, period
_SCHED_ATTR = struct.Struct("=IIQiIQQQ")


def run_soon() -> None:
    """Have this thread run before others, and in short slices; where it may not, nothing happens.

    An ordinary process all the same. A real-time one would take the core that it ran on last
    from whoever runs there now, a rank's thread too, while other cores are free.
    """
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, NICENESS)
    number = _NR_SCHED_SETATTR.get(os.uname().machine)
    # What somebody started it as otherwise, it stays.
    if number is not None and os.sched_getscheduler(0) == os.SCHED_OTHER:
        niceness = os.getpriority(os.PRIO_PROCESS, 0)
        wanted = _SCHED_ATTR.pack(
            _SCHED_ATTR.size, os.SCHED_OTHER, _RESET_ON_FORK, niceness, 0, SLICE_NS, 0, 0
        )
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).syscall(number, 0, wanted, 0)


def sleep_exactly() -> None:
    """Ask the kernel not to lengthen this thread's sleeps by the usual 50 us."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)


class OtherCores:
    """Keeps this thread off its rank's core, where that is going to wake it.

    On virtual cores, whose sleep looks to the scheduler like somebody else's turn, it runs whoever
    is woken on the core of the one who wakes him, although others are free; and who runs soon
    runs at once. The rank's hook would then wait until its governor's work is done.

    Args:
        rank_pid: this thread may use the cores that it may use, beside those it begins with.
    """

    def __init__(self, rank_pid: int) -> None:
        self._rank_pid = rank_pid
        # Perhaps without one that the governor before has left out.
        self._own = os.sched_getaffinity(0)
        # None of them, nor None: nothing is chosen yet.
        self._left_out: int | None = -1

    def leave_out(self, core: int | None) -> None:
        """Run on other cores than this one, where there are any; None: on each of them.

        Costs nothing where that is so already.
        """
        if core == self._left_out:
            return
        cores = set(self._own)
        with contextlib.suppress(OSError):  # the rank is gone
            cores |= os.sched_getaffinity(self._rank_pid)
        with contextlib.suppress(OSError):  # an administrator has taken them away
            os.sched_setaffinity(0, cores - {core} or cores)
            self._left_out = core
