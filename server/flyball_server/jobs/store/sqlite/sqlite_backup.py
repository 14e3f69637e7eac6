"""Backup of SQLite's file by its online backup, and restoration in one transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Generator
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path
from typing import cast

from flyball_server.jobs.errors import BackupError, StoreBusyError, StoreDamagedError
from flyball_server.jobs.store.sql.sql_tables import check_schema
from flyball_server.jobs.store.sqlite.sqlite_store import (
    BUSY_TIMEOUT_S,
    PlannerLock,
    check_is_sqlite,
    make_folder,
    make_sqlite_engine,
    sqlite_transaction,
    store_error,
)
from flyball_wire.command.whole_file import whole_file


def back_up(database: Path, file: Path) -> None:
    """Write a consistent backup of SQLite's file; a planner on it continues.

    `file` appears when it is complete, readable by its owner only.

    Raises:
        StoreError: the database is missing, damaged or foreign, or `file` exists or cannot be
            written.
    """
    if not database.exists():
        raise BackupError(problem=f"{database} does not exist; name the planner's by --database")
    if file.exists():
        raise BackupError(problem=f"{file} exists; give another name")
    with _checked(database) as old, _named(file), whole_file(file, is_private=True) as part:
        _copy(old, part)
        # The write-ahead log that the database says it has is two more files beside each reader's.
        with closing(sqlite3.connect(part)) as new:
            new.execute("PRAGMA journal_mode = DELETE").close()


def restore(database: Path, file: Path, *, replaces: bool = False) -> None:
    """Restore a backup to SQLite's file, which no planner uses: whole, or nothing changes.

    Raises:
        StoreError: the backup is missing, damaged, foreign or too new, or the database exists and
            `replaces` is false, or it is in use or cannot be written.
    """
    if not file.is_file():
        raise BackupError(problem=f"{file} is no file; name a backup")
    with _checked(file) as backup, _named(database):
        make_folder(database)
        lock = PlannerLock(database)
        lock.take()
        try:
            check_is_sqlite(database)
            is_new = not database.stat().st_size
            if not (is_new or replaces):
                raise BackupError(problem=f"{database} exists; give another name, or --replace")
            # One that exists is changed in a transaction: other processes may have it open.
            whole = whole_file(database, is_private=True) if is_new else nullcontext(database)
            with whole as target:
                _copy(backup, target)
        finally:
            if not database.stat().st_size:
                database.resolve().unlink()  # created by the lock
            lock.restore()


@contextmanager
def _checked(file: Path) -> Generator[sqlite3.Connection]:
    """Read a database that is whole, Flyball's and not too new."""
    check_is_sqlite(file)
    engine = make_sqlite_engine(file)
    try:
        with sqlite_transaction(engine, file=file, writes=False) as connection:
            if connection.exec_driver_sql("PRAGMA quick_check(1)").scalar() != "ok":
                raise StoreDamagedError(location=file)
            check_schema(connection, location=file)
            yield cast("sqlite3.Connection", connection.connection.driver_connection)
    finally:
        engine.dispose()


def _copy(old: sqlite3.Connection, file: Path) -> None:
    """Replace the content of a SQLite file in one transaction."""

    def stop_if_busy(status: int, *_: int) -> None:  # `backup` itself would wait for ever
        if status in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            raise StoreBusyError(location=file)

    with closing(sqlite3.connect(file, timeout=BUSY_TIMEOUT_S)) as new:
        old.backup(new, progress=stop_if_busy)


@contextmanager
def _named(file: Path) -> Generator[None]:
    """Turn the errors of writing this file into the store's."""
    try:
        yield
    except (OSError, sqlite3.Error) as error:
        raise store_error(error, file) from error
