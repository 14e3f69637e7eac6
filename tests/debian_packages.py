"""Programs that tests take from Debian: found, else installed, by one test process at a time.

Before the first test what the chosen ones need is installed (`tests/conftest.py`), so that it does
not count in a test's time.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import pytest

_Found = TypeVar("_Found")
_LOCK = Path(tempfile.gettempdir()) / "flyball-tests-install.lock"
# Of one apt-get, s; it downloads some 100 MB at most.
_LONGEST_S = 600.0
# What could not be installed is not tried again in this process.
_failures: dict[str, str] = {}


class MissingProgramError(Exception):
    """A program is not on this machine; the text says why it could not be had."""


def find_or_install(find: Callable[[], _Found | None], what: str, *packages: str) -> _Found:
    """Return what `find` finds; where it finds nothing, packages are installed: on Debian, as root.

    Args:
        find: looks on this machine.
        what: is looked for, and where, for the error's text.
        packages: the first is the program's.

    Raises:
        MissingProgramError: it is not there, and could not be installed.
    """
    found = find()
    if found is not None:
        return found
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise MissingProgramError(f"there is no {what}")
    if packages[0] not in _failures:
        with _LOCK.open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            found = find() or _install(find, packages)
    if found is None:
        raise MissingProgramError(
            f"there is no {what}; apt-get install {packages[0]}: {_failures[packages[0]]}"
        )
    return found


@contextmanager
def skipped_where_missing() -> Iterator[None]:
    """A skip where a program is missing, with CI=true a failure."""
    try:
        yield
    except MissingProgramError as error:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(str(error))


def _install(find: Callable[[], _Found | None], packages: tuple[str, ...]) -> _Found | None:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    install = ("apt-get", "install", "-y", "-q", "--no-install-recommends", *packages)
    wait = ("-o", "DPkg::Lock::Timeout=120")  # somebody else may install something
    said = ""
    for command in (install, ("apt-get", "update", "-q"), install):
        try:
            ended = subprocess.run(
                (*command, *wait),
                capture_output=True,
                text=True,
                check=False,
                env=environment,
                timeout=_LONGEST_S,
            )
        except subprocess.TimeoutExpired as error:
            said = str(error)
            break
        found = find()
        if found is not None and ended.returncode == 0:
            return found
        said = ended.stderr[-500:]
    _failures[packages[0]] = said
    return None
