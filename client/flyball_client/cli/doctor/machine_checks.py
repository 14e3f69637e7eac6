"""Check results, and the checks that need no GPU: kernel, state folder, lock records."""

from __future__ import annotations

import contextlib
import os
import platform
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from flyball_client.governor.guard import find_guard
from flyball_client.governor.lock_record import FoundRecord, find_records
from flyball_client.governor.process_watch import ProcessIdentity
from flyball_client.governor.state_folder import (
    StateRefusedError,
    all_state_dirs,
    check_parent,
    default_state_dir,
    open_state_dir,
)
from flyball_client.gpu.checks import CheckResult, counted, ok, problem, warning


def as_text(results: Sequence[CheckResult]) -> str:
    """Return a table with the advice below each line, and the counts at the end."""
    width = max((len(result.name) for result in results), default=0)
    lines: list[str] = []
    for result in results:
        lines.append(f"{result.state:<8} {result.name:<{width}}  {result.found}")
        if result.advice:
            lines.append(f"{'':<8} {'':<{width}}  -> {result.advice}")
    states = [result.state for result in results]
    counts = (counted(states.count(state), state) for state in ("problem", "warning"))
    return "\n".join([*lines, "", ", ".join(counts)])


# Inode of the host's PID namespace, a constant of the kernel (PROC_PID_INIT_INO).
_HOST_PID_NAMESPACE = 0xEFFFFFFC
_NO_GOVERNOR = "without it no governor can run, and no clock is set"

_Features = Mapping[str, Callable[[], None]]
_FEATURES: _Features = {
    "memfd_create": lambda: os.close(os.memfd_create("flyball-doctor")),
    "eventfd": lambda: os.close(os.eventfd(0)),
    "pidfd_open": lambda: os.close(os.pidfd_open(os.getpid())),
}


def check_system() -> Iterator[CheckResult]:
    """Check the features of kernel and Python that the governor process needs."""
    if sys.platform != "linux":
        found = f"{platform.system()}; clocks of real GPUs are set on Linux only"
        yield problem("system", found, "emulate GPUs here: FLYBALL_GPU=emulated:PROFILE.csv")
        return
    failures = [failed for feature in _FEATURES if (failed := _check_feature(feature))]
    yield from failures
    if ProcessIdentity.of(os.getpid()) is None:
        yield problem(
            "system /proc", "/proc does not show this process", f"mount it; {_NO_GOVERNOR}"
        )
    elif not failures:
        works = f"{', '.join(_FEATURES)} and /proc work"
        yield ok("system", f"Linux {platform.release()}: {works}")


def _check_feature(feature: str) -> CheckResult | None:
    name = f"system {feature}"
    rules = "allow it in the container's seccomp rules"
    try:
        _FEATURES[feature]()
    except AttributeError:
        found = f"this Python ({platform.python_version()}) was built without os.{feature}"
        return problem(
            name, found, f"use a Python that has it, as distributions' do; {_NO_GOVERNOR}"
        )
    except OSError as error:
        found = f"the kernel or the container's rules refuse {feature}: {error.strerror}"
        if feature == "pidfd_open":  # /proc is polled instead
            return warning(
                name, found, f"{rules}; until then the end of a rank is detected 0.1 s later"
            )
        return problem(name, found, f"{rules}; {_NO_GOVERNOR}")
    return None


def check_state_dir(environ: Mapping[str, str]) -> CheckResult:
    """Check that the governor can write its lock records; nothing is created."""
    name = "state folder"
    folder = default_state_dir(environ)
    nearest = folder
    while not nearest.exists() and nearest != nearest.parent:
        nearest = nearest.parent
    if nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK):
        try:
            if folder.parent.exists():
                check_parent(folder)
            if nearest == folder:
                os.close(open_state_dir(folder))
        except (StateRefusedError, OSError) as error:
            return CheckResult.of_error(name, error, "until then no clock is set")
        return ok(name, f"{folder} can be {'written' if nearest == folder else 'created'}")
    return problem(
        name,
        f"{folder} cannot be written: {nearest} is not writable",
        "set FLYBALL_STATE_DIR to a writable folder on this machine; without one no clock is set",
    )


def check_guard(environ: Mapping[str, str]) -> CheckResult:
    """Check that a guard restores clocks where the end of a container ends the governors too."""
    name = "guard"
    node_dir = default_state_dir(environ).parent
    pid = find_guard(node_dir)
    if pid is not None:
        where = f"process {pid}" if pid else "a process of another PID namespace"
        return ok(name, f"{where} watches {node_dir}")
    if not is_in_own_pid_namespace():
        return ok(name, f"none watches {node_dir}; ranks in containers need one")
    first = "as process 1 " if os.getpid() == 1 else ""
    return warning(
        name,
        f"ranks here run {first}in a PID namespace of their own, and no guard watches {node_dir}:"
        " the end of a container ends rank, governor and standby at once, and the clock stays"
        " locked",
        "run flyball guard on the node, and mount the folder that it watches here as"
        " /run/flyball or as FLYBALL_STATE_DIR",
    )


def is_in_own_pid_namespace() -> bool:
    """Return whether this process is in another PID namespace than the host's."""
    try:
        return Path("/proc/self/ns/pid").stat().st_ino != _HOST_PID_NAMESPACE
    except OSError:
        return False


def find_readable_records(environ: Mapping[str, str]) -> list[FoundRecord]:
    """Return the records that this user can read; those of refused folders are left out."""
    records: list[FoundRecord] = []
    for folder, owner in all_state_dirs(environ).items():
        with contextlib.suppress(StateRefusedError, OSError):  # see the check of the folder
            records += find_records(folder, owner)
    return records


def check_records(records: Sequence[FoundRecord]) -> Iterator[CheckResult]:
    """Check whether a live rank uses each clock that is recorded as locked."""
    for record in records:
        # Anyone may have chosen the file's name, which is the UUID.
        name = f"record {record.uuid if record.uuid.isprintable() else ascii(record.uuid)}"
        if record.holder is None:
            yield CheckResult.of_error(name, StateRefusedError(record.refusal))
            continue
        rank = record.rank_name
        if record.is_ungoverned:
            yield problem(
                name,
                f"its clock is set for {rank} ({record.process}), which lives without a governor",
                "flyball unlock, run as that rank's user or root, restores it, and so does flyball"
                " guard; a rank that trains starts another governor, see its log",
            )
        elif record.is_live:
            yield warning(
                name,
                f"its clock is set for {rank} ({record.process}), through {record.holder.control}",
                "another rank on this GPU gets no clocks; end that rank unless it is meant to run",
            )
        else:
            yield problem(
                name,
                f"its clock was left locked for {rank}, which has ended",
                "flyball unlock, run as that rank's user or root, restores it; so do the next rank"
                " on this GPU and flyball guard",
            )
    if not records:
        yield ok("records", "no clock is recorded as locked; see the GPUs' clocks")
