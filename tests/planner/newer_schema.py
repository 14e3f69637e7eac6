"""A Flyball one schema newer than this one, with all that a migration may add."""

from __future__ import annotations

import sys
from unittest import mock

from flyball_server.jobs.store.databases import make_job_store
from flyball_server.jobs.store.sql import sql_tables
from flyball_server.jobs.store.sql.sql_tables import METADATA, MIGRATIONS, SCHEMA_VERSION


def next_schema() -> tuple[str, ...]:
    """Return the statements of its migration."""
    tables = [name for name in METADATA.tables if name != SCHEMA_VERSION.name]
    return (
        *(f"ALTER TABLE {name} ADD COLUMN next_note TEXT" for name in tables),
        *(
            f"ALTER TABLE {name} ADD COLUMN next_count INTEGER NOT NULL DEFAULT 3000000000"
            for name in tables
        ),
        "CREATE TABLE next_things (job_id VARCHAR(128) NOT NULL"
        " REFERENCES jobs (job_id) ON DELETE CASCADE, number INTEGER NOT NULL,"
        " PRIMARY KEY (job_id, number))",
        "CREATE INDEX next_by_note ON jobs (next_note)",
    )


def migrate_to_next(database: str) -> None:
    """Bring a database, which may be empty, to the next schema."""
    _open_and_close(database)
    with mock.patch.object(sql_tables, "MIGRATIONS", (*MIGRATIONS, next_schema())):
        _open_and_close(database)


def _open_and_close(database: str) -> None:
    store = make_job_store(database)
    store.open()
    store.close()


_PROGRAM = """\
from tests.planner.newer_schema import next_schema
from flyball_client.__main__ import main
from flyball_server.jobs.store.sql import sql_tables
sql_tables.MIGRATIONS += (next_schema(),)
raise SystemExit(main())
"""
NEWER_FLYBALL = (sys.executable, "-c", _PROGRAM)
"""Command that runs it, for `serve_process`."""
