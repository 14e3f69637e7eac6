"""One planner at a time on a SQLite file: a lock on a file beside it, for as long as it runs."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from flyball_server.jobs.errors import StoreInUseError
from flyball_server.jobs.store.sqlite.sqlite_engine import store_error


class PlannerLock:
    """The lock of the planner on this database; the kernel gives it back if the process dies.

    The file `DATABASE.lock` stays: to remove it would let two planners lock different files.

    Args:
        database: SQLite's file.
    """

    def __init__(self, database: Path) -> None:
        self._database = database
        self._descriptor: int | None = None

    def take(self) -> None:
        """Take the lock; nothing is done where it is held already.

        Raises:
            StoreInUseError: another planner has it.
            StoreError: the file cannot be made or locked.
        """
        if self._descriptor is not None:
            return
        real = self._database.resolve()
        lock = real.with_name(f"{real.name}.lock")
        try:
            descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise store_error(error, lock) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            if isinstance(error, BlockingIOError):
                raise StoreInUseError(location=self._database, lock=lock) from None
            raise store_error(error, lock) from error
        self._descriptor = descriptor

    def give_back(self) -> None:
        """Let another planner take it; any number of times."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)
