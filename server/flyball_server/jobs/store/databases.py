"""Address of a database, SQLite's file or one in PostgreSQL, and the store on it."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import parse_qs

from flyball_server.jobs.errors import StoreDriverError
from flyball_server.jobs.store.contract import JobStore
from flyball_server.jobs.store.sqlite.sqlite_store import SqliteJobStore

SQLITE_PREFIX = "sqlite:///"
POSTGRES_SCHEMES = ("postgresql", "postgres")
_HOST = r"(?:\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9._%-]*)(?::[0-9]{1,5})?"
# Strict, since libpq repeats the host and port in its messages, and a part of a password with an
# @ or a / would be taken for them.
_POSTGRES = re.compile(
    r"postgres(?:ql)?://"
    r"(?:(?P<user>[^\s:@/?#]*)(?::[^\s:@/?#]*)?@)?"
    rf"(?P<hosts>{_HOST}(?:,{_HOST})*)"
    r"(?P<name>/[^\s@/?#]*)?(?:\?(?P<options>[^\s@#]*))?",
    re.ASCII,
)


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


def is_postgres(database: str) -> bool:
    """Return whether this is the address of a database in PostgreSQL."""
    return database.partition("://")[0] in POSTGRES_SCHEMES


def sqlite_file(database: str) -> Path:
    """Return the file that `sqlite:///FILE` names."""
    return Path(database.removeprefix(SQLITE_PREFIX)).expanduser()


def missing_file(database: str) -> Path | None:
    """Return SQLite's file if it does not exist; None: it does, or the database is PostgreSQL's."""
    if is_postgres(database):
        return None
    file = sqlite_file(database)
    return None if file.exists() else file


def database_problem(database: str) -> str | None:
    """Return why this is no valid database, without any password; None: it is valid."""
    if is_postgres(database):
        return _postgres_problem(database)
    scheme = database.partition(":")[0]  # the rest may hold a password
    if scheme != "sqlite":
        return (
            "must be sqlite:///FILE (sqlite:////FILE from the root) or"
            f" postgresql://USER@HOST/DATABASE, not a {scheme or 'nameless'} address"
        )
    name = database.removeprefix(SQLITE_PREFIX)
    if not database.startswith(SQLITE_PREFIX) or name in {"", ":memory:"}:
        return "must name a file: sqlite:///FILE"
    return None


def shown(database: str) -> str:
    """Return the displayed form of a database: without password and options."""
    if not is_postgres(database):
        return str(sqlite_file(database))
    parts = _POSTGRES.fullmatch(database)
    if parts is None:
        return "postgresql://..."
    user = f"{parts['user']}@" if parts["user"] else ""
    return f"postgresql://{user}{parts['hosts']}{parts['name'] or ''}"


def _postgres_problem(database: str) -> str | None:
    parts = _POSTGRES.fullmatch(database)
    if parts is None:
        return (
            "must be postgresql://USER:PASSWORD@HOST:PORT/DATABASE, with : @ / ? # and spaces in"
            " a name or password as %3A %40 %2F %3F %23 and %20"
        )
    options = parse_qs(parts["options"] or "")
    if (parts["name"] or "/") == "/" and not {"dbname", "service"} & set(options):
        return "must name a database: postgresql://USER@HOST/DATABASE"
    return None
