"""Files that appear complete or not at all, even on a full disk."""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from flyball_wire.command.command import CommandError

_PRIVATE, _SHARED = 0o600, 0o666


@contextmanager
def whole_file(file: Path, *, is_private: bool = False) -> Generator[Path]:
    """Yield an empty file beside this one, which takes its name when the block ends normally.

    When the block fails, what was under the name stays. A link stays one, and an existing file
    keeps its rights; a device or pipe is yielded itself.

    Args:
        file: name of the complete file.
        is_private: readable by its owner only; otherwise the umask decides.

    Raises:
        OSError: it cannot be written.
    """
    real = Path(os.path.realpath(file))
    if real.exists() and not real.is_file():
        yield real
        return
    part = real.with_name(f".{real.name[:100]}.{secrets.token_hex(4)}.partial")
    mode = _PRIVATE if is_private else _SHARED
    kept_mode = stat.S_IMODE(real.stat().st_mode) if real.exists() else None
    os.close(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode))
    try:
        yield part
        if kept_mode is not None:
            part.chmod(kept_mode)
        _store_on_disk(part)  # some file systems report a full disk only now
        part.replace(real)
        _store_on_disk(real.parent)
    finally:
        part.unlink(missing_ok=True)


@contextmanager
def result_file(file: Path, *, option: str = "", replaces: bool = True) -> Generator[Path]:
    """Yield the part of a command's result file, as `whole_file` does.

    Args:
        file: name of the complete file.
        option: of the command that names the file, for the error.
        replaces: overwrite an existing file.

    Raises:
        CommandError: it exists and is not replaced, or cannot be written.
    """
    where = f"{option}: {file}" if option else f"{file}:"
    if "\0" in str(file):
        raise CommandError(f"{where} is no name of a file")
    if file.name in ("", "..") or file.is_dir():
        raise CommandError(f"{where} is a folder; name a file in it")
    if not replaces and file.exists():
        raise CommandError(f"{where} exists already; --force overwrites it")
    try:
        with whole_file(file) as part:
            yield part
    except OSError as error:
        raise cannot_write(where, error) from None


def cannot_write(where: str, error: OSError) -> CommandError:
    """Return the error for a file that cannot be written."""
    return CommandError(f"{where} cannot be written ({error.strerror or error})")


def write_result(file: Path, text: str, *, replaces: bool = True) -> None:
    """Write a command's result.

    Raises:
        CommandError: the file exists and is not replaced, or cannot be written.
    """
    with result_file(file, replaces=replaces) as part:
        part.write_text(text, encoding="utf-8")


def _store_on_disk(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
