"""A process that the demo starts, logs and ends."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

from flyball_wire.python_child import python_command, python_environment

_PS_TIMEOUT_S = 5.0


def kill_tree(root: subprocess.Popen[bytes]) -> None:
    """Kill a child of this process with all its descendants, and reap it.

    torchrun gives each rank a session of its own, and ninja each compiler a group of its own,
    so no single process group holds them all. Each process is stopped before its children are
    listed: it can start no more, and its children cannot be reaped, so that no process number is
    reused before the kill.
    """
    if root.poll() is None:
        stopped: list[int] = []
        found = [root.pid]
        while found:
            for pid in found:
                _signal(pid, signal.SIGSTOP)
            stopped += found
            children = _children_by_parent()
            found = [
                child for pid in stopped for child in children.get(pid, ()) if child not in stopped
            ]
        for pid in stopped:
            _signal(pid, signal.SIGKILL)
    root.wait()


def _signal(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def _children_by_parent() -> dict[int, list[int]]:
    children: dict[int, list[int]] = defaultdict(list)
    pairs = _pairs_from_proc() if Path("/proc/self/stat").exists() else _pairs_from_ps()
    for pid, parent in pairs:
        children[parent].append(pid)
    return children


def _pairs_from_proc() -> list[tuple[int, int]]:
    pairs = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):  # it ended just now
                # pid (name) state ppid ...; the name may hold spaces and brackets.
                after_name = (entry / "stat").read_text(errors="replace").rpartition(")")[2]
                pairs.append((int(entry.name), int(after_name.split()[1])))
    return pairs


def _pairs_from_ps() -> list[tuple[int, int]]:
    listing = subprocess.run(
        ["ps", "-A", "-o", "pid=,ppid="],  # noqa: S607 - where ps is differs by system
        check=True,
        capture_output=True,
        text=True,
        timeout=_PS_TIMEOUT_S,
    )
    return [(int(pid), int(parent)) for pid, parent in map(str.split, listing.stdout.splitlines())]


_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_CHECK_S = 0.05


class Interruption:
    """Context in which SIGINT, SIGTERM and SIGHUP only set a flag; for the main thread.

    The flag is checked between steps and while the demo waits, so that an interruption comes
    neither between the start of a process and its registration nor during the clean-up.
    """

    def __init__(self) -> None:
        self._came = False
        self._previous: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Interruption:
        for number in _SIGNALS:
            self._previous[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def check(self) -> None:
        """Raise KeyboardInterrupt if a signal came."""
        if self._came:
            raise KeyboardInterrupt

    def sleep(self, seconds_s: float) -> None:
        """Pause; an interruption ends the pause.

        Raises:
            KeyboardInterrupt: a signal came before or during the pause.
        """
        deadline_s = time.monotonic() + seconds_s
        while True:
            self.check()
            remaining_s = deadline_s - time.monotonic()
            if remaining_s <= 0:
                return
            time.sleep(min(_CHECK_S, remaining_s))

    def _note(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        self._came = True


class DemoFailedError(Exception):
    """A part of the demo ended or failed; one line, and in `log_tail` the end of its log."""

    def __init__(self, message: str, *, log_tail: str = "") -> None:
        super().__init__(message)
        self.log_tail = log_tail


_POLL_S = 0.1


class ChildProcess:
    """Python process in a session of its own, so that Ctrl-C reaches the demo alone.

    The end of its `with` block ends it and all that it started.

    Args:
        arguments: after the Python interpreter.
        environment: its whole environment.
        log: takes its stdout and stderr.
        grace_s: time in s to end by itself after SIGTERM; 0: killed at once.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        environment: Mapping[str, str],
        log: Path,
        grace_s: float = 0.0,
    ) -> None:
        self.log = log
        self._grace_s = grace_s
        with log.open("wb") as output:
            self._process = subprocess.Popen(  # noqa: S603 - our own command
                python_command(*arguments),
                env=python_environment(environment),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def __enter__(self) -> ChildProcess:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    def exit_status(self) -> int | None:
        """Exit status; None: it runs; negative: the signal that ended it."""
        return self._process.poll()

    def wait(self, interruption: Interruption, *, timeout_s: float) -> int | None:
        """Wait for the exit status; None: it still runs after `timeout_s`.

        Raises:
            KeyboardInterrupt: a signal came meanwhile.
        """
        deadline_s = time.monotonic() + timeout_s
        while self.exit_status() is None and time.monotonic() < deadline_s:
            interruption.sleep(_POLL_S)
        return self.exit_status()

    def stop(self) -> None:
        """End the process and all that it started."""
        if self._grace_s > 0 and self.exit_status() is None:
            self._process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(self._grace_s)
        kill_tree(self._process)
