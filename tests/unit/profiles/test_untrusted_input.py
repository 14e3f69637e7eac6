"""Text that is printed, and files that are not read to their end: large ones, devices, pipes."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flyball_profiles.limited_file import MAX_FILE_BYTES, read_bytes, read_text
from flyball_profiles.printable_text import printable, toml_string


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


# ------------------------------------------------------------------ printable text

# Also halves of characters, as in a file's name that is not UTF-8.
_CHARACTERS = st.characters(exclude_categories=())


@given(st.text(_CHARACTERS))
def test_untrusted_text_is_one_line_and_as_toml_reads_the_same(text: str) -> None:
    line = printable(text)
    assert line.isprintable()
    assert len(line) == len(text)
    assert tomllib.loads(f"x = {toml_string(text)}")["x"] == line


def test_what_people_can_read_stays() -> None:
    assert printable("GPU “Ä” 😀\n\x1b[31m\u202e\udc80") == "GPU “Ä” 😀??[31m??"
    assert toml_string('a "b" \\ 😀') == '"a \\"b\\" \\\\ 😀"'
