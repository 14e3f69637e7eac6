"""Waits of a thread for what other threads tell it, and for what it has to poll."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import TypeVar

T = TypeVar("T")


class Stopped(Exception):  # noqa: N818 - no error
    """The thread that waits is to end."""


class News:
    """Condition that one thread waits for; other threads call `tell` and `stop`."""

    def __init__(self) -> None:
        # No event: a signal's handler that sets one may wait for the lock of what it interrupted.
        self._news = SimpleQueue[None]()
        self._is_stopping = False

    def tell(self) -> None:
        """Let the thread look again."""
        if self._news.empty():  # it looks once for all that it is told meanwhile
            self._news.put(None)

    def stop(self) -> None:
        """Let the thread end: its waits raise `Stopped`."""
        self._is_stopping = True
        self.tell()

    def until(
        self,
        poll: Callable[[], T | None],
        *,
        pauses_s: tuple[float, float] = (math.inf, math.inf),
        timeout_s: float = math.inf,
        is_over: Callable[[], bool] = lambda: False,
    ) -> T | None:
        """Return what is polled once it is there; None: it is over, or not within the time.

        Args:
            poll: Returns what is waited for, or None.
            pauses_s: First and longest pause between two looks, s, which news end; by default
                there is none, and it looks once there is news. Each look takes time of the
                training.
            timeout_s: Time in s until it is given up.
            is_over: Returns whether it is given up now.

        Raises:
            Stopped: The thread is to end.
        """
        give_up_s = time.monotonic() + timeout_s
        pause_s, longest_pause_s = pauses_s
        while True:
            if self._is_stopping:
                raise Stopped
            if (found := poll()) is not None:
                return found
            left_s = give_up_s - time.monotonic()
            if is_over() or left_s <= 0:
                return None
            wait_s = min(pause_s, left_s)
            with suppress(Empty):
                self._news.get(timeout=None if wait_s == math.inf else wait_s)
            pause_s = min(2 * pause_s, longest_pause_s)
