"""Giving a clock back when the process ends: at interpreter exit, on SIGTERM and on SIGINT."""

from __future__ import annotations

import atexit
import os
import signal
import threading
from collections.abc import Callable
from types import FrameType

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class ReleaseOnExit:
    """Calls `release` when the process ends in a way that Python can see.

    Covered: the interpreter's exit, also by an exception, and SIGTERM and SIGINT, whose
    previous handlers then do what they would have done. Signals are taken over only when
    installed from the main thread, and not where they are ignored. Python runs a handler when
    its main thread next returns from foreign code. SIGKILL and crashes are not covered: only a
    process of its own could give the clock back then, and a later release has one.

    A child that was forked from this process inherits handlers, but not the duty: there
    `release` is not called.
    """

    def __init__(self, release: Callable[[], None]) -> None:
        self._release = release
        self._pid = os.getpid()
        self._previous: dict[int, Callable[[int, FrameType | None], object] | int] = {}
        self._is_installed = False

    def install(self) -> None:
        """Take over; any number of times."""
        if self._is_installed:
            return
        self._is_installed = True
        atexit.register(self._at_exit)
        if threading.current_thread() is not threading.main_thread():
            return
        for number in _SIGNALS:
            previous = signal.getsignal(number)
            # None is a handler from outside Python, which could not be called from here.
            if previous is not None and previous != signal.SIG_IGN:
                self._previous[number] = previous
                signal.signal(number, self._on_signal)

    def uninstall(self) -> None:
        """Put the previous handlers back, where nobody has installed another since."""
        if not self._is_installed:
            return
        self._is_installed = False
        atexit.unregister(self._at_exit)
        if threading.current_thread() is not threading.main_thread():
            return
        for number, previous in self._previous.items():
            # Bound methods are equal, not identical.
            if signal.getsignal(number) == self._on_signal:
                signal.signal(number, previous)

    def _at_exit(self) -> None:
        if os.getpid() == self._pid:
            self._release()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._is_installed and os.getpid() == self._pid:
            self._release()
        previous = self._previous[number]
        if callable(previous):
            previous(number, frame)
        elif previous == signal.SIG_DFL:
            # Die of the signal itself, so that whoever waits for us sees it.
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
