"""Backup of SQLite's file by its online backup, and restoration in one transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Generator
from contextlib import closing, contextmanager
from pathlib import Path

from flyball_server.jobs.errors import BackupError, StoreDamagedError
from flyball_server.jobs.store.sql.sql_tables import check_schema
from flyball_server.jobs.store.sqlite.sqlite_store import (
    BUSY_TIMEOUT_S,
    PlannerLock,
    check_is_sqlite,
    make_folder,
    make_sqlite_engine,
    restrict,
    sqlite_transaction,
    store_error,
)


def back_up_sqlite(database: Path, part: Path) -> None:
    """Write this database as it is now into an existing, empty file.

    Raises:
        StoreError: the database is missing, damaged or foreign, or the file cannot be written.
    """
    if not database.exists():
        raise BackupError(problem=f"{database} is not there; name the planner's by --database")
    check_is_sqlite(database)
    _check_is_ours(database)
    with _opened(database) as old, _opened(part) as new:
        old.backup(new)
        # The copy is of a write-ahead log, and would need two more files wherever it is read.
        new.execute("PRAGMA journal_mode = DELETE").close()
        _check_whole(new, database)


def restore_sqlite(database: Path, file: Path, *, replaces: bool) -> None:
    """Restore a backup.

    Raises:
        StoreError: the backup is damaged, foreign or too new, or the database exists, is in use
            or cannot be written.
    """
    with _opened(file) as backup:
        _check_whole(backup, file)
    _check_is_ours(file)
    if database.exists() and database.stat().st_size and not replaces:
        raise BackupError(problem=f"{database} exists; give another name, or --replace")
    if database.exists() and database.samefile(file):
        raise BackupError(problem=f"{file} is the database itself; name another file")
    make_folder(database)
    is_new = not database.exists()
    lock = PlannerLock(database)
    lock.take()
    try:
        check_is_sqlite(database)
        # As a transaction of the database: what fails on the way has changed nothing.
        with _opened(file) as backup, _opened(database) as restored:
            backup.backup(restored)
        restrict(database.resolve())
    except BaseException:
        if is_new:
            database.resolve().unlink(missing_ok=True)
        raise
    finally:
        lock.restore()


def _check_is_ours(file: Path) -> None:
    engine = make_sqlite_engine(file)
    try:
        with sqlite_transaction(engine, file=file, writes=False) as connection:
            check_schema(connection, location=str(file))
    finally:
        engine.dispose()


def _check_whole(connection: sqlite3.Connection, location: Path) -> None:
    with closing(connection.execute("PRAGMA quick_check(1)")) as found:
        if found.fetchone() != ("ok",):
            raise StoreDamagedError(location=location)


@contextmanager
def _opened(file: Path) -> Generator[sqlite3.Connection]:
    """Open a file that exists."""
    try:
        address = f"{file.absolute().as_uri()}?mode=rw"
        with closing(sqlite3.connect(address, uri=True, timeout=BUSY_TIMEOUT_S)) as connection:
            yield connection
    except sqlite3.Error as error:
        raise store_error(error, file) from error
