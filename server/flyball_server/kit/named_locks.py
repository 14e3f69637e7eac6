"""Locks by name within one process."""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager


class NamedLocks:
    """Locks by name, created on demand and dropped when unused."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        # By name: the lock, and the number of its holders and waiters.
        self._locks: dict[str, tuple[threading.Lock, int]] = {}

    @contextmanager
    def held(self, name: str, *, timeout_s: float) -> Generator[bool]:
        """Try to hold the lock of this name until the block ends; yield true if it is held.

        Args:
            name: any text.
            timeout_s: maximum wait in s; 0: do not wait, -1: no limit.
        """
        with self._guard:
            lock, num_users = self._locks.get(name, (threading.Lock(), 0))
            self._locks[name] = (lock, num_users + 1)
        is_mine = False
        try:
            is_mine = lock.acquire(timeout=timeout_s) if timeout_s else lock.acquire(blocking=False)
            yield is_mine
        finally:
            if is_mine:
                lock.release()
            with self._guard:
                num_users = self._locks[name][1] - 1
                self._locks[name] = (lock, num_users)
                if not num_users:
                    del self._locks[name]
