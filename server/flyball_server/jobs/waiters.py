"""Long polls: asynchronous waiters, notified when something about their job changes."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from typing import TypeVar

_Answer = TypeVar("_Answer")


class JobWaiters:
    """Notifier of a job's long polls; `notify` may be called from any thread.

    It works within one process; changes by other planners arrive by the store's signals.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[str, set[asyncio.Future[None]]] = {}
        self._watching: dict[str, list[Callable[[], None]]] = {}
        # Number of held calls, by `at_once`.
        self._num_held = {False: 0, True: 0}
        self._is_closed = False

    @property
    def num_waiting(self) -> int:
        """Number of waiting long polls and held calls."""
        with self._lock:
            return self._num_held[False] + sum(len(futures) for futures in self._waiting.values())

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
        """Count a call that waits by other means than `until` during the block.

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
        """Call `woken`, on any thread, after each notification of the job and at close."""
        with self._lock:
            self._watching.setdefault(job_id, []).append(woken)
        try:
            yield
        finally:
            with self._lock:
                self._watching[job_id].remove(woken)
                if not self._watching[job_id]:
                    del self._watching[job_id]

    async def until(
        self, job_id: str, probe: Callable[[], Awaitable[_Answer | None]], *, wait_s: float
    ) -> _Answer | None:
        """Return the answer of `probe` once it is not None; None after `wait_s`, or at close.

        The probe is called at once, and again after each notification of the job.
        """
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + wait_s
        while True:
            # Waiting starts before the probe reads: a change in between is not missed.
            woken: asyncio.Future[None] = loop.create_future()
            self._add(job_id, woken)
            try:
                answer = await probe()
                remaining_s = deadline_s - loop.time()
                if answer is not None or remaining_s <= 0 or self._is_closed:
                    return answer
                await asyncio.wait({woken}, timeout=remaining_s)
                if not woken.done() or self._is_closed:
                    return None
            finally:
                self._remove(job_id, woken)

    def notify(self, job_id: str) -> None:
        """Make the long polls of this job check again, and notify its subscribers."""
        with self._lock:
            futures = tuple(self._waiting.get(job_id, ()))
            watching = tuple(self._watching.get(job_id, ()))
        for future in futures:
            _set_from_any_thread(future)
        for woken in watching:
            woken()

    def notify_all(self) -> None:
        """Make all long polls check again."""
        with self._lock:
            job_ids = tuple(self._waiting.keys() | self._watching.keys())
        for job_id in job_ids:
            self.notify(job_id)

    def open(self) -> None:
        """Allow long polls to wait (again)."""
        self._is_closed = False

    def close(self) -> None:
        """Release all long polls now and refuse further waiting."""
        self._is_closed = True
        self.notify_all()

    def _add(self, job_id: str, future: asyncio.Future[None]) -> None:
        with self._lock:
            self._waiting.setdefault(job_id, set()).add(future)

    def _remove(self, job_id: str, future: asyncio.Future[None]) -> None:
        with self._lock:
            futures = self._waiting[job_id]
            futures.discard(future)
            if not futures:
                del self._waiting[job_id]


def _set_from_any_thread(future: asyncio.Future[None]) -> None:
    def set_once() -> None:
        if not future.done():
            future.set_result(None)

    try:
        future.get_loop().call_soon_threadsafe(set_once)
    except RuntimeError:
        return  # the loop has ended, and its waiters with it
