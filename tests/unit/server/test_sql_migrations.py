"""Schema of a SQLite database: made at once, migrated whole or not at all."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from tests.planner.samples import job_record

from flyball_server.jobs.store.sql import sql_tables as sql_migrations
from flyball_server.jobs.store.sqlite.sqlite_store import SqliteJobStore

SECOND = ("ALTER TABLE jobs ADD COLUMN note TEXT", "UPDATE jobs SET note = 'kept'")
THIRD = ("ALTER TABLE ranks ADD COLUMN note TEXT",)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A database of schema 1 with a job."""
    file = tmp_path / "planner.sqlite"
    store = SqliteJobStore(file)
    store.open()
    with store.writing("job") as writer:
        writer.save_job(job_record("job"))
    store.close()
    return file


def rows(file: Path, query: str) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(file)) as connection:
        return connection.execute(query).fetchall()


def open_and_close(file: Path) -> None:
    store = SqliteJobStore(file)
    store.open()
    with store.reading() as reader:
        assert reader.find_job("job") == job_record("job")
    store.close()


def test_an_older_database_takes_every_step_to_the_newest_schema_once(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sql_migrations, "MIGRATIONS", (SECOND,))
    open_and_close(file)
    monkeypatch.setattr(sql_migrations, "MIGRATIONS", (SECOND, THIRD))
    open_and_close(file)
    open_and_close(file)
    assert rows(file, "SELECT version FROM schema_version") == [(3,)]
    assert rows(file, "SELECT note FROM jobs") == [("kept",)]
    assert rows(file, "SELECT note FROM ranks") == []


def test_a_migration_that_fails_leaves_the_database_as_it_was(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = ("INSERT INTO jobs (job_id) VALUES ('x')",)
    monkeypatch.setattr(sql_migrations, "MIGRATIONS", (SECOND, wrong))
    with pytest.raises(ValueError, match="refused by the schema"):
        SqliteJobStore(file).open()
    assert rows(file, "SELECT version FROM schema_version") == [(1,)]
    assert "note" not in {row[1] for row in rows(file, "PRAGMA table_info(jobs)")}
