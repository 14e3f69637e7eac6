"""Turns between planners on one PostgreSQL: advisory locks of one connection for each planner."""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import psycopg

from flyball_server.jobs.errors import StoreClosedError
from flyball_server.jobs.store.memory.local_coordination import NamedLocks
from flyball_server.jobs.store.postgres.postgres_engine import PostgresAddress, lock_key

# How soon a turn that another planner has is asked for again, s.
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.02, 0.25


class PostgresLocks:
    """The turns of the JobStore contract.

    PostgreSQL gives all turns of a planner back when its connection ends: with the process, or
    when PostgreSQL is started again. Whoever had one is not told; what it then stores is checked
    against the job's revision as ever.

    Args:
        address: of the database.
    """

    def __init__(self, address: PostgresAddress) -> None:
        self._address = address
        self._within_process = NamedLocks()
        self._guard = threading.Lock()
        self._connection: psycopg.Connection[Any] | None = None
        self._is_closed = threading.Event()
        self._is_closed.set()

    def open(self) -> None:
        """Let turns be had (again)."""
        self._is_closed.clear()

    def close(self) -> None:
        """Give all turns back and let none be had; whoever waits gets StoreClosedError."""
        self._is_closed.set()
        with self._guard:
            self._drop()

    @contextmanager
    def lock(self, name: str, *, waits: bool) -> Generator[bool]:
        """Whether the turn of this name is the caller's until the block ends.

        Raises:
            StoreError: PostgreSQL is away, or the store closed.
        """
        # Only one of a process asks PostgreSQL: a session has a lock as often as it asks for it.
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
        """The connection that now has the lock; None: another planner has it."""
        with self._guard:
            had_one = self._connection is not None
            try:
                return self._ask(key)
            except psycopg.Error as error:
                self._drop()
                if not had_one:
                    raise self._address.error(error) from error
            # PostgreSQL may have been started again since the connection was used last.
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
                return  # it ended, and the turn with it
            try:
                holder.execute("SELECT pg_advisory_unlock(%s)", (key,))
            except psycopg.Error:
                self._drop()

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
