"""Command and environment of Python processes that are started, which import nothing from here.

`python -m` imports from the working folder first: a `json.py` there, in a folder that others may
write, would run as the user who trains.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

PATH_VARIABLES = ("PYTHONPATH", "PYTHONSAFEPATH")
"""Variables that `python_environment` sets or changes."""


def python_command(*arguments: str) -> list[str]:
    """Return the command of this Python with these arguments, as `-m`, `MODULE`."""
    return [sys.executable, "-P", *arguments]


def python_environment(
    environ: Mapping[str, str], import_root: Path | None = None
) -> dict[str, str]:
    """Return the environment of such a process; those that it starts are covered, too.

    Args:
        environ: Environment to start from.
        import_root: Folder that comes first in PYTHONPATH; None: none is added.
    """
    roots = [] if import_root is None else [str(import_root)]
    # An empty entry, as in `:/opt/lib`, stands for the working folder.
    named = [
        path
        for path in environ.get("PYTHONPATH", "").split(os.pathsep)
        if os.path.normpath(path) != os.curdir and path not in roots
    ]
    made = {**environ, "PYTHONPATH": os.pathsep.join([*roots, *named]), "PYTHONSAFEPATH": "1"}
    if not made["PYTHONPATH"]:
        del made["PYTHONPATH"]
    return made
