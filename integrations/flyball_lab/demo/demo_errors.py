"""What ends a demo before its verdict."""

from __future__ import annotations


class DemoFailedError(Exception):
    """A part of the demo died or never came; the text is one line, `log_tail` its last words."""

    def __init__(self, message: str, *, log_tail: str = "") -> None:
        super().__init__(message)
        self.log_tail = log_tail
