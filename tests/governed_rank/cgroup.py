"""A control group for the processes of one rank, killed as a whole as a container's is."""

from __future__ import annotations

import contextlib
import signal
import tempfile
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path

from tests.governed_rank.processes import SCAN_PAUSE_S, send, wait_until


@cache
def cgroup_fault() -> str:
    """Return why no control group can be made here; empty: one can."""
    root = _root()
    if root is None:
        return "no control groups of version 2 are mounted"
    try:
        Path(tempfile.mkdtemp(prefix="flyball-", dir=root)).rmdir()
    except OSError as error:
        return f"no control group can be made: {error}"
    return ""


def kill_in_cgroup(find_pids: Callable[[], Iterable[int]]) -> None:
    """Move processes into a group of their own, with those that they start, and kill it."""
    folder = Path(tempfile.mkdtemp(prefix="flyball-", dir=_root()))
    members = folder / "cgroup.procs"

    def are_all_in() -> bool:
        inside = {int(line) for line in members.read_text().split()}
        left = set(find_pids()) - inside
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                members.write_text(str(pid))
        return not left

    wait_until(are_all_in, "all processes are in the group", pause_s=0)
    at_once = folder / "cgroup.kill"
    if at_once.exists():
        at_once.write_text("1")
    else:
        for line in members.read_text().split():
            send(int(line), signal.SIGKILL)

    def is_removed() -> bool:
        with contextlib.suppress(OSError):  # busy until the last one has ended
            folder.rmdir()
        return not folder.exists()

    wait_until(is_removed, "the group is empty", pause_s=SCAN_PAUSE_S)


def _root() -> Path | None:
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        if after.split()[0] == "cgroup2":
            return Path(before.split()[4])
    return None
