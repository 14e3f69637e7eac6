"""Databases in PostgreSQL as they are opened: new ones, older ones, other people's."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import psycopg
import pytest
from psycopg.abc import Query
from sqlalchemy import create_engine, inspect
from tests.planner.first_schema import (
    DELETED_IN_SCHEMA_10,
    IN_FORCE,
    JOB,
    LEFT_OF_DELETED,
    REGISTERED,
    STEP_OF_SCHEMA_8,
    STEP_THEN,
    document_of_schema,
    job_stored_in,
    write_first_schema,
)
from tests.planner.patience import PATIENCE_S, wait_until
from tests.planner.samples import job_record, step_record

from flyball_server.jobs.errors import (
    StoreForeignError,
    StoreTooNewError,
    StoreUnreachableError,
)
from flyball_server.jobs.records import JobRecord
from flyball_server.jobs.store.postgres.postgres_store import PostgresJobStore
from flyball_server.jobs.store.sql.sql_migrations import MIGRATIONS, NEWEST_SCHEMA, in_dialect
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


@pytest.fixture
def first_schema_database(postgres_database: str) -> str:
    """A database of schema 1 with a planned job."""
    write_first_schema(postgres_database.replace("postgresql:", "postgresql+psycopg:"))
    return postgres_database


def stored_job(database: str) -> JobRecord | None:
    """The job as a store reads it that opens the database and closes it again."""
    return job_stored_in(PostgresJobStore(database))


def test_the_migrations_make_just_the_tables_that_the_queries_name(postgres_database: str) -> None:
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


def test_a_job_of_the_first_schema_is_kept_to_the_last_bit(first_schema_database: str) -> None:
    assert stored_job(first_schema_database) == JOB
    assert stored_job(first_schema_database) == JOB  # the second time there is nothing to change
    version = execute(first_schema_database, "SELECT version FROM schema_version")
    assert version == [(NEWEST_SCHEMA,)]


@pytest.mark.parametrize("schema", range(2, NEWEST_SCHEMA))
def test_a_job_of_any_older_schema_is_kept(first_schema_database: str, schema: int) -> None:
    """A database of the first schema, taken on to an older one by its own statements."""
    with closing(psycopg.connect(first_schema_database, autocommit=True)) as connection:
        for statements in MIGRATIONS[1:schema]:
            for statement in statements:
                connection.execute(in_dialect(statement, "postgresql").encode())
        connection.execute("UPDATE schema_version SET version = %s", (schema,))
        connection.execute(
            "UPDATE jobs SET registered = %s, in_force = %s",
            (document_of_schema(REGISTERED, schema), document_of_schema(IN_FORCE, schema)),
        )
    assert stored_job(first_schema_database) == JOB


def test_steps_of_an_older_schema_have_no_clock_and_newer_ones_beside_them_do(
    first_schema_database: str,
) -> None:
    with closing(psycopg.connect(first_schema_database, autocommit=True)) as connection:
        for statement in (each for statements in MIGRATIONS[1:8] for each in statements):
            connection.execute(in_dialect(statement, "postgresql").encode())
        for statement in STEP_OF_SCHEMA_8:
            connection.execute(statement.encode())
    store = PostgresJobStore(first_schema_database)
    store.open()
    try:
        # No float of 32 bits keeps this.
        newer = step_record(4, 1, sm_clock_mhz=1297.123456789)
        with store.writing("job") as writer:
            writer.save_steps((newer,))
        with store.reading() as reader:
            assert reader.list_steps("job", 0, 9) == (STEP_THEN, newer)
    finally:
        store.close()


def test_what_is_left_of_jobs_that_schema_10_deleted_goes_and_the_others_stay(
    first_schema_database: str,
) -> None:
    before = (
        in_dialect(each, "postgresql") for statements in MIGRATIONS[1:10] for each in statements
    )
    execute(first_schema_database, *(each.encode() for each in (*before, *DELETED_IN_SCHEMA_10)))
    assert len(execute(first_schema_database, LEFT_OF_DELETED.encode())) == 4
    store = PostgresJobStore(first_schema_database)
    store.open()
    try:
        with store.writing("deleted") as writer:
            assert writer.list_jobs() == (JOB,)
            writer.save_job(job_record("deleted"))  # the name is free
        wait_until(lambda: execute(first_schema_database, LEFT_OF_DELETED.encode()) == [])
    finally:
        store.close()
    assert stored_job(first_schema_database) == JOB


def test_an_update_that_fails_leaves_the_database_as_it_was(first_schema_database: str) -> None:
    # The last step but one makes this table too.
    execute(first_schema_database, "CREATE TABLE controls (mine INTEGER)")
    before = execute(first_schema_database, "SELECT registered, in_force FROM jobs")
    with pytest.raises(StoreUnreachableError, match='"controls" already exists'):
        PostgresJobStore(first_schema_database).open()
    assert execute(first_schema_database, "SELECT version FROM schema_version") == [(1,)]
    assert execute(first_schema_database, "SELECT registered, in_force FROM jobs") == before


def test_planners_that_open_an_old_database_at_once_update_it_once(
    first_schema_database: str,
) -> None:
    stores = [PostgresJobStore(first_schema_database) for _ in range(4)]
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(PostgresJobStore.open, stores, timeout=PATIENCE_S))
    for store in stores:
        with store.reading() as reader:
            assert reader.find_job("job") == JOB
        store.close()
    assert execute(first_schema_database, "SELECT version FROM schema_version") == [
        (NEWEST_SCHEMA,)
    ]


def test_planners_that_open_an_empty_database_at_once_make_it_once(postgres_database: str) -> None:
    stores = [PostgresJobStore(postgres_database) for _ in range(4)]
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(PostgresJobStore.open, stores, timeout=PATIENCE_S))
    for store in stores:
        store.close()
    assert execute(postgres_database, "SELECT version FROM schema_version") == [(NEWEST_SCHEMA,)]


def test_a_newer_schema_is_refused(postgres_database: str) -> None:
    opened(postgres_database)
    execute(postgres_database, "UPDATE schema_version SET version = 99")
    with pytest.raises(StoreTooNewError, match=f"has schema 99, newer than {NEWEST_SCHEMA}"):
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
