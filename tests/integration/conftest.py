"""Fixtures that several integration tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.integration.rank_server import RankServer
from tests.planner.live import LivePlanner, live_planner


@pytest.fixture(scope="session")
def rank_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RankServer]:
    """The process that all ranks of this session are forked from."""
    server = RankServer(tmp_path_factory.mktemp("rank-server"))
    yield server
    server.close()


@pytest.fixture
def planner() -> Iterator[LivePlanner]:
    """Planner without jobs behind an HTTP server; long polls may last 600 s."""
    with live_planner(max_wait_s=600) as live:
        yield live
