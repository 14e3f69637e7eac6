"""Fixtures of the server's tests."""

from __future__ import annotations

import pytest
from tests.planner.samples import job_services

from flyball_server.jobs.services import JobServices


@pytest.fixture
def anyio_backend() -> str:
    """Event loop of the asynchronous tests."""
    return "asyncio"


@pytest.fixture
def services() -> JobServices:
    """Services over a new store."""
    return job_services()
