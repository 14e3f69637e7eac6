"""Ends a process and all that it started, whatever sessions and groups these made."""

from __future__ import annotations

import os
import signal
import subprocess
from collections import defaultdict
from contextlib import suppress
from pathlib import Path

_PS_TIMEOUT_S = 5.0


def kill_tree(root: subprocess.Popen[bytes]) -> None:
    """Kill a child of this process with all its descendants, and reap it.

    torchrun gives each rank a session of its own, and ninja each compiler a group of its own,
    so no single process group holds them all. Each process is stopped before its children are
    looked for: it can start no more, and its children cannot be reaped, so that no process
    number changes hands before the kill.
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
