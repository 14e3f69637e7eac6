"""One line on a terminal that says what is being measured; gone when it is over."""

from __future__ import annotations

import contextlib
import os
from types import TracebackType
from typing import Self, TextIO


class WorkLine:
    """Shows the last text given, where the stream is a terminal; a `with` block.

    Args:
        stream: to draw on; None, as a process may lack one: nothing is drawn.
    """

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream if stream is not None and stream.isatty() else None
        self._num_shown = 0

    def show(self, text: str) -> None:
        """Draw this over what was drawn before."""
        stream = self._stream
        if stream is None:
            return
        # A terminal that has gone must not end a measurement.
        with contextlib.suppress(OSError, ValueError):
            columns = os.get_terminal_size(stream.fileno()).columns or 80
            text = text[: columns - 1]
            stream.write("\r" + text.ljust(self._num_shown) + ("\r" if not text else ""))
            stream.flush()
            self._num_shown = len(text)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.show("")
