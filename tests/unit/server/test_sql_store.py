"""What only a store on a file can do wrong: other files, other schemas, other processes."""

from __future__ import annotations

import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import inspect
from tests.planner.patience import PATIENCE_S
from tests.planner.samples import job_record

from flyball_server.jobs.errors import (
    StoreBusyError,
    StoreDamagedError,
    StoreForeignError,
    StoreTooNewError,
    StoreUnavailableError,
)
from flyball_server.jobs.store.sql.sql_tables import METADATA
from flyball_server.jobs.store.sqlite import sqlite_store
from flyball_server.jobs.store.sqlite.sqlite_store import SqliteJobStore, make_sqlite_engine


def execute(file: Path, *statements: str) -> None:
    with closing(sqlite3.connect(file)) as connection:
        for statement in statements:
            connection.execute(statement)
        connection.commit()


def test_the_migrations_make_just_the_tables_that_the_queries_name(tmp_path: Path) -> None:
    file = tmp_path / "planner.sqlite"
    store = SqliteJobStore(file)
    store.open()
    store.close()
    engine = make_sqlite_engine(file)
    made = inspect(engine)
    assert sorted(made.get_table_names()) == sorted(METADATA.tables)
    for table in METADATA.tables.values():
        found = {column["name"]: column for column in made.get_columns(table.name)}
        assert list(found) == [column.name for column in table.columns]
        for column in table.columns:
            assert found[column.name]["nullable"] == column.nullable, (table.name, column.name)
            assert str(found[column.name]["type"]) == str(column.type), (table.name, column.name)
        keys = made.get_pk_constraint(table.name)["constrained_columns"]
        assert keys == [column.name for column in table.primary_key]
        foreign = {key["referred_table"] for key in made.get_foreign_keys(table.name)}
        assert foreign == {key.column.table.name for key in table.foreign_keys}
        indexes = {index["name"] for index in made.get_indexes(table.name)}
        assert indexes == {index.name for index in table.indexes}
    engine.dispose()


@pytest.mark.parametrize("content", [b"This is a letter, and no database at all." * 50, b"x"])
def test_a_file_that_is_no_database_is_refused_and_left_alone(
    tmp_path: Path, content: bytes
) -> None:
    file = tmp_path / "letter.txt"
    file.write_bytes(content)
    with pytest.raises(StoreDamagedError, match=r"letter\.txt is damaged or no SQLite file"):
        SqliteJobStore(file).open()
    assert file.read_bytes() == content


def test_a_damaged_database_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "planner.sqlite"
    store = SqliteJobStore(file)
    store.open()
    store.close()
    content = file.read_bytes()
    file.write_bytes(content[:100] + b"\xff" * (len(content) - 100))
    with pytest.raises(StoreDamagedError):
        SqliteJobStore(file).open()


def test_another_programs_database_is_refused_and_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "recipes.sqlite"
    execute(file, "CREATE TABLE recipes (name TEXT)")
    before = file.read_bytes()
    with pytest.raises(StoreForeignError):
        SqliteJobStore(file).open()
    assert file.read_bytes() == before


def test_a_newer_schema_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "planner.sqlite"
    store = SqliteJobStore(file)
    store.open()
    store.close()
    execute(file, "UPDATE schema_version SET version = 99")
    with pytest.raises(StoreTooNewError, match="has schema 99, newer than 1"):
        SqliteJobStore(file).open()


def test_a_folder_in_place_of_the_file_is_unavailable(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailableError, match="cannot be used"):
        SqliteJobStore(tmp_path).open()


def test_a_file_in_place_of_the_folder_is_unavailable(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    with pytest.raises(StoreUnavailableError, match="cannot be used"):
        SqliteJobStore(tmp_path / "taken" / "planner.sqlite").open()


def test_a_database_that_another_process_writes_is_busy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flyball_server.jobs.store.sqlite.sqlite_store.BUSY_TIMEOUT_S", 0.05)
    file = tmp_path / "planner.sqlite"
    store = SqliteJobStore(file)
    store.open()
    with closing(sqlite3.connect(file, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreBusyError, match="try again"), store.writing("job"):
            pass
        with store.reading() as reader:
            assert reader.list_jobs() == ()
    store.close()


def test_writers_of_one_process_wait_for_each_other_and_not_in_sqlite(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite may not wait here; where it does, it is in steps of up to 100 ms."""
    with monkeypatch.context() as patched:
        patched.setattr(sqlite_store, "BUSY_TIMEOUT_S", 0)
        store = SqliteJobStore(tmp_path / "planner.sqlite")
        store.open()
    start = threading.Barrier(4)

    def write_and_delete(name: str) -> None:
        start.wait(PATIENCE_S)
        for _ in range(20):
            with store.writing(name) as writer:
                writer.save_job(job_record(name))
            with store.writing(name) as writer:
                writer.delete_job(name)

    with ThreadPoolExecutor(4) as threads:
        for ended in [threads.submit(write_and_delete, name) for name in "abcd"]:
            ended.result(PATIENCE_S)
    with store.reading() as reader:
        assert reader.list_jobs() == ()
    store.close()


def test_a_writer_that_waits_too_long_for_another_is_told_that_the_store_is_busy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_store, "BUSY_TIMEOUT_S", 0.01)
    store = SqliteJobStore(tmp_path / "planner.sqlite")
    store.open()
    with store.writing("job"), pytest.raises(StoreBusyError), store.writing("other"):
        pass
    with store.writing("other") as writer:
        writer.save_job(job_record("other"))
    store.close()
