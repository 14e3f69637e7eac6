"""Locks and signals of a store used by one process only."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator
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


class LocalCoordination(ABC):
    """Locks and signals of the JobStore contract, within this process."""

    def __init__(self) -> None:
        self._locks = NamedLocks()
        self._heard: Callable[[str | None], None] | None = None

    @contextmanager
    def lock(self, name: str, *, waits: bool = True) -> Generator[bool]:
        """Hold the lock of this name until the block ends; yield true if it is held."""
        self._check_open()
        with self._locks.held(name, timeout_s=-1 if waits else 0) as is_mine:
            yield is_mine

    def signal(self, job_id: str) -> None:
        """Notify the listener that data of this job has been stored."""
        if self._heard is not None:
            self._heard(job_id)

    def listen(self, heard: Callable[[str | None], None]) -> None:
        """Register the callback for each signalled job."""
        self._heard = heard

    @abstractmethod
    def _check_open(self) -> None:
        """Raise StoreClosedError if the store is not open."""
