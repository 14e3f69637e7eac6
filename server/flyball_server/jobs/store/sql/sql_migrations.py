"""Schema of the database: made when it is empty, migrated when an older Flyball wrote it."""

from __future__ import annotations

from sqlalchemy import Connection, inspect, text

from flyball_server.jobs.errors import StoreForeignError, StoreTooNewError
from flyball_server.jobs.store.sql.sql_tables import JOBS, METADATA, SCHEMA_VERSION

MIGRATIONS: tuple[tuple[str, ...], ...] = ()
"""Statements from schema 1 to 2, from 2 to 3 and so on. Never edit a released step: add one."""


def newest_schema() -> int:
    """Return the schema that this Flyball writes: 1 with no migration."""
    return 1 + len(MIGRATIONS)


def migrate(connection: Connection, *, location: str) -> None:
    """Bring the database of this writing transaction to the newest schema.

    Args:
        connection: inside a transaction; nothing stays if this raises.
        location: what people know the database by.

    Raises:
        StoreForeignError: it has tables, but they are not Flyball's.
        StoreTooNewError: a newer Flyball has written it.
    """
    found = _schema_version(connection, location)
    if found == newest_schema():
        return
    if found is None:
        METADATA.create_all(connection)
    elif found > newest_schema():
        raise StoreTooNewError(location=location, found=found, known=newest_schema())
    else:
        for statements in MIGRATIONS[found - 1 :]:
            for statement in statements:
                connection.execute(text(in_dialect(statement, connection.dialect.name)))
        connection.execute(SCHEMA_VERSION.delete())
    connection.execute(SCHEMA_VERSION.insert().values(version=newest_schema()))


def in_dialect(statement: str, dialect: str) -> str:
    """A statement of MIGRATIONS for this database: SQLite's INTEGER has 64 bits, others' 32."""
    return statement.replace(" INTEGER", " BIGINT") if dialect == "postgresql" else statement


def _schema_version(connection: Connection, location: str) -> int | None:
    """Schema of the database; None where it is empty."""
    inspector = inspect(connection)
    tables = inspector.get_table_names()
    if SCHEMA_VERSION.name in tables:
        # Other programs have a table of this name too.
        columns = [column["name"] for column in inspector.get_columns(SCHEMA_VERSION.name)]
        if columns != ["version"] or JOBS.name not in tables:
            raise StoreForeignError(location=location)
        version = connection.execute(SCHEMA_VERSION.select()).scalar()
        if not isinstance(version, int):
            raise StoreForeignError(location=location)
        return version
    if tables:
        raise StoreForeignError(location=location)
    return None
