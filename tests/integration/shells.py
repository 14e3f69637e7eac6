"""The shells that completion is tested with."""

from __future__ import annotations

import shutil

from tests.debian_packages import find_or_install


def shell_path(name: str) -> str:
    """The program; on Debian installed where it is missing.

    Raises:
        MissingProgramError: it is not there, and could not be installed.
    """
    return find_or_install(lambda: shutil.which(name), f"{name} on PATH", name)
