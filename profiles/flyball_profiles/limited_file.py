"""The one reader of files that people name: regular files, up to a limit."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

MAX_FILE_BYTES = 64 * 2**20
"""Largest file that is read: a profile of a million rows, a plan of a million instructions."""


def read_bytes(path: Path, *, max_bytes: int = MAX_FILE_BYTES) -> bytes:
    """Return the content of a regular file of at most `max_bytes`.

    Raises:
        OSError: the file cannot be read, is larger, or is a device or a pipe, which may never
            end; `strerror` is one line without the path.
        ValueError: a NUL is in the path.
    """
    # Without O_NONBLOCK opening a pipe waits until somebody writes to it.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(mode):
            reason = "not a regular file; write its content to a file first"
            raise OSError(errno.EINVAL, reason, str(path))
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            content = file.read(max_bytes + 1)
    finally:
        os.close(descriptor)
    if len(content) > max_bytes:
        limit = f"larger than {max_bytes // 2**20} MiB, the limit for a file"
        raise OSError(errno.EFBIG, limit, str(path))
    return content


def read_text(path: Path) -> str:
    """Return the content of such a file as UTF-8 text.

    Raises:
        OSError: as `read_bytes`.
        ValueError: a NUL is in the path, or (`UnicodeDecodeError`) the content is not UTF-8.
    """
    return read_bytes(path).decode("utf-8")
