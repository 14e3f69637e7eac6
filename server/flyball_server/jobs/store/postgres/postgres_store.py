"""Job store on PostgreSQL, which several planners can share."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import psycopg
from sqlalchemy import ARRAY, Engine, Table, bindparam, func, select
from sqlalchemy.dialects.postgresql import insert

from flyball_server.jobs.errors import StoreBusyError, StoreClosedError
from flyball_server.jobs.store.contract import StoreSpace
from flyball_server.jobs.store.postgres.postgres_engine import (
    BUSY_TIMEOUT_S,
    PostgresAddress,
    check_encoding,
    lock_key,
    make_postgres_engine,
    postgres_reading,
    postgres_writing,
    wait_for_turn,
)
from flyball_server.jobs.store.postgres.postgres_signals import PostgresSignals
from flyball_server.jobs.store.sql.job_reader import JobReader
from flyball_server.jobs.store.sql.job_writer import AnyInsert, JobWriter, replacing
from flyball_server.jobs.store.sql.sql_forgetting import has_forgotten_jobs, remove_some
from flyball_server.jobs.store.sql.sql_tables import migrate, rewrite_version
from flyball_server.kit.named_locks import NamedLocks

# Pause before a lock that another planner holds is requested again, s.
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.02, 0.25


class PostgresLocks:
    """Locks of the JobStore contract.

    PostgreSQL releases all locks of a planner when its connection ends: with the process, or when
    PostgreSQL restarts. The holder is not notified; its later changes are still checked against the
    job's revision.
    """

    def __init__(self, address: PostgresAddress) -> None:
        self._address = address
        self._within_process = NamedLocks()
        self._guard = threading.Lock()
        self._connection: psycopg.Connection[Any] | None = None
        self._is_closed = threading.Event()
        self._is_closed.set()

    def open(self) -> None:
        """Allow locks to be taken (again)."""
        self._is_closed.clear()

    def close(self) -> None:
        """Release all locks and refuse new ones; waiting callers get StoreClosedError."""
        self._is_closed.set()
        with self._guard:
            self._drop()

    @contextmanager
    def lock(self, name: str, *, waits: bool) -> Generator[bool]:
        """Hold the lock of this name until the block ends; yield true if it is held.

        Raises:
            StoreError: PostgreSQL is unreachable, or the store is closed.
        """
        # One thread per process asks PostgreSQL: a session takes the same lock any number of times.
        with self._within_process.held(name, timeout_s=-1 if waits else 0) as is_first:
            key = lock_key("turn", name)
            holder = self._take(key, waits=waits) if is_first else None
            try:
                yield holder is not None
            finally:
                if holder is not None:
                    self._restore(key, holder)

    def _take(self, key: int, *, waits: bool) -> psycopg.Connection[Any] | None:
        pause_s = _FIRST_PAUSE_S
        while True:
            holder = self._try(key)
            if holder is not None or not waits:
                return holder
            if self._is_closed.wait(pause_s):
                raise StoreClosedError
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _try(self, key: int) -> psycopg.Connection[Any] | None:
        """Return the connection that now has the lock; None: another planner has it."""
        with self._guard:
            had_one = self._connection is not None
            try:
                return self._ask(key)
            except psycopg.Error as error:
                self._drop()
                if not had_one:
                    raise self._address.error(error) from error
            # PostgreSQL may have restarted since the last use of the connection.
            try:
                return self._ask(key)
            except psycopg.Error as error:
                self._drop()
                raise self._address.error(error) from error

    def _ask(self, key: int) -> psycopg.Connection[Any] | None:
        if self._is_closed.is_set():
            raise StoreClosedError
        if self._connection is None:
            self._connection = self._address.connect(autocommit=True)
        row = self._connection.execute("SELECT pg_try_advisory_lock(%s)", (key,)).fetchone()
        return self._connection if row is not None and row[0] else None

    def _restore(self, key: int, holder: psycopg.Connection[Any]) -> None:
        with self._guard:
            if self._connection is not holder:
                return  # it ended, and the lock with it
            try:
                holder.execute("SELECT pg_advisory_unlock(%s)", (key,))
            except psycopg.Error:
                self._drop()

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


class PostgresWriter(JobWriter):
    """Writer that stores many rows at a time, as one array for each column."""

    def delete_job(self, job_id: str) -> None:
        """Delete a job, after the transactions that have it as their subject."""
        wait_for_turn(self._connection, lock_key("write", job_id))
        super().delete_job(job_id)

    def _upsert(self, table: Table, rows: list[dict[str, Any]]) -> None:
        if len(rows) == 1:
            super()._upsert(table, rows)
            return
        # PostgreSQL replaces no row twice in a statement.
        keys = [column.name for column in table.primary_key]
        last = {tuple(row[key] for key in keys): row for row in rows}.values()
        names = [column.name for column in table.columns]
        arrays = {f"all_{name}": [row[name] for row in last] for name in names}
        self._connection.execute(_inserting_all(table), arrays)


@functools.cache
def _inserting_all(table: Table) -> AnyInsert:
    """Return an INSERT of any number of rows, each column given as one array `all_NAME`."""
    columns = [
        func.unnest(bindparam(f"all_{column.name}", type_=ARRAY(column.type)))
        for column in table.columns
    ]
    names = [column.name for column in table.columns]
    return replacing(table, insert(table).from_select(names, select(*columns)))


class PostgresJobStore:
    """Job store in a PostgreSQL database.

    Writing transactions of one subject are serialised by an advisory lock, so that those of other
    subjects run at once. While PostgreSQL is unreachable, calls raise StoreUnreachableError;
    afterwards they work again.

    Args:
        database: `postgresql://USER@HOST/DATABASE`, with any options of libpq.
    """

    def __init__(self, database: str) -> None:
        self._address = PostgresAddress(database=database)
        self._engine: Engine | None = None
        self._subjects = NamedLocks()
        self._locks = PostgresLocks(self._address)
        self._signals = PostgresSignals(self._address)

    def __repr__(self) -> str:
        return f"PostgresJobStore({self._address.location!r})"

    def open(self) -> None:
        """Create the tables or migrate them to the newest schema, one planner after the other.

        Raises:
            StoreError: the database cannot be used; the class names the reason.
        """
        if self._engine is not None:
            return
        engine = make_postgres_engine(self._address)
        try:
            key = lock_key("schema", "")
            with postgres_writing(engine, self._address, key=key) as connection:
                check_encoding(connection, self._address)
                migrate(connection, location=self._address.location)
        except BaseException:
            engine.dispose()
            raise
        self._engine = engine
        self._locks.open()
        self._signals.start()

    def close(self) -> None:
        """Close all connections."""
        engine, self._engine = self._engine, None
        if engine is not None:
            self._signals.stop()
            self._locks.close()
            engine.dispose()

    @contextmanager
    def reading(self) -> Generator[JobReader]:
        """Open a reading transaction."""
        with postgres_reading(self._opened(), self._address) as connection:
            yield JobReader(connection)

    @contextmanager
    def writing(self, subject: str) -> Generator[JobWriter]:
        """Open a transaction that may change data of a job, by its ID, or TOKENS."""
        engine = self._opened()
        # One thread per process waits in PostgreSQL: the others need no connection for that.
        with self._subjects.held(subject, timeout_s=BUSY_TIMEOUT_S) as is_mine:
            if not is_mine:
                raise StoreBusyError(location=self._address.location)
            key = lock_key("write", subject)
            with postgres_writing(engine, self._address, key=key) as connection:
                yield PostgresWriter(connection, insert)

    def forget_some(self) -> bool:
        """Remove some rows of deleted jobs; return whether more are left."""
        with postgres_reading(self._opened(), self._address) as connection:
            if not has_forgotten_jobs(connection):
                return False
        try:
            key = lock_key("forget", "")
            with postgres_writing(self._opened(), self._address, key=key) as connection:
                return remove_some(connection)
        except ValueError:  # another transaction has added rows meanwhile
            return True

    def check_writing(self) -> None:
        """Store a small change that changes no data."""
        key = lock_key("check", "")
        with postgres_writing(self._opened(), self._address, key=key) as connection:
            rewrite_version(connection)

    def space(self) -> StoreSpace:
        """Return the size of the database; its disk is PostgreSQL's to watch."""
        with postgres_reading(self._opened(), self._address) as connection:
            size = select(func.pg_database_size(func.current_database()))
            return StoreSpace(size_bytes=connection.scalars(size).one(), free_bytes=None)

    def lock(self, name: str, *, waits: bool = True) -> AbstractContextManager[bool]:
        """Hold the lock of this name until the block ends; yield true if it is held."""
        return self._locks.lock(name, waits=waits)

    def signal(self, job_id: str) -> None:
        """Notify all listeners that data of this job has been stored."""
        self._signals.signal(job_id)

    def listen(self, heard: Callable[[str | None], None]) -> None:
        """Register the callback, called from any thread with each signalled job; must not block."""
        self._signals.listen(heard)

    def _opened(self) -> Engine:
        if self._engine is None:
            raise StoreClosedError
        return self._engine
