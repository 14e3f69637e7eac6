"""One job's life over HTTP, on every store there is; and two planners on one PostgreSQL."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.planner.live import (
    ServeProcess,
    live_planner,
    serve_environment,
    serve_process,
)
from tests.planner.patience import PATIENCE_S, wait_until
from tests.planner.samples import profile_csv, rank_registration, registration
from tests.postgres.server import PostgresServer

from flyball_server.jobs.store.contract import JobStore
from flyball_server.jobs.store.job_stores import make_job_store
from flyball_wire import routes

TARGET = routes.fill(routes.TARGET, job_id="job")
PLANS = routes.fill(routes.PLANS, job_id="job")
STEPS = routes.fill(routes.STEPS, job_id="job")
REPORT = routes.fill(routes.REPORT, job_id="job")
CSV = {"Content-Type": "text/csv"}
# Longer than anything here is waited for: an answer comes from being woken.
LONG_S = 500
STORES = ("sqlite", "postgres")


def of_rank(route: str, rank: int, job_id: str = "job") -> str:
    return routes.fill(route, job_id=job_id, rank=rank)


def put_job_and_ranks(http: httpx.Client, job_id: str = "job") -> None:
    path = routes.fill(routes.JOB, job_id=job_id)
    http.put(path, json=registration()).raise_for_status()
    for rank in (0, 1):
        http.put(
            of_rank(routes.RANK, rank, job_id), json=rank_registration(rank)
        ).raise_for_status()


def acknowledge(http: httpx.Client, rank: int, version: int, job_id: str = "job") -> Any:  # noqa: ANN401 - JSON
    body = {"version": version, "current_step": 4}
    return (
        http.post(of_rank(routes.RANK_ACKNOWLEDGEMENT, rank, job_id), json=body)
        .raise_for_status()
        .json()
    )


def poll(http: httpx.Client, rank: int, after_version: int, job_id: str = "job") -> httpx.Response:
    query = {"wait_s": str(LONG_S), "after_version": str(after_version)}
    path = of_rank(routes.RANK_PLAN, rank, job_id)
    return http.get(path, params=query, timeout=PATIENCE_S).raise_for_status()


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as pool:
        yield pool


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> JobStore:
    if request.param == "sqlite":
        return make_job_store(f"sqlite:///{tmp_path}/planner.sqlite")
    return make_job_store(request.getfixturevalue("postgres_database"))


def test_a_job_is_registered_planned_acknowledged_and_measured_on_every_store(
    store: JobStore, threads: ThreadPoolExecutor
) -> None:
    with live_planner(store=store, max_wait_s=LONG_S) as live:
        put_job_and_ranks(live.http)
        waiting = threads.submit(poll, live.http, 0, 0)
        wait_until(lambda: live.state.waiters.num_waiting == 1)
        live.put_profile().raise_for_status()
        assert waiting.result(PATIENCE_S).json()["version"] == 1
        assert acknowledge(live.http, 0, 1)["first_step"] is None
        first_step = acknowledge(live.http, 1, 1)["first_step"]
        assert first_step > 4
        for rank in (0, 1):
            steps = [
                {"step": step, "time_s": 0.1 + 0.2, "energy_j": 1 / 3, "plan_version": 1}
                for step in range(first_step, first_step + 3)
            ]
            path = of_rank(routes.RANK_MEASUREMENTS, rank)
            for _ in range(2):  # a call that is repeated changes nothing
                live.http.post(path, json={"steps": steps}).raise_for_status()
        totals = live.http.get(STEPS).raise_for_status().json()
        assert [step["num_ranks"] for step in totals] == [2, 2, 2]
        assert [step["time_s"] for step in totals] == [0.1 + 0.2] * 3
        assert live.http.get(REPORT).raise_for_status().json()["num_steps"] == 3
        waiting = threads.submit(poll, live.http, 1, 1)
        wait_until(lambda: live.state.waiters.num_waiting == 1)
        live.http.put(TARGET, json={"policy": "uniform"}).raise_for_status()
        assert waiting.result(PATIENCE_S).json()["version"] == 2
        versions = [plan["version"] for plan in live.http.get(PLANS).raise_for_status().json()]
        assert versions == [1, 2]
        assert live.http.get(routes.JOBS).raise_for_status().json()[0]["job_id"] == "job"


# ------------------------------------------------------------------ two planners


@pytest.fixture(scope="module")
def two_planners(postgres_server: PostgresServer) -> Iterator[tuple[ServeProcess, ServeProcess]]:
    """Two `flyball serve` on one database; the last test ends one of them."""
    environment = serve_environment(
        FLYBALL_MAX_WAIT_S=str(LONG_S),
        FLYBALL_RANK_SILENCE_S="600",
        FLYBALL_PLANNING_PROCESSES="0",
    )
    with ExitStack() as stack:
        database = stack.enter_context(postgres_server.database())
        first, second = (
            stack.enter_context(serve_process(database, environment=environment)) for _ in range(2)
        )
        yield first, second


def put_profile(planner: ServeProcess, job_id: str, *, forward_energy_j: float = 30) -> Any:  # noqa: ANN401 - JSON
    path = routes.fill(routes.PROFILE, job_id=job_id)
    answer = planner.http.put(
        path, content=profile_csv(forward_energy_j=forward_energy_j), headers=CSV
    )
    return answer.raise_for_status().json()


def test_what_is_put_at_one_planner_wakes_the_ranks_that_wait_at_the_other(
    two_planners: tuple[ServeProcess, ServeProcess], threads: ThreadPoolExecutor
) -> None:
    first, second = two_planners
    put_job_and_ranks(first.http, "woken")
    waiting = [threads.submit(poll, second.http, rank, 0, "woken") for rank in (0, 1)]
    put_profile(first, "woken")
    assert [answer.result(PATIENCE_S).json()["version"] for answer in waiting] == [1, 1]
    # One acknowledges here, one there; who waits for the activation is told by either.
    activation = routes.fill(routes.FIRST_STEP, job_id="woken", version=1)
    named = threads.submit(first.http.get, activation, params={"wait_s": LONG_S})
    acknowledge(first.http, 0, 1, "woken")
    first_step = acknowledge(second.http, 1, 1, "woken")["first_step"]
    assert named.result(PATIENCE_S).json()["first_step"] == first_step
    assert first_step is not None


def test_a_plan_that_both_planners_are_asked_for_is_solved_once(
    two_planners: tuple[ServeProcess, ServeProcess], threads: ThreadPoolExecutor
) -> None:
    first, second = two_planners
    put_job_and_ranks(first.http, "once")
    asked = [
        threads.submit(put_profile, planner, "once") for planner in (first, second, first, second)
    ]
    assert {answer.result(PATIENCE_S)["newest_version"] for answer in asked} == {1}
    plans = routes.fill(routes.PLANS, job_id="once")
    for planner in two_planners:
        assert len(planner.http.get(plans).raise_for_status().json()) == 1


def test_a_planner_that_is_killed_leaves_the_other_all_it_needs(
    two_planners: tuple[ServeProcess, ServeProcess], threads: ThreadPoolExecutor
) -> None:
    first, second = two_planners
    put_job_and_ranks(first.http, "left")
    put_profile(first, "left")
    waiting: Future[httpx.Response] = threads.submit(poll, second.http, 0, 1, "left")
    first.end(signal.SIGKILL)
    job = routes.fill(routes.JOB, job_id="left")
    second.http.put(job, json=registration()).raise_for_status()  # as a rank that comes back
    put_profile(second, "left", forward_energy_j=33)
    assert waiting.result(PATIENCE_S).json()["version"] == 2
    assert second.http.get(job).raise_for_status().json()["newest_version"] == 2
