"""Looks at processes from outside, by /proc alone, and waits for what they do."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.planner.patience import PATIENCE_S

# Between two looks at all processes; they cost some milliseconds each.
SCAN_PAUSE_S = 0.05


class StillWaitingError(AssertionError):
    """The condition did not come true in time."""


@dataclass(frozen=True, kw_only=True)
class SeenProcess:
    """A process that had not ended.

    Attributes:
        pid: its number.
        command: its arguments.
    """

    pid: int
    command: tuple[str, ...]


def processes_with(variable: str, value: str) -> list[SeenProcess]:
    """All that were started with this in their environment and have not ended."""
    pids = (int(folder.name) for folder in Path("/proc").iterdir() if folder.name.isdecimal())
    return [found for pid in pids if (found := process_with(variable, value, pid)) is not None]


def process_with(variable: str, value: str, pid: int) -> SeenProcess | None:
    """The process of this number, if it was started so and has not ended."""
    folder = Path(f"/proc/{pid}")
    try:
        # One that has ended and that nobody waited for has no environment any more.
        if f"{variable}={value}".encode() not in (folder / "environ").read_bytes().split(b"\0"):
            return None
        command = (folder / "cmdline").read_text().rstrip("\0").split("\0")
    except OSError:  # it ended while it was looked at, or is not ours to look at
        return None
    return SeenProcess(pid=pid, command=tuple(command))


def number_in_namespace(pid: int) -> int:
    """Return the number that a process has in its own PID namespace; 0: it has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[-1]) for line in lines if line.startswith("NSpid:")), 0)


def send(pid: int, number: signal.Signals) -> None:
    """Send a signal; to one that has ended just now, none."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def wait_until(
    condition: Callable[[], object],
    what: str,
    *,
    patience_s: float = PATIENCE_S,
    pause_s: float = 0.005,
) -> float:
    """Wait for it, looking again after each pause; how long that took, s.

    Raises:
        StillWaitingError: it did not come.
    """
    begin_s = time.monotonic()
    while not condition():
        if time.monotonic() - begin_s > patience_s:
            raise StillWaitingError(f"not within {patience_s:g} s: {what}")
        time.sleep(pause_s)
    return time.monotonic() - begin_s
