"""A container as the kernel sees it, without an engine and without an image.

Namespaces of its own for processes, mounts and network, the image's user without any right, a
file system that cannot be written but for its tmpfs, and the image's files where it has them,
bound from this checkout's environment. It needs root, or the right to make namespaces.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.deploy.become_container import Plan
from tests.planner.patience import PATIENCE_S, wait_until

ROOT = Path(__file__).parents[2]
_PROCESS_1 = Path(__file__).with_name("become_container.py")
_UNSHARE = (
    "unshare",
    "--mount",
    "--net",
    "--pid",
    "--fork",
    "--kill-child",
    "--mount-proc",
    "--propagation=private",
)


def why_no_container() -> str | None:
    """Why none can be made here; None: it can."""
    try:
        tried = subprocess.run(
            (*_UNSHARE, "mount", "-o", "remount,bind,ro", "/"),
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
    except OSError as error:
        return str(error)
    return None if tried.returncode == 0 else f"no namespaces here: {tried.stderr.strip()}"


@dataclass(frozen=True, kw_only=True)
class Container:
    """A running one.

    Attributes:
        process: its `unshare`, whose output and exit status are the container's.
    """

    process: subprocess.Popen[str]
    _environment: Mapping[str, str]
    _user: tuple[str, str]

    @property
    def pid(self) -> int:
        """Of its first process, as seen from here; 0: it is not there yet."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        return int(children.split()[0]) if children else 0

    def kill(self) -> None:
        """End it at once, if it still runs; with process 1 all others of it end."""
        if self.process.poll() is None:
            # Of `unshare` itself the kernel ends its child only until that has changed its user.
            if self.pid:
                os.kill(self.pid, signal.SIGKILL)
            else:
                self.process.kill()
            self.process.wait(PATIENCE_S)

    def run(
        self, command: Sequence[str], *, patience_s: float = PATIENCE_S
    ) -> subprocess.CompletedProcess[str]:
        """One more command inside, as `docker exec` and health checks run it."""
        inside = ("nsenter", f"--target={self.pid}", "--mount", "--net", "--pid", "--")
        return subprocess.run(
            (*inside, *_as_user(self._user), *_with_environment(self._environment), *command),
            capture_output=True,
            text=True,
            timeout=patience_s,
            check=False,
        )

    def wait_until_answered(self, health_command: Sequence[str]) -> None:
        """Until the command exits 0.

        Raises:
            AssertionError: the container has ended, or it never did.
        """

        def is_so() -> bool:
            assert self.process.poll() is None, self.process.communicate()
            return self._has_given_up_rights() and self.run(health_command).returncode == 0

        wait_until(is_so)

    def _has_given_up_rights(self) -> bool:
        """True when all is mounted; before that a command may find an empty file in its place."""
        return self.pid != 0 and str(Path(f"/proc/{self.pid}").stat().st_uid) == self._user[0]


@contextmanager
def container(
    command: Sequence[str],
    *,
    environment: Mapping[str, str],
    user: str,
    folder: str,
    binds: Mapping[Path, str],
    writable: Sequence[str],
) -> Iterator[Container]:
    """A container, killed at the end of the block if it still runs.

    Args:
        command: its process 1.
        environment: all of it.
        user: `UID:GID`.
        folder: the working folder.
        binds: what is mounted where; the folders above are made.
        writable: folders that become a tmpfs of their own, the user's.
    """
    uid, gid = user.split(":")
    plan: Plan = {
        "binds": {str(source): target for source, target in binds.items()},
        "kept": [str(ROOT), sys.base_prefix],
        "writable": list(writable),
        "user": [uid, gid],
        "folder": folder,
        "command": [*_as_user((uid, gid)), *_with_environment(environment), *command],
    }
    process = subprocess.Popen(
        (*_UNSHARE, sys.executable, str(_PROCESS_1), json.dumps(plan)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    running = Container(process=process, _environment=environment, _user=(uid, gid))
    try:
        yield running
    finally:
        running.kill()
        if not _is_read(process):
            process.communicate(timeout=PATIENCE_S)


def _is_read(process: subprocess.Popen[str]) -> bool:
    return process.stdout is None or process.stdout.closed


def _as_user(user: tuple[str, str]) -> tuple[str, ...]:
    ids = (f"--reuid={user[0]}", f"--regid={user[1]}")
    return ("setpriv", *ids, "--clear-groups", "--no-new-privs", "--bounding-set=-all")


def _with_environment(environment: Mapping[str, str]) -> tuple[str, ...]:
    return ("env", "-i", *(f"{name}={value}" for name, value in environment.items()))
