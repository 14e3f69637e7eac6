"""Job store on SQLite: one file, which outlives the planner."""

from __future__ import annotations

import fcntl
import os
import sqlite3
import tempfile
import threading
from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.dialects.sqlite import insert
from sqlalchemy.engine import URL
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from flyball_server.jobs.errors import (
    StoreBusyError,
    StoreClosedError,
    StoreDamagedError,
    StoreError,
    StoreFullError,
    StoreInUseError,
    StoreUnavailableError,
)
from flyball_server.jobs.store.contract import JobReader, JobWriter
from flyball_server.jobs.store.local_coordination import LocalCoordination
from flyball_server.jobs.store.sql.sql_forgetting import Forgetting
from flyball_server.jobs.store.sql.sql_tables import migrate, rewrite_version
from flyball_server.jobs.store.sql.sql_transaction import SqlTransaction

BUSY_TIMEOUT_S = 5.0
# Time that the check of writing waits for other writers, whose own errors show otherwise, s.
_CHECK_WAIT_S = 1.0
_ROOM_BYTES = 2**20
_MAGIC = b"SQLite format 3\0"
_WRITES = "flyball_writes"
_ERRORS: dict[str, type[StoreError]] = {
    "SQLITE_BUSY": StoreBusyError,
    "SQLITE_LOCKED": StoreBusyError,
    "SQLITE_NOTADB": StoreDamagedError,
    "SQLITE_CORRUPT": StoreDamagedError,
}


def make_sqlite_engine(file: Path) -> Engine:
    """Return an engine over this file; nothing is opened before the first transaction."""
    engine = create_engine(
        URL.create("sqlite", database=str(file)),
        connect_args={"timeout": BUSY_TIMEOUT_S},
        pool_size=8,
        max_overflow=56,
        pool_timeout=BUSY_TIMEOUT_S,
    )
    event.listen(engine, "connect", _prepare)
    event.listen(engine, "begin", _begin)
    return engine


@contextmanager
def sqlite_transaction(engine: Engine, *, file: Path, writes: bool) -> Generator[Connection]:
    """Run one transaction, committed when the block ends normally, else rolled back.

    Raises:
        StoreError: SQLite refused; the class names the reason.
    """
    try:
        with (
            engine.connect().execution_options(**{_WRITES: writes}) as connection,
            connection.begin(),
        ):
            yield connection
    except PoolTimeoutError as error:
        raise StoreBusyError(location=file) from error
    except DBAPIError as error:
        if isinstance(error.orig, sqlite3.IntegrityError):
            raise ValueError(f"refused by the schema: {error.orig}") from error
        raise store_error(error.orig, file) from error


def use_write_ahead_log(engine: Engine, *, file: Path) -> None:
    """Set the file's journal mode so that readers and a writer do not block each other.

    Raises:
        StoreError: SQLite refused.
    """
    try:
        connection = engine.raw_connection()
        try:
            connection.cursor().execute("PRAGMA journal_mode = WAL").close()
        finally:
            connection.close()
    except (DBAPIError, sqlite3.Error) as error:
        raise store_error(getattr(error, "orig", error), file) from error


def check_is_sqlite(file: Path) -> None:
    """Refuse a file that is something else; SQLite itself would overwrite a very short one.

    Raises:
        StoreDamagedError: the file does not begin as SQLite's files do.
        StoreUnavailableError: the file cannot be read.
    """
    try:
        with file.open("rb") as opened:
            start = opened.read(len(_MAGIC))
    except FileNotFoundError:
        return
    except OSError as error:
        raise store_error(error, file) from error
    if start not in (b"", _MAGIC):
        raise StoreDamagedError(location=file)


def store_error(cause: BaseException | None, file: Path) -> StoreError:
    """Return the store error for a failure of SQLite or of the file system."""
    name: str = getattr(cause, "sqlite_errorname", None) or ""
    for prefix, kind in _ERRORS.items():
        if name.startswith(prefix):
            return kind(location=file)
    reason = getattr(cause, "strerror", None) or str(cause)
    if name == "SQLITE_FULL":
        return StoreFullError(location=file, reason=reason)
    return StoreUnavailableError(location=file, reason=reason)


def check_room(file: Path) -> None:
    """Check that the file's disk has room for some larger writes.

    A small write may find room within the write-ahead log where a larger one finds none.

    Raises:
        StoreFullError: it has none, or takes no file beside this one.
    """
    try:
        with tempfile.TemporaryFile(dir=file.parent) as tried:
            os.posix_fallocate(tried.fileno(), 0, _ROOM_BYTES)
    except OSError as error:
        raise StoreFullError(location=file, reason=error.strerror) from error


def _prepare(dbapi_connection: sqlite3.Connection, _record: object) -> None:
    # Python's own implicit transactions would begin too late for a consistent read.
    dbapi_connection.isolation_level = None
    cursor = dbapi_connection.cursor()
    try:
        # With NORMAL a killed planner loses nothing; only a power cut may cost the last moment, and
        # never consistency.
        cursor.execute("PRAGMA synchronous = NORMAL")
        cursor.execute("PRAGMA foreign_keys = ON")
    finally:
        cursor.close()


def _begin(connection: Connection) -> None:
    # IMMEDIATE takes the write lock at once: read data stays valid until the commit.
    writes = connection.get_execution_options().get(_WRITES, False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


class PlannerLock:
    """Lock of the planner on this database; the kernel releases it when the process ends.

    The file `DATABASE.lock` stays: after its removal two planners could lock different files.

    Args:
        database: SQLite's file.
    """

    def __init__(self, database: Path) -> None:
        self._database = database
        self._descriptor: int | None = None

    def take(self) -> None:
        """Take the lock; idempotent.

        Raises:
            StoreInUseError: another planner holds the lock.
            StoreError: the file cannot be created or locked.
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

    def restore(self) -> None:
        """Release the lock; idempotent."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)


class SqliteJobStore(LocalCoordination):
    """Job store in a SQLite file.

    Args:
        file: database file; `open` creates it, with its folder, if it does not exist.
        for_planner: true to refuse any other planner's store on the file meanwhile.
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
        """Create the file or migrate it to the newest schema.

        Raises:
            StoreError: the file cannot be used; the class names the reason.
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
            # Only after this check may the file be changed.
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
        """Open a reading transaction."""
        with self._connected(writes=False) as connection:
            yield SqlTransaction(connection, insert)

    @contextmanager
    def writing(self, subject: str) -> Generator[JobWriter]:
        """Open a transaction that may change data; all subjects are serialised."""
        del subject
        with self._writing() as connection:
            transaction = SqlTransaction(connection, insert)
            yield transaction
        if transaction.has_forgotten:
            self._forgetting.wake()

    def check_writing(self) -> None:
        """Store a small change that changes no data; check that there is room for more."""
        if self._writers.acquire(timeout=_CHECK_WAIT_S):
            try:
                with self._connected(writes=True) as connection:
                    rewrite_version(connection)
            finally:
                self._writers.release()
        check_room(self._file)

    @contextmanager
    def _writing(self) -> Generator[Connection]:
        """Open a transaction after those of this process.

        SQLite could wait too, but retries only every 100 ms.
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
