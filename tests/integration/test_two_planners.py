"""Two planners on one PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import httpx
import pytest
from tests.planner.live import (
    serve_environment,
    serve_process,
)
from tests.planner.patience import PATIENCE_S
from tests.planner.samples import profile_csv, rank_registration, registration
from tests.postgres.server import PostgresServer

from flyball_wire import routes

CSV = {"Content-Type": "text/csv"}
# Longer than anything here is waited for: an answer comes from being woken.
LONG_S = 500


def of(job_id: str, route: str, **parts: int) -> str:
    return routes.fill(route, job_id=job_id, **parts)


def put_job_and_ranks(http: httpx.Client, job_id: str) -> None:
    http.put(of(job_id, routes.JOB), json=registration()).raise_for_status()
    for rank in (0, 1):
        path = of(job_id, routes.RANK, rank=rank)
        http.put(path, json=rank_registration(rank)).raise_for_status()


def put_profile(http: httpx.Client, job_id: str) -> Any:  # noqa: ANN401 - JSON
    answer = http.put(of(job_id, routes.PROFILE), content=profile_csv(), headers=CSV)
    return answer.raise_for_status().json()


def acknowledge(http: httpx.Client, job_id: str, rank: int) -> Any:  # noqa: ANN401 - JSON
    path, body = (
        of(job_id, routes.RANK_ACKNOWLEDGEMENT, rank=rank),
        {"version": 1, "current_step": 4},
    )
    return http.post(path, json=body).raise_for_status().json()["first_step"]


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as pool:
        yield pool


@pytest.fixture(scope="module")
def two_planners(postgres_server: PostgresServer) -> Iterator[tuple[httpx.Client, httpx.Client]]:
    """Clients of two `flyball serve` on one database."""
    environment = serve_environment(FLYBALL_MAX_WAIT_S=str(LONG_S), FLYBALL_PLANNING_PROCESSES="0")
    with ExitStack() as stack:
        database = stack.enter_context(postgres_server.database())
        first, second = (
            stack.enter_context(serve_process(database, environment=environment)) for _ in range(2)
        )
        yield first.http, second.http


def test_what_is_put_at_one_planner_wakes_the_ranks_that_wait_at_the_other(
    two_planners: tuple[httpx.Client, httpx.Client], threads: ThreadPoolExecutor
) -> None:
    first, second = two_planners
    put_job_and_ranks(first, "woken")
    long = {"wait_s": LONG_S}
    paths = [of("woken", routes.RANK_PLAN, rank=rank) for rank in (0, 1)]
    waiting = [threads.submit(second.get, path, params=long) for path in paths]
    put_profile(first, "woken")
    assert [answer.result(PATIENCE_S).json()["version"] for answer in waiting] == [1, 1]
    # One acknowledges here, one there; who waits for the activation is told by either.
    activation = of("woken", routes.FIRST_STEP, version=1)
    named = threads.submit(first.get, activation, params=long)
    acknowledge(first, "woken", 0)
    first_step = acknowledge(second, "woken", 1)
    assert named.result(PATIENCE_S).json()["first_step"] == first_step
    assert first_step is not None


def test_a_plan_that_both_planners_are_asked_for_is_solved_once(
    two_planners: tuple[httpx.Client, httpx.Client], threads: ThreadPoolExecutor
) -> None:
    put_job_and_ranks(two_planners[0], "once")
    asked = [threads.submit(put_profile, planner, "once") for planner in 2 * two_planners]
    assert {answer.result(PATIENCE_S)["newest_version"] for answer in asked} == {1}
    for planner in two_planners:
        assert len(planner.get(of("once", routes.PLANS)).raise_for_status().json()) == 1
