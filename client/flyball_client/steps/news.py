"""Waits of a thread for what other threads tell it, and for what it has to poll."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from typing import TypeVar

# Longest pause between two looks where other threads tell of every change, s.
_NEWS_PAUSE_S = 0.5

T = TypeVar("T")


class Stopped(Exception):  # noqa: N818 - no error
    """The thread that waits is to end."""


class News:
    """Condition that one thread waits for; other threads call `tell` and `stop`."""

    def __init__(self) -> None:
        self._has_come = threading.Event()
        self._is_stopping = False

    def tell(self) -> None:
        """Let the thread look again."""
        self._has_come.set()

    def stop(self) -> None:
        """Let the thread end: its waits raise `Stopped`."""
        self._is_stopping = True
        self._has_come.set()

    def until(
        self,
        poll: Callable[[], T | None],
        *,
        pauses_s: tuple[float, float] = (_NEWS_PAUSE_S, _NEWS_PAUSE_S),
        timeout_s: float = math.inf,
        is_over: Callable[[], bool] = lambda: False,
    ) -> T | None:
        """Return what is polled once it is there; None: it is over, or not within the time.

        Args:
            poll: Returns what is waited for, or None.
            pauses_s: First and longest pause between two looks, s, which news end; by default
                those for what changes by news alone. Each look takes time of the training.
            timeout_s: Time in s until it is given up.
            is_over: Returns whether it is given up now.

        Raises:
            Stopped: The thread is to end.
        """
        give_up_s = time.monotonic() + timeout_s
        pause_s, longest_pause_s = pauses_s
        while True:
            self._has_come.clear()
            if self._is_stopping:
                raise Stopped
            if (found := poll()) is not None:
                return found
            if is_over() or time.monotonic() >= give_up_s:
                return None
            self._has_come.wait(pause_s)
            pause_s = min(2 * pause_s, longest_pause_s)
