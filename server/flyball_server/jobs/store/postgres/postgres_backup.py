"""Backup of a PostgreSQL database by pg_dump, and restoration by pg_restore."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from psycopg.conninfo import conninfo_to_dict, make_conninfo
from sqlalchemy import inspect, text

from flyball_server.jobs.errors import BackupError, StoreForeignError, StoreTooNewError
from flyball_server.jobs.store.postgres.postgres_engine import (
    PostgresAddress,
    make_postgres_engine,
    postgres_reading,
)
from flyball_server.jobs.store.sql.sql_tables import (
    SCHEMA_VERSION,
    check_schema,
    newest_usable_schema,
)

# Debian's clients of several versions, of which PATH has one at most.
_DEBIAN = Path("/usr/lib/postgresql")
_VERSION = re.compile(r"\(PostgreSQL\) (\d+)")
_STORED_VERSION = re.compile(r"^COPY [^\n]*\bschema_version [^\n]*;\n(\d+)\n", re.MULTILINE)
_TOOL_S = 60.0
_OWNERLESS = ("--no-owner", "--no-privileges")


@dataclass(frozen=True, kw_only=True)
class _Server:
    """The database's server.

    Attributes:
        major: its version.
        namespace: schema of PostgreSQL that holds the planner's tables.
    """

    major: int
    namespace: str


def back_up_postgres(database: str, part: Path) -> None:
    """Write this database as it is now into an existing, empty file.

    Raises:
        StoreError: the database cannot be read, or there is no fitting pg_dump, or it failed.
    """
    address = PostgresAddress(database=database)
    server = _checked_server(address, is_empty=False)
    namespace = server.namespace.replace('"', '""')
    of = ("--format=custom", *_OWNERLESS, f'--schema="{namespace}"', f"--file={part}")
    _run(address, _tool("pg_dump", server), *of, f"--dbname={_without_secret(address)}")


def restore_postgres(database: str, file: Path) -> None:
    """Restore a backup into a database without tables, in one transaction.

    Raises:
        StoreError: the database has tables or cannot be written, the backup is foreign or too
            new, or there is no fitting pg_restore, or it failed.
    """
    address = PostgresAddress(database=database)
    server = _checked_server(address, is_empty=True)
    tool = _tool("pg_restore", server)
    table = ("--data-only", f"--table={SCHEMA_VERSION.name}", "--file=-", str(file))
    stored = _STORED_VERSION.search(_run(address, tool, *table))
    if stored is None:
        raise BackupError(problem=f"{file} is no backup of a planner's database")
    if int(stored[1]) > newest_usable_schema():
        raise StoreTooNewError(location=file, found=int(stored[1]), known=newest_usable_schema())
    # Of the schema, which is there already, only what is in it.
    whole = ("--single-transaction", "--exit-on-error", *_OWNERLESS, f"--schema={server.namespace}")
    _run(address, tool, *whole, f"--dbname={_without_secret(address)}", str(file))
    try:
        _checked_server(address, is_empty=False)
    except StoreForeignError:
        raise BackupError(
            problem=f"{file} has no tables of the schema {server.namespace}; restore it into a"
            " database whose search_path begins with the schema that it was made of"
        ) from None


def _checked_server(address: PostgresAddress, *, is_empty: bool) -> _Server:
    """Return the server of a database that has no tables, or the planner's."""
    engine = make_postgres_engine(address)
    try:
        with postgres_reading(engine, address) as connection:
            if not is_empty:
                check_schema(connection, location=address.location)
            elif inspect(connection).get_table_names():
                raise BackupError(
                    problem=f"{address.location} has tables; restore into a new, empty database"
                )
            query = "SELECT current_setting('server_version_num')::int / 10000, current_schema()"
            major, namespace = connection.execute(text(query)).one()
            return _Server(major=major, namespace=namespace)
    finally:
        engine.dispose()


def _tool(name: str, server: _Server) -> Path:
    """Return the oldest program of this name that is not older than the server."""
    found = {major: path for path, major in _versions(name)}
    fitting = [major for major in found if major >= server.major]
    if not fitting:
        there = f"here is {max(found)}" if found else "here is none"
        raise BackupError(
            problem=f"needs {name} of PostgreSQL {server.major} or newer ({there}); on Debian:"
            f" apt-get install postgresql-client-{server.major}"
        )
    return found[min(fitting)]


def _versions(name: str) -> Iterator[tuple[Path, int]]:
    """Yield the programs of this name with their major versions, PATH's last."""
    on_path = shutil.which(name)
    candidates = [*_DEBIAN.glob(f"*/bin/{name}"), *([Path(on_path)] if on_path else [])]
    for path in candidates:
        said = subprocess.run(  # noqa: S603 - a path that was found here
            (path, "--version"), capture_output=True, text=True, timeout=_TOOL_S, check=False
        )
        version = _VERSION.search(said.stdout)
        if version is not None:
            yield path, int(version[1])


def _run(address: PostgresAddress, tool: Path, *arguments: str) -> str:
    """Run a PostgreSQL program and return its output."""
    password = conninfo_to_dict(address.database).get("password")
    environment = {**os.environ, "LC_ALL": "C"}
    if password is not None:
        environment["PGPASSWORD"] = str(password)
    ran = subprocess.run(  # noqa: S603 - arguments, not a shell's line
        (tool, *arguments), env=environment, capture_output=True, text=True, check=False
    )
    if ran.returncode != 0:
        lines = ran.stderr.splitlines() or [f"exit status {ran.returncode}"]
        first = next((line for line in lines if "error:" in line), lines[0])
        raise BackupError(problem=f"{address.location}: {first}")
    return ran.stdout


def _without_secret(address: PostgresAddress) -> str:
    """Return the address as others may read it in the list of processes."""
    given = conninfo_to_dict(address.database)
    given.pop("password", None)
    if given.get("sslpassword"):
        raise BackupError(
            problem=f"{address.location}: no program of PostgreSQL takes sslpassword unseen; use a"
            " key without a password"
        )
    return make_conninfo("", **given)
