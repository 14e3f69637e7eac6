"""Files that are not read to their end: large ones, devices and pipes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from flyball_profiles.limited_file import MAX_FILE_BYTES, read_bytes, read_text


def test_a_file_is_read_up_to_the_limit_and_no_larger_one(tmp_path: Path) -> None:
    file = tmp_path / "large"
    file.touch()
    os.truncate(file, MAX_FILE_BYTES)
    assert len(read_bytes(file)) == MAX_FILE_BYTES
    os.truncate(file, MAX_FILE_BYTES + 1)
    with pytest.raises(OSError, match="larger than 64 MiB"):
        read_text(file)


def test_devices_pipes_and_folders_are_refused_at_once(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (pipe, Path("/dev/zero"), Path("/dev/null")):
        with pytest.raises(OSError, match="not a regular file"):
            read_bytes(path)
    with pytest.raises(IsADirectoryError):
        read_bytes(tmp_path)
