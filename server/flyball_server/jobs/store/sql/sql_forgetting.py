"""Removal of deleted jobs' rows, possibly millions, in small transactions between others' writes.

A deleted job is marked so and has no name any more, so neither it nor its data can be found. Its
own row is removed last: the next planner removes what an ended one has left.
"""

from __future__ import annotations

import time

from sqlalchemy import Connection, Table, delete, select, tuple_

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

# Others wait for a transaction that removes rows: it ends after the statement that passes this, s.
SLICE_S = 0.01
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


# The index on names, which others lack.
_FORGOTTEN = select(JOBS.c.job_id).where(JOBS.c.name.is_(None), JOBS.c.is_deleted).limit(1)


def _remove_rows(connection: Connection, table: Table, key: str) -> int:
    """Remove some rows of a job; return their number, 0: no rows left."""
    keys = tuple(table.primary_key)
    some = select(*keys).where(table.c.job_id == key).limit(_ROWS.get(table, _FEW_ROWS))
    if table is STEPS:  # in the order of storage, so that few pages of the file are touched
        some = some.order_by(STEPS.c.step)
    return connection.execute(delete(table).where(tuple_(*keys).in_(some))).rowcount
