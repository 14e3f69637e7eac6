"""Priority of this process beside others on the same core."""

from __future__ import annotations

import errno
import os
import time
from contextlib import suppress
from pathlib import Path

_AUTOGROUP = Path("/proc/self/autogroup")
_PAUSE_S = 0.05


def set_own_niceness(niceness: int, *, timeout_s: float = 0.0) -> None:
    """Set this process's niceness, as far as the system permits it.

    Linux may share cores between sessions first (autogroups, sched(7)), and then the niceness of a
    process counts only within its session. So a process that leads a session sets the session's
    niceness, too.

    Args:
        niceness: From -20, the first, to 19.
        timeout_s: Time limit in s: the system lets users set niceness of sessions ten times a
            second, all of them together.
    """
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, niceness)
    if os.getsid(0) != os.getpid():
        return
    give_up_s = time.monotonic() + timeout_s
    while True:
        try:
            _AUTOGROUP.write_text(str(niceness), "ascii")
        except OSError as error:  # as without autogroups
            if error.errno == errno.EAGAIN and time.monotonic() < give_up_s:
                time.sleep(_PAUSE_S)
                continue
        return
