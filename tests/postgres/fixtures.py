"""Fixtures of tests on PostgreSQL."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from tests.postgres.server import MissingPostgresError, PostgresServer, private_postgres


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """A PostgreSQL of this test process; without one, a failure where CI=true, else a skip."""
    try:
        with private_postgres() as server:
            yield server
    except MissingPostgresError as error:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(str(error))


@pytest.fixture
def postgres_database(postgres_server: PostgresServer) -> Iterator[str]:
    """The address of an empty database of this test's own."""
    with postgres_server.database() as address:
        yield address
