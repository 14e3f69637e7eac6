"""Long polls: asynchronous waiters, notified when something about their job changes."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager, suppress
from typing import TypeVar

_Answer = TypeVar("_Answer")


class JobWaiters:
    """Notifier of a job's long polls; `notify` may be called from any thread.

    It works within one process; changes by other planners arrive by the store's signals.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # By job: what wakes each of those who watch it, under a key of its own.
        self._watching: dict[str, dict[object, Callable[[], object]]] = {}
        # Number of held calls, by `at_once`.
        self._num_held = {False: 0, True: 0}
        self._is_closed = False

    @property
    def num_waiting(self) -> int:
        """Number of waiting long polls and held calls."""
        with self._lock:
            return self._num_held[False]

    @property
    def num_at_once(self) -> int:
        """Number of calls that return after a single check of the current state."""
        with self._lock:
            return self._num_held[True]

    @property
    def is_closed(self) -> bool:
        """Return whether none may wait any more."""
        return self._is_closed

    @contextmanager
    def holding(self, *, at_once: bool = False) -> Generator[None]:
        """Count a call that waits during the block.

        Args:
            at_once: true if it returns the current state without waiting.
        """
        with self._lock:
            self._num_held[at_once] += 1
        try:
            yield
        finally:
            with self._lock:
                self._num_held[at_once] -= 1

    @contextmanager
    def watching(self, job_id: str, woken: Callable[[], None]) -> Generator[None]:
        """Call `woken` in this event loop after each notification of the job and at close."""
        key, loop = object(), asyncio.get_running_loop()
        with self._lock:
            watching = self._watching.setdefault(job_id, {})
            watching[key] = functools.partial(loop.call_soon_threadsafe, woken)
        try:
            yield
        finally:
            with self._lock:
                del watching[key]
                if not watching:
                    del self._watching[job_id]

    async def until(
        self, job_id: str, probe: Callable[[], Awaitable[_Answer | None]], *, wait_s: float
    ) -> _Answer | None:
        """Return the answer of `probe` once it is not None; None after `wait_s`, or at close.

        The probe is called at once, and again after each notification of the job.
        """
        loop, woken = asyncio.get_running_loop(), asyncio.Event()
        deadline_s = loop.time() + wait_s
        with self.holding(), self.watching(job_id, woken.set):
            while True:
                # Before the probe reads: a change in between is not missed.
                woken.clear()
                answer = await probe()
                remaining_s = deadline_s - loop.time()
                if answer is not None or remaining_s <= 0 or self._is_closed:
                    return answer
                try:
                    # `wait_for` would forget a cancellation that comes with a notification.
                    async with asyncio.timeout(remaining_s):
                        await woken.wait()
                except TimeoutError:
                    return None
                if self._is_closed:
                    return None

    def notify(self, job_id: str) -> None:
        """Make the long polls of this job check again, and notify its subscribers."""
        with self._lock:
            watching = tuple(self._watching.get(job_id, {}).values())
        for wake in watching:
            with suppress(RuntimeError):  # its loop has ended
                wake()

    def notify_all(self) -> None:
        """Make all long polls check again."""
        with self._lock:
            job_ids = tuple(self._watching)
        for job_id in job_ids:
            self.notify(job_id)

    def open(self) -> None:
        """Allow long polls to wait (again)."""
        self._is_closed = False

    def close(self) -> None:
        """Release all long polls now and refuse further waiting."""
        self._is_closed = True
        self.notify_all()
