"""Stores on a file or at an address: other files, other schemas, other processes, other stores."""

from __future__ import annotations

import os
import sqlite3
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from tests.planner.patience import PATIENCE_S
from tests.planner.samples import job_record

from flyball_server.jobs.errors import (
    StoreBusyError,
    StoreDamagedError,
    StoreDriverError,
    StoreForeignError,
    StoreInUseError,
    StoreUnavailableError,
)
from flyball_server.jobs.store.databases import make_job_store
from flyball_server.jobs.store.postgres.postgres_store import PostgresJobStore
from flyball_server.jobs.store.sqlite import sqlite_store
from flyball_server.jobs.store.sqlite.sqlite_store import SqliteJobStore


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


@pytest.mark.parametrize("content", [b"This is a letter, and no database at all." * 50, b"x", None])
def test_a_damaged_database_is_refused_and_kept(file: Path, content: bytes | None) -> None:
    if content is None:
        whole = file.read_bytes()
        content = whole[:100] + b"\xff" * (len(whole) - 100)
    file.write_bytes(content)
    with pytest.raises(StoreDamagedError, match=r"planner\.sqlite is damaged or no SQLite file"):
        SqliteJobStore(file).open()
    assert file.read_bytes() == content


def test_unusable_paths_are_unavailable(tmp_path: Path, file: Path) -> None:
    for place in (tmp_path, file / "planner.sqlite"):
        with pytest.raises(StoreUnavailableError, match="cannot be used"):
            SqliteJobStore(place).open()


def test_a_locked_database_is_busy(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_store, "BUSY_TIMEOUT_S", 0.05)
    store = SqliteJobStore(file)
    store.open()
    with closing(sqlite3.connect(file, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreBusyError, match="try again"), store.writing("job"):
            pass
        with store.reading() as reader:
            assert reader.list_jobs() == (job_record("job"),)
    with store.writing("job"), pytest.raises(StoreBusyError), store.writing("other"):
        pass  # a writer of this process waits as long
    with store.writing("other") as writer:
        writer.save_job(job_record("other"))
    store.close()


def test_a_new_file_is_opened_once_another_planner_has_written_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "planner.sqlite"
    waits: list[float] = []
    with closing(sqlite3.connect(file, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")  # SQLite itself does not wait for this lock here

        def end_writing(pause_s: float) -> None:
            waits.append(pause_s)
            other.execute("COMMIT")

        monkeypatch.setattr(time, "sleep", end_writing)
        engine = sqlite_store.make_sqlite_engine(file)
        sqlite_store.use_write_ahead_log(engine, file=file)
        assert len(waits) == 1
        assert other.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        engine.dispose()
    monkeypatch.setattr(sqlite_store, "BUSY_TIMEOUT_S", 0)
    file = tmp_path / "busy.sqlite"
    with closing(sqlite3.connect(file, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        engine = sqlite_store.make_sqlite_engine(file)
        with pytest.raises(StoreBusyError, match="try again"):
            sqlite_store.use_write_ahead_log(engine, file=file)
        engine.dispose()


def test_writers_of_one_process_queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


# ------------------------------------------------------------------ which store


def test_the_address_says_which_store_and_without_its_driver_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert isinstance(make_job_store(f"sqlite:///{tmp_path}/planner.sqlite"), SqliteJobStore)
    for scheme in ("postgresql", "postgres"):
        store = make_job_store(f"{scheme}://ada:secret@nowhere.invalid/flyball")
        assert isinstance(store, PostgresJobStore)
        assert repr(store) == "PostgresJobStore('postgresql://ada@nowhere.invalid/flyball')"
    monkeypatch.delitem(sys.modules, "flyball_server.jobs.store.postgres.postgres_store")
    monkeypatch.setitem(sys.modules, "flyball_server.jobs.store.postgres.postgres_engine", None)
    with pytest.raises(StoreDriverError) as refused:
        make_job_store("postgresql://ada:secret@db/flyball")
    assert str(refused.value) == (
        "Database postgresql://ada@db/flyball needs the PostgreSQL driver;"
        " install the extra postgres"
    )


# ------------------------------------------------------------------ other users, other names


def modes(folder: Path) -> dict[str, str]:
    return {file.name: oct(file.stat().st_mode & 0o777) for file in folder.iterdir()}


def test_a_database_is_its_owners_alone_whatever_the_umask_and_what_it_was(tmp_path: Path) -> None:
    file = tmp_path / "new" / "folder" / "planner.sqlite"
    files = ("planner.sqlite", "planner.sqlite-shm", "planner.sqlite-wal", "planner.sqlite.lock")
    before = os.umask(0)
    try:
        for _ in range(2):
            store = SqliteJobStore(file, for_planner=True)
            store.open()
            with store.writing("job") as writer:
                writer.save_job(job_record())
            assert modes(file.parent) == dict.fromkeys(files, "0o600")
            store.close()
            for left in file.parent.iterdir():
                left.chmod(0o666)
    finally:
        os.umask(before)
    assert modes(tmp_path) == {"new": "0o700"}
    assert modes(tmp_path / "new") == {"folder": "0o700"}


def test_a_file_that_is_refused_keeps_its_content_and_its_rights(tmp_path: Path) -> None:
    file = tmp_path / "other.sqlite"
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("CREATE TABLE theirs (x)")
    file.chmod(0o644)
    before = file.read_bytes()
    with pytest.raises(StoreForeignError):
        SqliteJobStore(file, for_planner=True).open()
    assert file.read_bytes() == before
    assert modes(tmp_path)["other.sqlite"] == "0o644"


def test_a_second_planner_by_a_hard_link_is_refused(file: Path, tmp_path: Path) -> None:
    link = tmp_path / "link.sqlite"
    os.link(file, link)
    first, second = (SqliteJobStore(each, for_planner=True) for each in (file, link))
    first.open()
    try:
        with pytest.raises(StoreInUseError, match=r"link\.sqlite"):
            second.open()
    finally:
        first.close()
    second.open()
    second.close()
