"""The progress line on a real terminal device: when it shows, what it shows, how it ends."""

from __future__ import annotations

import contextlib
import os
import pty
import select
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import pytest

from flyball_server.cli import progress_line
from flyball_server.cli.progress_line import ProgressLine

WITHIN_S = 60.0


class Terminal:
    """A pseudo-terminal: what is written to `stream` is read back here."""

    def __init__(self) -> None:
        self._ours, theirs = pty.openpty()
        self.stream: TextIO = os.fdopen(theirs, "w", encoding="utf-8")
        self.written = ""

    def read_until(self, wanted: str) -> None:
        while wanted not in self.written:
            ready, _, _ = select.select([self._ours], [], [], WITHIN_S)
            assert ready, f"{wanted!r} did not come; only {self.written!r}"
            self.written += os.read(self._ours, 4096).decode()

    def read_rest(self) -> None:
        """All that has been written by now."""
        while select.select([self._ours], [], [], 0.05)[0]:
            self.written += os.read(self._ours, 4096).decode()

    def hang_up(self) -> None:
        if self._ours >= 0:
            os.close(self._ours)
            self._ours = -1

    def close(self) -> None:
        self.hang_up()
        with contextlib.suppress(OSError):  # what was still buffered has nowhere to go
            self.stream.close()


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    """A terminal on which the line shows at once."""
    terminal = Terminal()
    monkeypatch.setattr(progress_line, "SHOWN_AFTER_S", 0.0)
    monkeypatch.setattr(progress_line, "DRAWN_EVERY_S", 0.01)
    yield terminal
    terminal.close()


def drawing_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if "_draw" in thread.name]


def test_a_shorter_text_and_the_end_wipe_the_longer_text(terminal: Terminal) -> None:
    with ProgressLine("a long text", terminal.stream) as progress:
        terminal.read_until("\ra long text, 0 s")
        progress.show("short")
        terminal.read_until("\rshort, 0 s      ")
    terminal.read_rest()
    assert terminal.written.endswith("\r" + " " * len("short, 0 s") + "\r")
    assert "\n" not in terminal.written


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError, SystemExit])
def test_any_error_wipes_the_line(terminal: Terminal, error: type[BaseException]) -> None:
    with pytest.raises(error), ProgressLine("solving", terminal.stream):
        terminal.read_until("solving, 0 s")
        raise error
    terminal.read_rest()
    assert terminal.written.endswith(" \r")
    assert drawing_threads() == []


@pytest.mark.parametrize("has_thread", [True, False])
def test_quick_work_or_work_without_a_thread_shows_nothing(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch, *, has_thread: bool
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    if has_thread:
        monkeypatch.setattr(progress_line, "SHOWN_AFTER_S", 3600.0)
    else:
        monkeypatch.setattr(threading.Thread, "start", refuse)
    with ProgressLine("solving", terminal.stream) as progress:
        progress.show("searching")
        terminal.read_rest()
    terminal.read_rest()
    assert terminal.written == ""
    assert drawing_threads() == []


@pytest.mark.usefixtures("terminal")
def test_a_file_gets_no_line(tmp_path: Path) -> None:
    path = tmp_path / "stderr"
    with path.open("w", encoding="utf-8") as stream, ProgressLine("solving", stream):
        assert drawing_threads() == []
    assert path.read_text(encoding="utf-8") == ""


def test_a_terminal_that_hangs_up_does_not_stop_the_work(terminal: Terminal) -> None:
    with ProgressLine("solving", terminal.stream):
        terminal.read_until("solving, 0 s")
        terminal.hang_up()
        for thread in drawing_threads():
            thread.join(WITHIN_S)
        assert drawing_threads() == []
