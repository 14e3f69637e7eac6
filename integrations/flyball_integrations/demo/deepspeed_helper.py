"""Compiles the helper that DeepSpeed wants on a CPU, once, before four ranks ask for it.

torch guards such a build by a lock file that a killed process leaves behind, and everyone
after it waits for ever. Here a lock of the operating system guards the folder, so a leftover
can be told from a build in progress, and removed.
"""

from __future__ import annotations

import fcntl
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from flyball_integrations.demo.child_process import ChildProcess
from flyball_integrations.demo.demo_errors import DemoFailedError
from flyball_integrations.demo.interruption import Interruption
from flyball_integrations.demo.run_folder import tail

_BUILD = "from deepspeed.comm.torch import build_shm_op; build_shm_op()"
_LOCK_POLL_S = 0.2
_BUILD_TIMEOUT_S = 300.0
# What is compiled is loaded in a few seconds, on a busy machine too.
_LOAD_TIMEOUT_S = 30.0


def compile_deepspeed_helper(
    environment: Mapping[str, str], *, log: Path, interruption: Interruption
) -> None:
    """Leave the helper compiled in the environment's `TORCH_EXTENSIONS_DIR`.

    Raises:
        DemoFailedError: it cannot be compiled.
    """
    folder = Path(environment["TORCH_EXTENSIONS_DIR"])
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DemoFailedError(
            f"cannot write {folder} ({error.strerror}); set XDG_CACHE_HOME to a writable folder"
        ) from None
    with _only_here(folder / "flyball.lock", interruption):
        leftovers = [lock for lock in folder.glob("*/lock") if _is_leftover(lock, interruption)]
        for leftover in leftovers:
            leftover.unlink(missing_ok=True)
        if leftovers or not list(folder.glob("*/*.so")):
            _compile(environment, log=log, interruption=interruption)


def _is_leftover(lock: Path, interruption: Interruption) -> bool:
    """Whether the process that made this lock file is gone; a living one that loads is quick."""
    if not list(lock.parent.glob("*.so")):
        return True
    with suppress(FileNotFoundError):
        while time.time() - lock.stat().st_mtime < _LOAD_TIMEOUT_S:
            interruption.sleep(_LOCK_POLL_S)
    return lock.exists()


def _compile(environment: Mapping[str, str], *, log: Path, interruption: Interruption) -> None:
    with ChildProcess(["-c", _BUILD], environment=environment, log=log) as build:
        status = build.wait(interruption, timeout_s=_BUILD_TIMEOUT_S)
    if status != 0:
        what = "was not compiled in time" if status is None else "cannot be compiled"
        raise DemoFailedError(f"DeepSpeed's helper {what}", log_tail=tail(log))


@contextmanager
def _only_here(lock: Path, interruption: Interruption) -> Iterator[None]:
    """Inside the block no other demo of this user compiles; freed also by a kill."""
    with lock.open("w") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                interruption.sleep(_LOCK_POLL_S)
        yield
