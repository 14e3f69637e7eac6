"""Fixtures of the contract tests."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from sqlalchemy import Engine, create_engine
from tests.planner.newer_schema import migrate_to_next
from tests.planner.samples import job_record
from tests.planner.stores import MEMORY
from tests.postgres.server import PostgresServer

from flyball_server.jobs.store.contract import JobStore
from flyball_server.jobs.store.databases import make_job_store


@contextmanager
def sqlite_store(_: pytest.FixtureRequest) -> Iterator[JobStore]:
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        yield make_job_store(f"sqlite:///{folder}/new/folder/planner.sqlite")


@pytest.fixture(scope="session")
def newer_template(postgres_server: PostgresServer) -> Iterator[str]:
    """Name of an empty database on the schema of a newer Flyball, as during an upgrade."""
    with postgres_server.database() as address:
        migrate_to_next(address)
        yield address.rpartition("/")[2]


@pytest.fixture
def newer_database(postgres_server: PostgresServer, newer_template: str) -> Iterator[str]:
    """Address of a database of the test's own on that schema."""
    with postgres_server.database(newer_template) as address:
        yield address


@contextmanager
def postgres_store(request: pytest.FixtureRequest) -> Iterator[JobStore]:
    yield make_job_store(request.getfixturevalue("newer_database"))


@pytest.fixture(params=[sqlite_store, postgres_store])
def store(request: pytest.FixtureRequest) -> Iterator[JobStore]:
    """Every store there is, open and empty."""
    with request.param(request) as made:
        made.open()
        yield made
        made.close()


@pytest.fixture
def engine(database_url: str) -> Iterator[Engine]:
    """A look at the tables themselves."""
    made = create_engine(database_url.replace("postgresql://", "postgresql+psycopg://"))
    yield made
    made.dispose()


@pytest.fixture
def store_with_job(store: JobStore) -> JobStore:
    """Every store, with a job of no rank."""
    with store.writing("job") as writer:
        writer.save_job(job_record())
    return store
