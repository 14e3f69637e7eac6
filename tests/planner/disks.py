"""A small disk that a test can fill."""

from __future__ import annotations

import os
import resource
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_PIECE = bytes(2**12)


@dataclass(frozen=True, kw_only=True)
class SmallDisk:
    """A folder on a disk of its own, where a file system may be mounted.

    Attributes:
        folder: empty at first.
        is_mounted: otherwise it is filled by the limit on the size of this process's files.
    """

    folder: Path
    is_mounted: bool

    @contextmanager
    def filled(self) -> Iterator[None]:
        """No byte is free until the block ends."""
        if self.is_mounted:
            ballast = self.folder / "ballast"
            with ballast.open("wb", buffering=0) as opened:
                try:
                    while opened.write(_PIECE):
                        pass
                except OSError:
                    pass
            try:
                yield
            finally:
                ballast.unlink()
            return
        sizes = (file.stat().st_size for file in self.folder.iterdir())
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (max(sizes, default=0), hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@contextmanager
def small_disk_at(folder: Path, size_mib: int, *, owner: int | None = None) -> Iterator[SmallDisk]:
    """A disk of this size in a folder of its own, which `owner` may use; unmounted at the end."""
    folder.mkdir()
    options = f"size={size_mib}m,mode=0700,uid={os.geteuid() if owner is None else owner}"
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
    is_mounted = subprocess.run(command, capture_output=True, check=False).returncode == 0
    try:
        yield SmallDisk(folder=folder, is_mounted=is_mounted)
    finally:
        if is_mounted:
            subprocess.run(["umount", "--lazy", str(folder)], check=True)
