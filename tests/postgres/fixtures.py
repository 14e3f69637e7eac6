"""Fixtures of tests on PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.debian_packages import skipped_where_missing
from tests.postgres.server import PostgresServer, postgres_binaries, private_postgres


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """A PostgreSQL of this test process; without one, a failure where CI=true, else a skip."""
    with skipped_where_missing():
        postgres_binaries()
    with private_postgres() as server:
        yield server


@pytest.fixture
def postgres_database(postgres_server: PostgresServer) -> Iterator[str]:
    """The address of an empty database of this test's own."""
    with postgres_server.database() as address:
        yield address


@pytest.fixture(params=("sqlite", "postgres"))
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of an empty database of each kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/planner.sqlite"
    address: str = request.getfixturevalue("postgres_database")
    return address
