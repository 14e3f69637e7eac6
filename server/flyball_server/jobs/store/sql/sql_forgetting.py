"""Removal of deleted jobs' rows, possibly millions, in small transactions between others' writes.

A deleted job is marked so and has no name any more, so neither it nor its data can be found. Its
own row is removed last: the next planner removes what an ended one has left.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager

from sqlalchemy import Connection, Table, delete, select, tuple_

from flyball_server.jobs.errors import StoreError
from flyball_server.jobs.store.sql.sql_tables import (
    JOBS,
    MOMENTS,
    PLANS,
    PROFILES,
    PRUNED_STAGES,
    PRUNED_STEPS,
    RANKS,
    STEP_DETAILS,
    STEPS,
    TABLES_OF_JOBS,
)

_LOG = logging.getLogger(__name__)

# Others wait for a transaction that removes rows: it ends after the statement that passes this, s.
SLICE_S = 0.01
# Pause between two such transactions, for other writers, s.
PAUSE_S = 0.03
# Delay before a retry after a failure, s.
RETRY_S = 5.0
# Rows of one statement, a few milliseconds each; a plan or a profile may have megabytes.
_ROWS = {
    STEPS: 500,
    PRUNED_STEPS: 500,
    PRUNED_STAGES: 500,
    RANKS: 500,
    STEP_DETAILS: 50,
    MOMENTS: 50,
    PLANS: 2,
    PROFILES: 1,
}
_FEW_ROWS = 1

Transaction = Callable[[], AbstractContextManager[Connection]]


def has_forgotten_jobs(connection: Connection) -> bool:
    """Return whether rows are left of a job that was deleted."""
    return connection.execute(_FORGOTTEN).first() is not None


def remove_some(connection: Connection, slice_s: float = SLICE_S) -> bool:
    """Remove rows of deleted jobs for about `slice_s`; return whether there may be more.

    Args:
        connection: inside a writing transaction.
        slice_s: time after which no further statement starts, s.
    """
    end_s = time.monotonic() + slice_s
    while key := connection.execute(_FORGOTTEN).scalar():
        for table in TABLES_OF_JOBS:
            while _remove_rows(connection, table, key):
                if time.monotonic() > end_s:
                    return True
    return False


class Forgetting:
    """Background removal of deleted jobs, on a thread that runs while there is something left.

    Args:
        reading: opens a reading transaction.
        writing: opens a transaction that may remove rows; one at a time among the planners that
            share the database.
    """

    def __init__(self, *, reading: Transaction, writing: Transaction) -> None:
        self._reading = reading
        self._writing = writing
        self._guard = threading.Lock()
        self._stopping = threading.Event()
        self._is_wanted = False
        self._thread: threading.Thread | None = None
        # Failure of the newest try; used by the thread alone.
        self._failure: type[Exception] | None = None

    def start(self) -> None:
        """Start to remove what an earlier planner has left."""
        self._stopping.clear()
        try:
            with self._reading() as connection:
                is_wanted = has_forgotten_jobs(connection)
        except StoreError:
            is_wanted = True
        if is_wanted:
            self.wake()

    def wake(self) -> None:
        """Start the removal after a job was stored as deleted; does not wait for its end."""
        with self._guard:
            self._is_wanted = True
            if self._thread is not None or self._stopping.is_set():
                return
            thread = threading.Thread(target=self._run, name="flyball-forgetting", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:  # the process may have no more threads
                _LOG.warning(
                    "rows of deleted jobs are kept until the next job is deleted: %s", error
                )
            else:
                self._thread = thread

    def stop(self) -> None:
        """Stop the thread within a slice; the rest is removed after the next start."""
        self._stopping.set()
        with self._guard:
            thread = self._thread
        if thread is not None:
            thread.join()

    def _run(self) -> None:
        try:
            while self._goes_on():
                if self._try():
                    with self._guard:
                        self._is_wanted = True
                    self._stopping.wait(PAUSE_S if self._failure is None else RETRY_S)
        finally:
            with self._guard:
                if self._thread is threading.current_thread():
                    self._thread = None

    def _try(self) -> bool:
        """Remove some rows; return whether there may be more.

        Any failure is retried: if another transaction has added a row to the removed data, the
        schema refuses the removal, which succeeds the next time.
        """
        failure: type[Exception] | None = None
        is_left = True
        try:
            with self._writing() as connection:
                is_left = remove_some(connection)
        except Exception as error:
            failure = type(error)
            if failure is not self._failure:
                is_foreseen = isinstance(error, StoreError)
                _LOG.log(
                    logging.INFO if is_foreseen else logging.WARNING,
                    "rows of deleted jobs are left for later: %s",
                    error,
                    exc_info=None if is_foreseen else error,
                )
        else:
            if self._failure is not None:
                _LOG.info("rows of deleted jobs are removed again")
        self._failure = failure
        return is_left

    def _goes_on(self) -> bool:
        """Return whether there is something to do; otherwise clear the thread."""
        with self._guard:
            if self._stopping.is_set() or not self._is_wanted:
                self._thread = None
                return False
            self._is_wanted = False
            return True


# The index on names, which others lack.
_FORGOTTEN = select(JOBS.c.job_id).where(JOBS.c.name.is_(None), JOBS.c.is_deleted).limit(1)


def _remove_rows(connection: Connection, table: Table, key: str) -> int:
    """Remove some rows of a job; return their number, 0: no rows left."""
    keys = tuple(table.primary_key)
    some = select(*keys).where(table.c.job_id == key).limit(_ROWS.get(table, _FEW_ROWS))
    if table is STEPS:  # in the order of storage, so that few pages of the file are touched
        some = some.order_by(STEPS.c.step)
    return connection.execute(delete(table).where(tuple_(*keys).in_(some))).rowcount
