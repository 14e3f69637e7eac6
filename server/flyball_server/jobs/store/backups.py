"""Backups of a planner's database, and their restoration."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from flyball_server.jobs.errors import BackupError
from flyball_server.jobs.store.database_address import is_postgres, shown, sqlite_file
from flyball_server.jobs.store.job_stores import needs_driver
from flyball_server.jobs.store.sqlite.sqlite_backup import back_up_sqlite, restore_sqlite
from flyball_wire.whole_file import whole_file

_KINDS = {"SQLite": b"SQLite format 3\0", "PostgreSQL": b"PGDMP"}


@dataclass(frozen=True, kw_only=True)
class Backup:
    """A backup that was made or restored.

    Attributes:
        file: the backup.
        database: displayed form of the database, without password.
        num_bytes: size of the file.
    """

    file: Path
    database: str
    num_bytes: int


def back_up(database: str, file: Path) -> Backup:
    """Write a consistent backup of this database; planners on it continue.

    Args:
        database: `sqlite:///FILE` or `postgresql://USER@HOST/DATABASE`.
        file: the backup; it appears when it is complete, readable by its owner only.

    Raises:
        StoreError: the database cannot be read, or the file exists or cannot be written.
    """
    if file.exists():
        raise BackupError(problem=f"{file} exists; give another name")
    with _written(file), whole_file(file, is_private=True) as part:
        if is_postgres(database):
            with needs_driver(database):
                from flyball_server.jobs.store.postgres.postgres_backup import (  # noqa: PLC0415 - psycopg
                    back_up_postgres,
                )
            back_up_postgres(database, part)
        else:
            back_up_sqlite(sqlite_file(database), part)
    return _result(database, file)


def restore(database: str, file: Path, *, replaces: bool = False) -> Backup:
    """Restore a backup into a database that no planner uses.

    Args:
        database: `sqlite:///FILE`, or an empty `postgresql://USER@HOST/DATABASE`.
        file: backup of a database of the same kind.
        replaces: overwrite SQLite's file if it exists.

    Raises:
        StoreError: the backup is none, of another kind or too new, or the database is in use, is
            not empty or cannot be written. The database is then as it was.
    """
    _check_kind(file, "PostgreSQL" if is_postgres(database) else "SQLite")
    if is_postgres(database):
        with needs_driver(database):
            from flyball_server.jobs.store.postgres.postgres_backup import (  # noqa: PLC0415 - psycopg
                restore_postgres,
            )
        restore_postgres(database, file)
    else:
        restore_sqlite(sqlite_file(database), file, replaces=replaces)
    return _result(database, file)


def _result(database: str, file: Path) -> Backup:
    return Backup(file=file, database=shown(database), num_bytes=file.stat().st_size)


@contextmanager
def _written(file: Path) -> Generator[None]:
    try:
        yield
    except OSError as error:
        raise BackupError(problem=f"{file} cannot be written ({error.strerror})") from error


def _check_kind(file: Path, wanted: str) -> None:
    try:
        with file.open("rb") as opened:
            start = opened.read(max(map(len, _KINDS.values())))
    except OSError as error:
        raise BackupError(problem=f"{file} cannot be read ({error.strerror})") from error
    found = next((kind for kind, magic in _KINDS.items() if start.startswith(magic)), None)
    if found is None:
        raise BackupError(problem=f"{file} is no backup; give one that `flyball db backup` made")
    if found != wanted:
        raise BackupError(
            problem=f"{file} is a backup of {found}; name such a database by --database"
        )
