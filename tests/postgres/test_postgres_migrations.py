"""Databases in PostgreSQL as they are opened: new ones, older ones, other people's."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import psycopg
import pytest
from psycopg.abc import Query
from sqlalchemy import create_engine, inspect
from tests.planner.patience import PATIENCE_S
from tests.planner.samples import job_record

from flyball_server.jobs.errors import (
    StoreForeignError,
    StoreTooNewError,
    StoreUnreachableError,
)
from flyball_server.jobs.store.postgres.postgres_store import PostgresJobStore
from flyball_server.jobs.store.sql import sql_tables as sql_migrations
from flyball_server.jobs.store.sql.sql_tables import METADATA


def execute(database: str, *statements: Query) -> list[tuple[object, ...]]:
    """The rows of the last statement, all of them committed."""
    with closing(psycopg.connect(database, autocommit=True)) as connection:
        for statement in statements:
            cursor = connection.execute(statement)
        return cursor.fetchall() if cursor.description else []


def opened(database: str) -> None:
    """Open it and close it again."""
    store = PostgresJobStore(database)
    store.open()
    store.close()


def test_a_new_database_has_just_the_tables_that_the_queries_name(postgres_database: str) -> None:
    opened(postgres_database)
    engine = create_engine(postgres_database.replace("postgresql:", "postgresql+psycopg:"))
    made = inspect(engine)
    dialect = engine.dialect
    assert sorted(made.get_table_names()) == sorted(METADATA.tables)
    for table in METADATA.tables.values():
        found = {column["name"]: column for column in made.get_columns(table.name)}
        assert list(found) == [column.name for column in table.columns]
        for column in table.columns:
            wanted = column.type.compile(dialect).replace("FLOAT", "DOUBLE PRECISION")
            told = found[column.name]["type"].compile(dialect)
            assert told.replace("FLOAT", "DOUBLE PRECISION") == wanted, (table.name, column.name)
            assert found[column.name]["nullable"] == column.nullable, (table.name, column.name)
        keys = made.get_pk_constraint(table.name)["constrained_columns"]
        assert keys == [column.name for column in table.primary_key]
        foreign = {key["referred_table"] for key in made.get_foreign_keys(table.name)}
        assert foreign == {key.column.table.name for key in table.foreign_keys}
        indexes = {index["name"] for index in made.get_indexes(table.name)}
        assert indexes == {index.name for index in table.indexes}
    engine.dispose()


SECOND = ("ALTER TABLE jobs ADD COLUMN count INTEGER", "UPDATE jobs SET count = 3000000000")


def test_planners_that_open_an_older_database_at_once_migrate_it_once(
    postgres_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = PostgresJobStore(postgres_database)
    store.open()
    with store.writing("job") as writer:
        writer.save_job(job_record("job"))
    store.close()
    monkeypatch.setattr(sql_migrations, "MIGRATIONS", (SECOND,))
    stores = [PostgresJobStore(postgres_database) for _ in range(4)]
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(PostgresJobStore.open, stores, timeout=PATIENCE_S))
    for store in stores:
        with store.reading() as reader:
            assert reader.find_job("job") == job_record("job")
        store.close()
    assert execute(postgres_database, "SELECT version FROM schema_version") == [(2,)]
    # SQLite's INTEGER has 64 bits, and so has the column here.
    assert execute(postgres_database, "SELECT count FROM jobs") == [(3_000_000_000,)]


def test_a_migration_that_fails_leaves_the_database_as_it_was(
    postgres_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened(postgres_database)
    wrong = ("CREATE TABLE controls (mine INTEGER)",)
    monkeypatch.setattr(sql_migrations, "MIGRATIONS", (SECOND, wrong))
    with pytest.raises(StoreUnreachableError, match='"controls" already exists'):
        PostgresJobStore(postgres_database).open()
    assert execute(postgres_database, "SELECT version FROM schema_version") == [(1,)]
    columns = b"SELECT column_name FROM information_schema.columns WHERE table_name = 'jobs'"
    assert ("count",) not in execute(postgres_database, columns)


def test_planners_that_open_an_empty_database_at_once_make_it_once(postgres_database: str) -> None:
    stores = [PostgresJobStore(postgres_database) for _ in range(4)]
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(PostgresJobStore.open, stores, timeout=PATIENCE_S))
    for store in stores:
        store.close()
    assert execute(postgres_database, "SELECT version FROM schema_version") == [(1,)]


def test_a_newer_schema_is_refused(postgres_database: str) -> None:
    opened(postgres_database)
    execute(postgres_database, "UPDATE schema_version SET version = 99")
    with pytest.raises(StoreTooNewError, match="has schema 99, newer than 2"):
        PostgresJobStore(postgres_database).open()


@pytest.mark.parametrize(
    "theirs",
    [
        "CREATE TABLE recipes (name TEXT)",
        "CREATE TABLE schema_version (version INTEGER NOT NULL)",
        "CREATE TABLE schema_version (installed_rank INTEGER, version TEXT)",
    ],
)
def test_another_programs_database_is_refused_and_left_alone(
    postgres_database: str, theirs: str
) -> None:
    execute(postgres_database, theirs.encode())
    query = b"SELECT count(*) FROM pg_tables WHERE schemaname = 'public'"
    assert execute(postgres_database, query) == [(1,)]
    with pytest.raises(StoreForeignError, match=r"/test_\d+ is not Flyball's"):
        PostgresJobStore(postgres_database).open()
    assert execute(postgres_database, query) == [(1,)]


def test_tables_of_others_in_another_schema_are_none_of_its_business(
    postgres_database: str,
) -> None:
    execute(postgres_database, "CREATE TABLE recipes (name TEXT)", "CREATE SCHEMA flyball")
    store = PostgresJobStore(f"{postgres_database}?options=-csearch_path%3Dflyball")
    store.open()
    with store.reading() as reader:
        assert reader.list_jobs() == ()
    store.close()
    query = b"SELECT count(*) FROM pg_tables WHERE schemaname = 'flyball'"
    assert execute(postgres_database, query) == [(len(METADATA.tables),)]


def test_a_database_that_does_not_hold_every_text_is_refused(postgres_database: str) -> None:
    execute(
        postgres_database,
        "CREATE DATABASE latin TEMPLATE template0 ENCODING 'LATIN1' LOCALE 'C'",
    )
    latin = f"{postgres_database.rpartition('/')[0]}/latin"
    try:
        with pytest.raises(StoreUnreachableError, match="its encoding is LATIN1, not UTF8"):
            PostgresJobStore(latin).open()
    finally:
        execute(postgres_database, "DROP DATABASE latin WITH (FORCE)")
