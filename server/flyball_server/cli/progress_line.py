"""Progress line on a terminal with the current action and the elapsed time."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from types import TracebackType
from typing import Self, TextIO

SHOWN_AFTER_S = 1.0
DRAWN_EVERY_S = 0.2
CLEARED_WITHIN_S = 2.0  # a blocked terminal (Ctrl-S) must not delay the command
DEFAULT_COLUMNS = 80


class ProgressLine:
    """Line with the last text given and the elapsed seconds; used as a context manager.

    The line appears after a second if stderr is a terminal and is always cleared at the end; stdout
    is never touched. A thread draws it, so that it moves while a solver runs. Terminal errors
    are ignored: a command never fails because of its line.

    Args:
        text: first text.
        stream: output stream; default: stderr.
    """

    def __init__(self, text: str, stream: TextIO | None = None) -> None:
        self._text = text
        self._stream = stream
        self._began_s = 0.0
        self._num_shown = 0
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def show(self, text: str) -> None:
        """Set the current activity, in a few words."""
        self._text = text

    def __enter__(self) -> Self:
        self._began_s = time.monotonic()
        stream = self._stream or sys.stderr  # None in some processes
        if stream is not None and stream.isatty():
            thread = threading.Thread(target=self._draw, args=(stream,), daemon=True)
            with contextlib.suppress(RuntimeError):  # the system allows no further thread
                thread.start()
                self._thread = thread
        return self

    def __exit__(
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(CLEARED_WITHIN_S)

    def _draw(self, stream: TextIO) -> None:
        with contextlib.suppress(OSError, ValueError):  # the terminal is closed
            pause_s = SHOWN_AFTER_S
            while not self._stop.wait(pause_s):
                elapsed_s = time.monotonic() - self._began_s
                self._replace(stream, f"{self._text}, {elapsed_s:.0f} s")
                pause_s = DRAWN_EVERY_S
            if self._num_shown:
                self._replace(stream, "")
                stream.write("\r")
                stream.flush()

    def _replace(self, stream: TextIO, text: str) -> None:
        """Draw over the last line; one column less than the terminal has, or it would scroll."""
        text = text[: _columns(stream) - 1]
        stream.write("\r" + text.ljust(self._num_shown))
        stream.flush()
        self._num_shown = len(text)


def _columns(stream: TextIO) -> int:
    try:
        return os.get_terminal_size(stream.fileno()).columns or DEFAULT_COLUMNS
    except OSError:
        return DEFAULT_COLUMNS
