"""Fixtures of the contract tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.false_nvml.fixtures import false_nvml, false_nvml_library, loaded_nvml
from tests.planner.newer_schema import migrate_to_next
from tests.planner.samples import job_record

from flyball_server.jobs.store.contract import JobStore
from flyball_server.jobs.store.job_stores import make_job_store

__all__ = ["false_nvml", "false_nvml_library", "loaded_nvml"]


def sqlite_store(request: pytest.FixtureRequest) -> JobStore:
    folder: Path = request.getfixturevalue("tmp_path")
    return make_job_store(f"sqlite:///{folder}/new/folder/planner.sqlite")


def postgres_store(request: pytest.FixtureRequest) -> JobStore:
    """On the schema of a newer Flyball, as during an upgrade."""
    database: str = request.getfixturevalue("postgres_database")
    migrate_to_next(database)
    return make_job_store(database)


@pytest.fixture(params=[sqlite_store, postgres_store])
def store(request: pytest.FixtureRequest) -> Iterator[JobStore]:
    """Every store there is, open and empty."""
    made: JobStore = request.param(request)
    made.open()
    yield made
    made.close()


@pytest.fixture
def store_with_job(store: JobStore) -> JobStore:
    """Every store, with a job of no rank."""
    with store.writing("job") as writer:
        writer.save_job(job_record())
    return store
