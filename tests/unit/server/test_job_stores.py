"""Which store a database needs."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from flyball_server.jobs.errors import StoreDriverError
from flyball_server.jobs.store.job_stores import make_job_store
from flyball_server.jobs.store.postgres.postgres_store import PostgresJobStore
from flyball_server.jobs.store.sqlite.sqlite_store import SqliteJobStore


def test_the_address_says_which_store(tmp_path: Path) -> None:
    assert isinstance(make_job_store(f"sqlite:///{tmp_path}/planner.sqlite"), SqliteJobStore)
    for scheme in ("postgresql", "postgres"):
        store = make_job_store(f"{scheme}://ada:secret@nowhere.invalid/flyball")
        assert isinstance(store, PostgresJobStore)
        assert repr(store) == "PostgresJobStore('postgresql://ada@nowhere.invalid/flyball')"


def test_without_the_driver_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "flyball_server.jobs.store.postgres.postgres_store")
    monkeypatch.setitem(sys.modules, "flyball_server.jobs.store.postgres.postgres_engine", None)
    with pytest.raises(StoreDriverError) as refused:
        make_job_store("postgresql://ada:secret@db/flyball")
    assert str(refused.value) == (
        "Database postgresql://ada@db/flyball needs the PostgreSQL driver;"
        " install the extra postgres"
    )
