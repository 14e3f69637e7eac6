"""PostgreSQL for the SQL store: connections, transactions, clear errors.

It needs psycopg, which is in the extra `postgres`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict
from sqlalchemy import Connection, Engine, create_engine, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from flyball_server.jobs.errors import (
    StoreBusyError,
    StoreError,
    StoreFullError,
    StoreUnreachableError,
)
from flyball_server.jobs.store.databases import shown

# Time that a writing transaction waits for others of its subject, s.
BUSY_TIMEOUT_S = 10.0
_POOL_TIMEOUT_S = 5.0
# Several planners with their locks and signals stay below PostgreSQL's default of 100 connections.
_POOL_SIZE, _POOL_OVERFLOW = 8, 12
_LONGEST_REASON = 300
# A planner that hangs inside a transaction must not block its job for ever, and one on a failed
# machine must not keep its locks: PostgreSQL checks whether its clients still exist.
_SESSION = (
    "SET idle_in_transaction_session_timeout = '60s'",
    "SET tcp_keepalives_idle = 10",
    "SET tcp_keepalives_interval = 5",
    "SET tcp_keepalives_count = 3",
)
_DEFAULTS: dict[str, str | int] = {
    "connect_timeout": 3,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 20_000,
    "fallback_application_name": "flyball",
    "client_encoding": "utf8",
}
# By the beginning of SQLSTATE: temporary errors.
_BUSY = ("40001", "40P01", "55P03", "57014", "25P03")
_DISK_FULL = "53100"


@dataclass(frozen=True, kw_only=True)
class PostgresAddress:
    """Address of the database; no displayed text contains its password.

    Attributes:
        database: address as it was given.
        location: displayed form, without password.
    """

    database: str = field(repr=False)

    @property
    def location(self) -> str:
        """Address without password and options."""
        return shown(self.database)

    def connect(self, *, autocommit: bool = False) -> psycopg.Connection[Any]:
        """Return a new connection.

        Raises:
            psycopg.Error: the connection failed; `error` makes a StoreError of it.
        """
        given = conninfo_to_dict(self.database)
        chosen: dict[str, Any] = {**_DEFAULTS, **given}
        connection = psycopg.connect(**chosen, autocommit=True)
        try:
            busy_ms = round(1000 * BUSY_TIMEOUT_S)
            statements = "; ".join((f"SET lock_timeout = {busy_ms}", *_SESSION))
            connection.execute(statements.encode())
            connection.autocommit = autocommit
        except BaseException:
            connection.close()
            raise
        return connection

    def error(self, cause: BaseException | None) -> StoreError:
        """Return the store error for a failure of PostgreSQL."""
        state = getattr(cause, "sqlstate", None) or ""
        if state.startswith(_BUSY):
            return StoreBusyError(location=self.location)
        kind = StoreFullError if state == _DISK_FULL else StoreUnreachableError
        return kind(location=self.location, reason=self._reason(cause))

    def _reason(self, cause: BaseException | None) -> str:
        first, _, _ = str(cause).strip().partition("\n")
        # With several hosts the first line only says that all failed.
        reason = " ".join(str(cause).split()) if first.endswith(":") else first
        for secret in self._secrets():
            reason = reason.replace(secret, "***")
        return reason[:_LONGEST_REASON].rstrip(".") or type(cause).__name__

    def _secrets(self) -> list[str]:
        try:
            given = conninfo_to_dict(self.database)
        except psycopg.Error:
            return []
        return [str(given[name]) for name in ("password", "sslpassword") if given.get(name)]


def make_postgres_engine(address: PostgresAddress) -> Engine:
    """Return an engine over this database; nothing is opened before the first transaction."""
    return create_engine(
        "postgresql+psycopg://",
        creator=address.connect,
        pool_size=_POOL_SIZE,
        max_overflow=_POOL_OVERFLOW,
        pool_timeout=_POOL_TIMEOUT_S,
        pool_pre_ping=True,  # a restart of PostgreSQL invalidates connections
        pool_use_lifo=True,
        hide_parameters=True,
        use_native_hstore=False,
    )


@contextmanager
def postgres_reading(engine: Engine, address: PostgresAddress) -> Generator[Connection]:
    """Open a transaction that reads a snapshot and does not block.

    Raises:
        StoreError: PostgreSQL refused; the class names the reason.
    """
    options = {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True}
    with _transaction(engine, address, options) as connection:
        yield connection


@contextmanager
def postgres_writing(
    engine: Engine, address: PostgresAddress, *, key: int
) -> Generator[Connection]:
    """Open a transaction that runs after all others of the same key and reads their changes.

    Raises:
        StoreError: PostgreSQL refused; the class names the reason.
    """
    options = {"isolation_level": "READ COMMITTED", "postgresql_readonly": False}
    with _transaction(engine, address, options) as connection:
        wait_for_turn(connection, key)
        yield connection


def wait_for_turn(connection: Connection, key: int) -> None:
    """Wait for other writing transactions of a key; later ones wait for the end of this one."""
    connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": key})


def check_encoding(connection: Connection, address: PostgresAddress) -> None:
    """Refuse a database that cannot store every text.

    Raises:
        StoreUnreachableError: the database's encoding is not UTF8.
    """
    encoding = connection.execute(text("SHOW server_encoding")).scalar_one()
    if encoding != "UTF8":
        raise StoreUnreachableError(
            location=address.location, reason=f"its encoding is {encoding}, not UTF8"
        )


def lock_key(kind: str, name: str) -> int:
    """Return the 64-bit key of an advisory lock, the same in all planners."""
    digest = hashlib.sha256(f"flyball {kind} {name}".encode()).digest()
    return int.from_bytes(digest[:8], "big", signed=True)


@contextmanager
def _transaction(
    engine: Engine, address: PostgresAddress, options: dict[str, Any]
) -> Generator[Connection]:
    try:
        with engine.connect().execution_options(**options) as connection, connection.begin():
            yield connection
    except PoolTimeoutError as error:
        raise StoreBusyError(location=address.location) from error
    except DBAPIError as error:
        if isinstance(error.orig, psycopg.IntegrityError | psycopg.DataError):
            reason = str(error.orig).partition("\n")[0]
            raise ValueError(f"refused by the schema: {reason}") from error
        raise address.error(error.orig) from error
    except psycopg.Error as error:
        raise address.error(error) from error
