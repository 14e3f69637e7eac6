"""Ctrl-C, noticed only where it is safe: between waits, never in the middle of a start."""

from __future__ import annotations

import signal
import time
from types import FrameType, TracebackType
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_CHECK_S = 0.05


class Interruption:
    """While it is entered, SIGINT, SIGTERM and SIGHUP only set a flag.

    The demo asks for it between its steps and while it waits, so an interruption can never
    fall between the start of a process and its being remembered, nor into the cleaning up.
    Enter it in the main thread.
    """

    def __init__(self) -> None:
        self._came = False
        self._previous: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Interruption:
        for number in _SIGNALS:
            self._previous[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def check(self) -> None:
        """Raise KeyboardInterrupt if a signal came."""
        if self._came:
            raise KeyboardInterrupt

    def sleep(self, seconds_s: float) -> None:
        """Pause; an interruption ends the pause.

        Raises:
            KeyboardInterrupt: a signal came before or during the pause.
        """
        deadline_s = time.monotonic() + seconds_s
        while True:
            self.check()
            remaining_s = deadline_s - time.monotonic()
            if remaining_s <= 0:
                return
            time.sleep(min(_CHECK_S, remaining_s))

    def _note(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        self._came = True
