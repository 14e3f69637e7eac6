"""Factory of the store for a database."""

from __future__ import annotations

from flyball_server.jobs.errors import StoreDriverError
from flyball_server.jobs.store.contract import JobStore
from flyball_server.jobs.store.database_address import is_postgres, shown, sqlite_file
from flyball_server.jobs.store.sqlite.sqlite_store import SqliteJobStore


def make_job_store(database: str, *, for_planner: bool = False) -> JobStore:
    """Return the store of this database, not yet opened.

    Args:
        database: `sqlite:///FILE` or `postgresql://USER@HOST/DATABASE`.
        for_planner: true for a planner's store; a SQLite file allows one at a time.

    Raises:
        StoreDriverError: the driver for PostgreSQL, of the extra `postgres`, is not installed.
    """
    if not is_postgres(database):
        return SqliteJobStore(sqlite_file(database), for_planner=for_planner)
    try:
        from flyball_server.jobs.store.postgres.postgres_store import (  # noqa: PLC0415 - psycopg
            PostgresJobStore,
        )
    except ImportError as error:
        raise StoreDriverError(location=shown(database)) from error
    return PostgresJobStore(database)
