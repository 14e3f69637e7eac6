"""Liveness of another process, reported by the kernel without polling."""

from __future__ import annotations

import os
import select
from dataclasses import dataclass

_STATE_FIELD, _START_FIELD = 0, 19  # of /proc/PID/stat, counted behind the command's name
_ENDED = {b"Z", b"X"}
# The line is shorter: 52 numbers, and a name.
_MAX_STAT_BYTES = 4096
# What is answered for a process that has ended, or that /proc hides; whatever else goes wrong, too
# many open files for instance, says nothing of it.
_GONE = (FileNotFoundError, ProcessLookupError, PermissionError)


@dataclass(frozen=True, kw_only=True)
class ProcessIdentity:
    """One process, and no later one of the same number.

    Attributes:
        pid: its number.
        start_ticks: when it began, in the kernel's ticks since boot.
    """

    pid: int
    start_ticks: int

    @classmethod
    def of(cls, pid: int) -> ProcessIdentity | None:
        """The process that has this number now; None: there is none, or /proc does not show it.

        Raises:
            OSError: that cannot be seen now.
        """
        fields = _stat_fields(pid)
        return None if fields is None else cls(pid=pid, start_ticks=int(fields[_START_FIELD]))

    @classmethod
    def own(cls) -> ProcessIdentity:
        """This process.

        Raises:
            OSError: there is no /proc.
        """
        identity = cls.of(os.getpid())
        if identity is None:
            raise OSError("/proc does not show this process; clocks need it mounted")
        return identity

    def is_alive(self) -> bool:
        """Return whether it has not ended (a zombie has); True where that cannot be seen."""
        try:
            fields = _stat_fields(self.pid)
        except OSError:
            return True
        return (
            fields is not None
            and int(fields[_START_FIELD]) == self.start_ticks
            and fields[_STATE_FIELD] not in _ENDED
        )


class ProcessWatch:
    """Watches one process.

    Where the kernel or a container's rules refuse file descriptors of processes, `fd` is None
    and `is_alive` must be asked from time to time.
    """

    def __init__(self, identity: ProcessIdentity) -> None:
        self.identity = identity
        self.fd: int | None = None
        try:
            self.fd = os.pidfd_open(identity.pid)
        except (OSError, AttributeError):  # the latter: a Python built without it
            return
        if not identity.is_alive():
            # The number may be another's by now.
            self.close()

    def is_alive(self) -> bool:
        """Return whether the process has not ended."""
        if self.fd is None:
            return self.identity.is_alive()
        return not select.select([self.fd], [], [], 0)[0]

    def close(self) -> None:
        """Watch no longer."""
        if self.fd is not None:
            os.close(self.fd)
            self.fd = None


def is_running(pid: int) -> bool:
    """Return whether a process of this number has not ended; True where that cannot be seen."""
    try:
        fields = _stat_fields(pid) if pid else None
    except OSError:
        return True
    return fields is not None and fields[_STATE_FIELD] not in _ENDED


def _stat_fields(pid: int) -> list[bytes] | None:
    # Asked in the middle of a training too: without the layers of an open file.
    try:
        fd = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
        try:
            line = os.read(fd, _MAX_STAT_BYTES)
        finally:
            os.close(fd)
    except _GONE:
        return None
    # The command's name is in parentheses and may hold anything, also a parenthesis.
    return line.rpartition(b")")[2].split()
