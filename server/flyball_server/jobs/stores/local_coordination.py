"""Turns and signals of a store that one process has for itself."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager


class LocalCoordination:
    """The turns and signals of the JobStore contract, within this process."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        # By name: the lock, and how many hold it or wait for it.
        self._turns: dict[str, tuple[threading.Lock, int]] = {}
        self._heard: Callable[[str | None], None] | None = None

    @contextmanager
    def turn(self, name: str, *, waits: bool = True) -> Generator[bool]:
        """Whether the turn of this name is the caller's until the block ends."""
        with self._guard:
            lock, num_users = self._turns.get(name, (threading.Lock(), 0))
            self._turns[name] = (lock, num_users + 1)
        is_mine = lock.acquire(blocking=waits)
        try:
            yield is_mine
        finally:
            if is_mine:
                lock.release()
            with self._guard:
                num_users = self._turns[name][1] - 1
                self._turns[name] = (lock, num_users)
                if not num_users:
                    del self._turns[name]

    def signal(self, job_id: str) -> None:
        """Tell the listener that something of this job has been stored."""
        if self._heard is not None:
            self._heard(job_id)

    def listen(self, heard: Callable[[str | None], None]) -> None:
        """Call this with each job that is signalled."""
        self._heard = heard
