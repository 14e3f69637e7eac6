"""Liveness of another process, reported by the kernel without polling."""

from __future__ import annotations

import contextlib
import os
import select
import signal
from dataclasses import dataclass

_STATE_FIELD, _START_FIELD = 0, 19  # of /proc/PID/stat, counted behind the command's name
_ENDED = {b"Z", b"X"}
# The line is shorter: 52 numbers, and a name.
_MAX_STAT_BYTES = 4096
# Errors for a process that has ended, or that /proc hides; other errors, such as too many open
# files, are inconclusive.
_GONE = (FileNotFoundError, ProcessLookupError, PermissionError)


@dataclass(frozen=True, kw_only=True)
class ProcessIdentity:
    """Identity of a process, which differs from that of a later process with the same number.

    Attributes:
        start_ticks: Start time in the kernel's ticks since boot.
    """

    pid: int
    start_ticks: int

    @classmethod
    def of(cls, pid: int) -> ProcessIdentity | None:
        """Return the process with this number; None: there is none, or /proc hides it.

        Raises:
            OSError: /proc cannot be read now.
        """
        fields = _stat_fields(pid)
        return None if fields is None else cls(pid=pid, start_ticks=int(fields[_START_FIELD]))

    @classmethod
    def own(cls) -> ProcessIdentity:
        """Return this process.

        Raises:
            OSError: There is no /proc.
        """
        identity = cls.of(os.getpid())
        if identity is None:
            raise OSError("/proc does not list this process; mount /proc to set clocks")
        return identity

    def is_alive(self) -> bool:
        """Return whether it has not ended (a zombie has); True where /proc cannot be read."""
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
    """Watch of one process.

    Attributes:
        fd: Descriptor that becomes readable at its end; None: the kernel or the container's rules
            refuse one, and `is_alive` must be polled.
    """

    def __init__(self, identity: ProcessIdentity) -> None:
        self.identity = identity
        self.fd: int | None = None
        try:
            self.fd = os.pidfd_open(identity.pid)
        except (OSError, AttributeError):  # the latter: a Python built without it
            return
        if not identity.is_alive():
            # The number may be reused.
            self.close()

    def is_alive(self) -> bool:
        """Return whether the process has not ended."""
        if self.fd is None:
            return self.identity.is_alive()
        return not select.select([self.fd], [], [], 0)[0]

    def kill(self) -> None:
        """Send SIGKILL, unless it has ended.

        Raises:
            PermissionError: This process may not.
        """
        with contextlib.suppress(ProcessLookupError):
            if self.fd is not None:
                signal.pidfd_send_signal(self.fd, signal.SIGKILL)
            elif self.identity.is_alive():
                os.kill(self.identity.pid, signal.SIGKILL)

    def close(self) -> None:
        """Close the descriptor."""
        if self.fd is not None:
            os.close(self.fd)
            self.fd = None


def is_running(pid: int) -> bool:
    """Return whether a process with this number runs; True where /proc cannot be read."""
    try:
        fields = _stat_fields(pid) if pid else None
    except OSError:
        return True
    return fields is not None and fields[_STATE_FIELD] not in _ENDED


def _stat_fields(pid: int) -> list[bytes] | None:
    # Called during training, so without the overhead of a file object.
    try:
        fd = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
        try:
            line = os.read(fd, _MAX_STAT_BYTES)
        finally:
            os.close(fd)
    except _GONE:
        return None
    # The command's name is in parentheses and may contain parentheses.
    return line.rpartition(b")")[2].split()
