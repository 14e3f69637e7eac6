"""Databases as the stores open them: new, older, newer, and other programs'."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import Engine, inspect, text
from tests.planner.patience import PATIENCE_S
from tests.planner.samples import job_record

from flyball_server.jobs.errors import StoreForeignError, StoreTooNewError
from flyball_server.jobs.records import JobRecord
from flyball_server.jobs.store.databases import make_job_store
from flyball_server.jobs.store.sql import sql_tables
from flyball_server.jobs.store.sql.sql_tables import METADATA, MIGRATIONS, newest_schema

SECOND = ("ALTER TABLE jobs ADD COLUMN count INTEGER", "UPDATE jobs SET count = 3000000000")
THIRD = ("ALTER TABLE ranks ADD COLUMN note TEXT",)
# Refused by SQLite's schema as by PostgreSQL's: a job has more than a name.
WRONG = ("INSERT INTO jobs (job_id) VALUES ('x')",)
Rows = Callable[[str], list[tuple[object, ...]]]


@pytest.fixture
def rows(engine: Engine) -> Rows:
    """The rows of a statement, which is committed."""

    def execute(statement: str) -> list[tuple[object, ...]]:
        with engine.begin() as connection:
            result = connection.execute(text(statement))
            return [tuple(row) for row in result] if result.returns_rows else []

    return execute


@pytest.fixture
def older(database_url: str) -> str:
    """Address of a database of this schema, which the tests' migrations follow, with a job."""
    store = make_job_store(database_url)
    store.open()
    with store.writing("job") as writer:
        writer.save_job(job_record())
    store.close()
    return database_url


def open_at_once(database_url: str, *jobs: JobRecord) -> None:
    """As four planners do, which find these jobs."""
    stores = [make_job_store(database_url) for _ in range(4)]
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda store: store.open(), stores, timeout=PATIENCE_S))
    for store in stores:
        with store.reading() as reader:
            assert reader.list_jobs() == jobs
        store.close()


def test_planners_that_open_an_empty_database_at_once_make_just_the_tables_that_are_queried(
    database_url: str, engine: Engine, rows: Rows
) -> None:
    open_at_once(database_url)
    assert rows("SELECT version FROM schema_version") == [(newest_schema(),)]
    made, dialect = inspect(engine), engine.dialect
    assert sorted(made.get_table_names()) == sorted(METADATA.tables)
    for table in METADATA.tables.values():
        found = {column["name"]: column for column in made.get_columns(table.name)}
        assert list(found) == [column.name for column in table.columns]
        for column in table.columns:
            wanted, told = (
                each.compile(dialect).replace("FLOAT", "DOUBLE PRECISION")
                for each in (column.type, found[column.name]["type"])
            )
            assert told == wanted, (table.name, column.name)
            assert found[column.name]["nullable"] == column.nullable, (table.name, column.name)
        keys = made.get_pk_constraint(table.name)["constrained_columns"]
        assert keys == [column.name for column in table.primary_key]
        foreign = {key["referred_table"] for key in made.get_foreign_keys(table.name)}
        assert foreign == {key.column.table.name for key in table.foreign_keys}
        indexes = {index["name"] for index in made.get_indexes(table.name)}
        assert indexes == {index.name for index in table.indexes}


def test_planners_that_open_an_older_database_at_once_migrate_it_once(
    older: str, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema = newest_schema()
    for migrations in ((SECOND,), (SECOND, THIRD), (SECOND, THIRD)):
        monkeypatch.setattr(sql_tables, "MIGRATIONS", (*MIGRATIONS, *migrations))
        open_at_once(older, job_record())
    assert rows("SELECT version FROM schema_version") == [(schema + 2,)]
    # SQLite's INTEGER has 64 bits, and so has the column in PostgreSQL.
    assert rows("SELECT count FROM jobs") == [(3_000_000_000,)]
    assert rows("SELECT note FROM ranks") == []


def test_a_failed_migration_changes_nothing(
    older: str, engine: Engine, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema = newest_schema()
    monkeypatch.setattr(sql_tables, "MIGRATIONS", (*MIGRATIONS, SECOND, WRONG))
    with pytest.raises(ValueError, match="refused by the schema"):
        make_job_store(older).open()
    assert rows("SELECT version FROM schema_version") == [(schema,)]
    assert "count" not in {column["name"] for column in inspect(engine).get_columns("jobs")}


def test_a_newer_schema_is_refused(older: str, rows: Rows) -> None:
    rows("UPDATE schema_version SET version = 99")
    with pytest.raises(StoreTooNewError, match=f"has schema 99, newer than {newest_schema() + 1};"):
        make_job_store(older).open()


@pytest.mark.parametrize(
    "theirs",
    [
        "CREATE TABLE recipes (name TEXT)",
        "CREATE TABLE schema_version AS SELECT 1 AS version",
        "CREATE TABLE schema_version (installed_rank INTEGER, version TEXT)",
    ],
)
def test_another_programs_database_is_refused_and_left_alone(
    database_url: str, engine: Engine, rows: Rows, theirs: str
) -> None:
    rows(theirs)
    before = inspect(engine).get_table_names()
    with pytest.raises(StoreForeignError, match=r"/(test_\d+|planner\.sqlite) is not Flyball's"):
        make_job_store(database_url).open()
    assert inspect(engine).get_table_names() == before
