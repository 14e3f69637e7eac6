"""Job store on SQLite: one file, which outlives the planner."""

from __future__ import annotations

import fcntl
import os
import sqlite3
import stat
import tempfile
import threading
import time
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager, suppress
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
from flyball_server.jobs.store.contract import StoreSpace
from flyball_server.jobs.store.sql.job_reader import JobReader
from flyball_server.jobs.store.sql.job_writer import JobWriter
from flyball_server.jobs.store.sql.sql_forgetting import has_forgotten_jobs, remove_some
from flyball_server.jobs.store.sql.sql_tables import migrate, rewrite_version
from flyball_server.kit.named_locks import NamedLocks

BUSY_TIMEOUT_S = 5.0
_BUSY_PAUSE_S = 0.01
# Time that the check of writing waits for other writers, whose own errors show otherwise, s.
_CHECK_WAIT_S = 1.0
_ROOM_BYTES = 2**20
_OWNER_ONLY, _FOLDER_OF_OWNER, _RIGHTS_OF_OTHERS = 0o600, 0o700, 0o077
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

    SQLite refuses this at once, without its own waiting, while another connection is writing.

    Raises:
        StoreError: SQLite refused, or the file stayed busy for `BUSY_TIMEOUT_S`.
    """
    deadline_s = time.monotonic() + BUSY_TIMEOUT_S
    while True:
        try:
            connection = engine.raw_connection()
            try:
                connection.cursor().execute("PRAGMA journal_mode = WAL").close()
            finally:
                connection.close()
            return
        except (DBAPIError, sqlite3.Error) as error:
            refusal = store_error(getattr(error, "orig", error), file)
            if not isinstance(refusal, StoreBusyError) or time.monotonic() >= deadline_s:
                raise refusal from error
        time.sleep(_BUSY_PAUSE_S)


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


def make_folder(file: Path) -> None:
    """Create the folder of this file, and those above it, for its owner only.

    Raises:
        StoreError: one cannot be created.
    """
    try:
        for folder in (*reversed(file.parent.parents), file.parent):
            if not folder.exists():
                folder.mkdir(mode=_FOLDER_OF_OWNER, exist_ok=True)
    except OSError as error:
        raise store_error(error, file) from error


def make_file(file: Path) -> None:
    """Create this file for its owner only, if it does not exist; SQLite would let others read.

    Raises:
        StoreError: it cannot be created.
    """
    try:
        os.close(os.open(file, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _OWNER_ONLY))
    except FileExistsError:
        return
    except OSError as error:
        raise store_error(error, file) from error


def restrict(file: Path) -> None:
    """Take the rights of group and others away from a file of this user, if it exists.

    Raises:
        StoreError: the file system refused.
    """
    try:
        found = file.stat()
        if found.st_uid == os.geteuid() and found.st_mode & _RIGHTS_OF_OTHERS:
            file.chmod(stat.S_IMODE(found.st_mode) & ~_RIGHTS_OF_OTHERS)
    except FileNotFoundError:
        return
    except OSError as error:
        raise store_error(error, file) from error


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

    It is held on the database, so that no hard link to it evades it, and on `DATABASE.lock`, so
    that no other file in its place does. That one stays: after its removal two planners could lock
    different files.
    """

    def __init__(self, database: Path) -> None:
        self._database = database
        self._descriptors: list[int] = []

    def take(self) -> None:
        """Take the lock, creating both files if they do not exist; idempotent.

        Raises:
            StoreInUseError: another planner holds the lock.
            StoreError: a file cannot be created or locked.
        """
        if self._descriptors:
            return
        real = self._database.resolve()
        lock = real.with_name(f"{real.name}.lock")
        try:
            for file in (lock, real):
                self._descriptors.append(self._locked(file))
            restrict(lock)
        except BaseException:
            self.restore()
            raise

    def restore(self) -> None:
        """Release the lock; idempotent. SQLite must have closed the database before.

        A process that closes a file loses SQLite's own locks on it.
        """
        while self._descriptors:
            os.close(self._descriptors.pop())

    def _locked(self, file: Path) -> int:
        try:
            descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _OWNER_ONLY)
        except OSError as error:
            raise store_error(error, file) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            if isinstance(error, BlockingIOError):
                raise StoreInUseError(location=self._database, lock=file) from None
            raise store_error(error, file) from error
        return descriptor


