"""The job store on SQLite: one file, which outlives the planner."""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from sqlalchemy import Connection, Engine
from sqlalchemy.dialects.sqlite import insert

from flyball_server.jobs.errors import StoreBusyError, StoreClosedError
from flyball_server.jobs.store.contract import JobReader, JobWriter
from flyball_server.jobs.store.memory.local_coordination import LocalCoordination
from flyball_server.jobs.store.sql.sql_forgetting import Forgetting
from flyball_server.jobs.store.sql.sql_migrations import migrate
from flyball_server.jobs.store.sql.sql_transaction import SqlTransaction
from flyball_server.jobs.store.sqlite.sqlite_engine import (
    BUSY_TIMEOUT_S,
    PlannerLock,
    check_is_sqlite,
    make_sqlite_engine,
    sqlite_transaction,
    store_error,
    use_write_ahead_log,
)


class SqliteJobStore(LocalCoordination):
    """The JobStore contract over a SQLite file.

    Args:
        file: made by `open`, with its folder, if it is not there.
        for_planner: let no other store that is for a planner be open on the file meanwhile.
    """

    def __init__(self, file: Path, *, for_planner: bool = False) -> None:
        super().__init__()
        self._file = file
        self._lock = PlannerLock(file) if for_planner else None
        self._engine: Engine | None = None
        self._forgetting = Forgetting(
            reading=lambda: self._connected(writes=False),
            writing=self._writing,
        )
        self._writers = threading.Lock()

    def open(self) -> None:
        """Make the file or bring it to the newest schema.

        Raises:
            StoreError: it cannot be used; which one says why.
        """
        if self._engine is not None:
            return
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise store_error(error, self._file) from error
        check_is_sqlite(self._file)
        if self._lock is not None:
            self._lock.take()
        engine = make_sqlite_engine(self._file)
        try:
            with sqlite_transaction(engine, file=self._file, writes=True) as connection:
                migrate(connection, location=str(self._file))
            # Only now is it known to be ours to change.
            use_write_ahead_log(engine, file=self._file)
        except BaseException:
            engine.dispose()
            self._give_lock_back()
            raise
        self._engine = engine
        self._forgetting.start()

    def close(self) -> None:
        """Close the file."""
        self._forgetting.stop()
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.dispose()
        self._give_lock_back()

    @contextmanager
    def reading(self) -> Generator[JobReader]:
        """A transaction that only reads."""
        with self._connected(writes=False) as connection:
            yield SqlTransaction(connection, insert)

    @contextmanager
    def writing(self, subject: str) -> Generator[JobWriter]:
        """A transaction that may change things; whatever the subject, one after another."""
        del subject
        with self._writing() as connection:
            transaction = SqlTransaction(connection, insert)
            yield transaction
        if transaction.has_forgotten:
            self._forgetting.wake()

    @contextmanager
    def _writing(self) -> Generator[Connection]:
        """A transaction that follows on those of this process.

        SQLite would let it wait too, but looks only every 100 ms whether it is its turn.
        """
        if not self._writers.acquire(timeout=BUSY_TIMEOUT_S):
            raise StoreBusyError(location=self._file)
        try:
            with self._connected(writes=True) as connection:
                yield connection
        finally:
            self._writers.release()

    def _give_lock_back(self) -> None:
        if self._lock is not None:
            self._lock.restore()

    def _check_open(self) -> None:
        self._opened()

    def _opened(self) -> Engine:
        if self._engine is None:
            raise StoreClosedError
        return self._engine

    def _connected(self, *, writes: bool) -> AbstractContextManager[Connection]:
        return sqlite_transaction(self._opened(), file=self._file, writes=writes)
