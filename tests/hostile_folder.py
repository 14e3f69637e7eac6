"""A working folder that somebody else has written modules into."""

from __future__ import annotations

from pathlib import Path

# What Flyball's processes import first and late: of Python, of packages, and their own.
_NAMES = (
    "argparse",
    "contextlib",
    "ctypes",
    "dataclasses",
    "flyball_client",
    "flyball_integrations",
    "flyball_lab",
    "flyball_profiles",
    "flyball_server",
    "flyball_wire",
    "httpx",
    "json",
    "logging",
    "multiprocessing",
    "numpy",
    "pynvml",
    "random",
    "selectors",
    "signal",
    "socket",
    "struct",
    "subprocess",
    "tempfile",
    "threading",
    "torch",
    "typing",
    "uuid",
)
_MODULE = """
import sys
with open({marks!r}, "a") as marks:
    print(__name__, *sys.orig_argv, file=marks)
raise SystemExit("imported from the working folder")
"""


class HostileFolder:
    """Modules that note that they were imported, and end the process.

    Args:
        path: of the folder, which is made.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._marks = path / "imported"
        path.mkdir()
        for name in _NAMES:
            (path / f"{name}.py").write_text(_MODULE.format(marks=str(self._marks)))

    def imported(self) -> list[str]:
        """Return each import: the module, and the command of its process."""
        return self._marks.read_text().splitlines() if self._marks.exists() else []