class SqliteJobStore:
    """Job store in a SQLite file; its locks and signals are of this process alone.

    Args:
        file: database file; `open` creates it, with its folder, if it does not exist.
        for_planner: true to refuse any other planner's store on the file meanwhile.
    """

    def __init__(self, file: Path, *, for_planner: bool = False) -> None:
        self._file = file
        self._lock = PlannerLock(file) if for_planner else None
        self._engine: Engine | None = None
        self._writers = threading.Lock()
        self._locks = NamedLocks()
        self._heard: Callable[[str | None], None] | None = None

    def open(self) -> None:
        """Create the file or migrate it to the newest schema.

        Raises:
            StoreError: the file cannot be used; the class names the reason.
        """
        if self._engine is not None:
            return
        make_folder(self._file)
        check_is_sqlite(self._file)
        if self._lock is not None:
            self._lock.take()
        make_file(self._file)
        engine = make_sqlite_engine(self._file)
        try:
            with sqlite_transaction(engine, file=self._file, writes=True) as connection:
                migrate(connection, location=str(self._file))
            # Only after this check may the file be changed.
            use_write_ahead_log(engine, file=self._file)
            real = self._file.resolve()
            for suffix in ("", "-wal", "-shm"):
                restrict(real.with_name(real.name + suffix))
        except BaseException:
            engine.dispose()
            self._give_lock_back()
            raise
        self._engine = engine

    def close(self) -> None:
        """Close the file."""
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.dispose()
        self._give_lock_back()

    @contextmanager
    def reading(self) -> Generator[JobReader]:
        """Open a reading transaction."""
        with self._connected(writes=False) as connection:
            yield JobReader(connection)

    @contextmanager
    def writing(self, subject: str) -> Generator[JobWriter]:
        """Open a transaction that may change data; all subjects are serialised."""
        del subject
        with self._writing() as connection:
            yield JobWriter(connection, insert)

    def forget_some(self) -> bool:
        """Remove some rows of deleted jobs; return whether more are left."""
        with self._connected(writes=False) as connection:
            if not has_forgotten_jobs(connection):
                return False
        with self._writing() as connection:
            return remove_some(connection)

    def check_writing(self) -> None:
        """Store a small change that changes no data; check that there is room for more."""
        if self._writers.acquire(timeout=_CHECK_WAIT_S):
            try:
                with self._connected(writes=True) as connection:
                    rewrite_version(connection)
            finally:
                self._writers.release()
        check_room(self._file)

    def space(self) -> StoreSpace:
        """Return the size of the file with its write-ahead log, and the room on its disk."""
        self._opened()
        real = self._file.resolve()
        try:
            size_bytes = real.stat().st_size
            with suppress(FileNotFoundError):  # SQLite removes it as the last connection closes
                size_bytes += real.with_name(f"{real.name}-wal").stat().st_size
            disk = os.statvfs(real.parent)
        except OSError as error:
            raise store_error(error, self._file) from error
        return StoreSpace(size_bytes=size_bytes, free_bytes=disk.f_bavail * disk.f_frsize)

    @contextmanager
    def lock(self, name: str, *, waits: bool = True) -> Generator[bool]:
        """Hold the lock of this name until the block ends; yield true if it is held."""
        self._opened()
        with self._locks.held(name, timeout_s=-1 if waits else 0) as is_mine:
            yield is_mine

    def signal(self, job_id: str) -> None:
        """Notify the listener that data of this job has been stored."""
        if self._heard is not None:
            self._heard(job_id)

    def listen(self, heard: Callable[[str | None], None]) -> None:
        """Register the callback for each signalled job."""
        self._heard = heard

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

    def _opened(self) -> Engine:
        if self._engine is None:
            raise StoreClosedError
        return self._engine

    def _connected(self, *, writes: bool) -> AbstractContextManager[Connection]:
        return sqlite_transaction(self._opened(), file=self._file, writes=writes)
