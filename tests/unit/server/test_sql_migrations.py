"""Databases that an earlier Flyball has written: they open, and nothing in them is lost."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from dataclasses import asdict
from pathlib import Path

import pytest
from tests.planner.first_schema import (
    DELETED_IN_SCHEMA_10,
    IN_FORCE,
    JOB,
    LEFT_OF_DELETED,
    REGISTERED,
    STEP_OF_SCHEMA_8,
    STEP_THEN,
    document_of_schema,
    first_schema_document,
    job_stored_in,
    write_first_schema,
)
from tests.planner.patience import wait_until
from tests.planner.samples import job_record, step_record

from flyball_server.jobs.records import JobRecord
from flyball_server.jobs.store.sql.sql_migrations import MIGRATIONS, NEWEST_SCHEMA
from flyball_server.jobs.store.sqlite.sqlite_store import SqliteJobStore
from flyball_server.planning.effort import Effort


@pytest.fixture
def first_schema_file(tmp_path: Path) -> Path:
    """A database of schema 1 with a planned job."""
    file = tmp_path / "planner.sqlite"
    write_first_schema(f"sqlite:///{file}")
    return file


def stored_job(file: Path) -> JobRecord | None:
    """The job as a store reads it that opens the file and closes it again."""
    return job_stored_in(SqliteJobStore(file))


def test_a_job_of_the_first_schema_is_of_normal_effort_and_else_as_it_was(
    first_schema_file: Path,
) -> None:
    assert JOB.registered.effort == Effort.NORMAL
    assert stored_job(first_schema_file) == JOB
    assert stored_job(first_schema_file) == JOB  # the second time there is nothing to change


def test_an_updated_database_says_so_to_an_older_flyball(first_schema_file: Path) -> None:
    stored_job(first_schema_file)
    with closing(sqlite3.connect(first_schema_file)) as connection:
        assert connection.execute("SELECT version FROM schema_version").fetchall() == [
            (NEWEST_SCHEMA,)
        ]
        documents = connection.execute("SELECT registered, in_force FROM jobs").fetchone()
    assert NEWEST_SCHEMA >= 2
    for document, spec in zip(documents, (REGISTERED, IN_FORCE), strict=True):
        assert json.loads(document) == json.loads(json.dumps(asdict(spec)))


def test_an_update_that_fails_leaves_the_database_as_it_was(first_schema_file: Path) -> None:
    with closing(sqlite3.connect(first_schema_file)) as connection:
        connection.execute(
            "CREATE TRIGGER refuse BEFORE UPDATE ON jobs BEGIN SELECT RAISE(ABORT, 'no'); END"
        )
        connection.commit()
        with pytest.raises(ValueError, match="refused by the schema: no"):
            SqliteJobStore(first_schema_file).open()
        assert connection.execute("SELECT version FROM schema_version").fetchall() == [(1,)]
        documents = connection.execute("SELECT registered, in_force FROM jobs").fetchone()
    assert documents == (first_schema_document(REGISTERED), first_schema_document(IN_FORCE))


@pytest.mark.parametrize("schema", range(2, NEWEST_SCHEMA))
def test_a_job_of_any_older_schema_has_no_order_and_else_is_as_it_was(
    first_schema_file: Path, schema: int
) -> None:
    """A file of the first schema, taken on to an older one by its own statements."""
    with closing(sqlite3.connect(first_schema_file)) as connection:
        for statements in MIGRATIONS[1:schema]:
            for statement in statements:
                connection.execute(statement)
        connection.execute("UPDATE schema_version SET version = ?", (schema,))
        connection.execute(
            "UPDATE jobs SET registered = ?, in_force = ?",
            (document_of_schema(REGISTERED, schema), document_of_schema(IN_FORCE, schema)),
        )
        connection.commit()
    job = stored_job(first_schema_file)
    assert job == JOB
    for spec in (job.registered, job.in_force):
        assert (spec.checkpoint, spec.order, spec.virtual_stages) == (None, None, None)


def test_steps_of_an_older_schema_have_no_clock_and_newer_ones_beside_them_do(
    first_schema_file: Path,
) -> None:
    with closing(sqlite3.connect(first_schema_file)) as connection:
        for statements in MIGRATIONS[1:8]:
            for statement in statements:
                connection.execute(statement)
        for statement in STEP_OF_SCHEMA_8:
            connection.execute(statement)
        connection.commit()
    store = SqliteJobStore(first_schema_file)
    store.open()
    try:
        newer = step_record(4, 1, sm_clock_mhz=1297.5)
        with store.writing("job") as writer:
            writer.save_steps((newer,))
        with store.reading() as reader:
            assert reader.list_steps("job", 0, 9) == (STEP_THEN, newer)
            clocks_mhz = [
                each.sm_clock_mhz
                for each in reader.list_stage_totals("job", after_step=-1, num_steps=9)
            ]
        assert clocks_mhz == [None, 1297.5]
    finally:
        store.close()


def test_what_is_left_of_jobs_that_schema_10_deleted_goes_and_the_others_stay(
    first_schema_file: Path,
) -> None:
    def of_deleted() -> list[tuple[object, ...]]:
        with closing(sqlite3.connect(first_schema_file)) as connection:
            return connection.execute(LEFT_OF_DELETED).fetchall()

    with closing(sqlite3.connect(first_schema_file)) as connection:
        for statement in (each for statements in MIGRATIONS[1:10] for each in statements):
            connection.execute(statement)
        for statement in DELETED_IN_SCHEMA_10:
            connection.execute(statement)
        connection.commit()
    assert len(of_deleted()) == 4
    store = SqliteJobStore(first_schema_file)
    store.open()
    try:
        with store.writing("deleted") as writer:
            assert writer.list_jobs() == (JOB,)
            writer.save_job(job_record("deleted"))  # the name is free
        wait_until(lambda: of_deleted() == [])
    finally:
        store.close()
    assert stored_job(first_schema_file) == JOB
