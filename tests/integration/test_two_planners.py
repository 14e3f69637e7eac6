"""Two planners on one PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest
from tests.planner.live import (
    ServeProcess,
    serve_environment,
    serve_process,
)
from tests.planner.patience import PATIENCE_S
from tests.postgres.server import PostgresServer

from flyball_wire import routes

# Longer than anything here is waited for: an answer comes from being woken.
LONG_S = 500


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as pool:
        yield pool


@pytest.fixture(scope="module")
def two_planners(postgres_server: PostgresServer) -> Iterator[tuple[ServeProcess, ServeProcess]]:
    """Two `flyball serve` on one database."""
    environment = serve_environment(FLYBALL_MAX_WAIT_S=str(LONG_S), FLYBALL_PLANNING_PROCESSES="0")
    with ExitStack() as stack:
        database = stack.enter_context(postgres_server.database())
        first, second = (
            stack.enter_context(serve_process(database, environment=environment)) for _ in range(2)
        )
        yield first, second


def test_what_is_put_at_one_planner_wakes_the_ranks_that_wait_at_the_other(
    two_planners: tuple[ServeProcess, ServeProcess], threads: ThreadPoolExecutor
) -> None:
    first, second = two_planners
    first.put_job("woken").raise_for_status()
    first.put_ranks(job_id="woken")
    long = {"wait_s": LONG_S}
    paths = [routes.fill(routes.RANK_PLAN, job_id="woken", rank=rank) for rank in (0, 1)]
    waiting = [threads.submit(second.http.get, path, params=long) for path in paths]
    first.put_profile(job_id="woken").raise_for_status()
    assert [answer.result(PATIENCE_S).json()["version"] for answer in waiting] == [1, 1]
    # One acknowledges here, one there; who waits for the activation is told by either.
    activation = routes.fill(routes.FIRST_STEP, job_id="woken", version=1)
    named = threads.submit(first.http.get, activation, params=long)
    first.acknowledge(0, 1, 4, job_id="woken").raise_for_status()
    first_step = second.acknowledge(1, 1, 4, job_id="woken").json()["first_step"]
    assert named.result(PATIENCE_S).json()["first_step"] == first_step
    assert first_step is not None


def test_a_plan_that_both_planners_are_asked_for_is_solved_once(
    two_planners: tuple[ServeProcess, ServeProcess], threads: ThreadPoolExecutor
) -> None:
    two_planners[0].put_job("once").raise_for_status()
    asked = [threads.submit(each.put_profile, job_id="once") for each in 2 * two_planners]
    assert {answer.result(PATIENCE_S).json()["newest_version"] for answer in asked} == {1}
    for planner in two_planners:
        plans = planner.http.get(routes.fill(routes.PLANS, job_id="once"))
        assert len(plans.raise_for_status().json()) == 1
