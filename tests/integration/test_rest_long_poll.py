"""Long polls over HTTP: woken by a new plan or an activation, released by the end."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from tests.planner.live import LivePlanner, live_planner
from tests.planner.patience import PATIENCE_S, wait_until

from flyball_wire import routes

RANK_PLAN = routes.fill(routes.RANK_PLAN, job_id="job", rank=0)
FIRST_STEP = routes.fill(routes.FIRST_STEP, job_id="job", version=1)
TARGET = routes.fill(routes.TARGET, job_id="job")
# Longer than anything here is waited for: an answer comes from being woken.
LONG = {"wait_s": "500"}


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as pool:
        yield pool


def wait_for(planner: LivePlanner, number: int) -> None:
    wait_until(lambda: planner.state.waiters.num_waiting == number)


def test_ranks_that_have_a_plan_are_woken_by_a_newer_one(
    planner: LivePlanner, threads: ThreadPoolExecutor
) -> None:
    planner.put_planned_job()

    def poll(rank: int) -> httpx.Response:
        path = routes.fill(routes.RANK_PLAN, job_id="job", rank=rank)
        return planner.http.get(path, params={**LONG, "after_version": "1"})

    polls = [threads.submit(poll, rank) for rank in (0, 1)]
    wait_for(planner, 2)
    planner.http.put(TARGET, json={"policy": "uniform"}).raise_for_status()
    answers = [poll.result(PATIENCE_S).json() for poll in polls]
    assert [(answer["version"], answer["stage"]) for answer in answers] == [(2, 0), (2, 1)]


def test_an_activation_is_answered_when_the_last_rank_acknowledges(
    planner: LivePlanner, threads: ThreadPoolExecutor
) -> None:
    planner.put_planned_job()
    unknown = routes.fill(routes.RANK_PLAN, job_id="job", rank=7)
    assert planner.http.get(unknown, params=LONG).status_code == 404  # it is not waited for
    planner.acknowledge(0, 1, 4)
    poll = threads.submit(planner.http.get, FIRST_STEP, params=LONG)
    wait_for(planner, 1)
    named = planner.acknowledge(1, 1, 4).json()
    assert named["first_step"] is not None
    assert poll.result(PATIENCE_S).json() == named


def test_a_poll_that_nothing_happens_in_ends_with_nothing() -> None:
    with live_planner(max_wait_s=0.01) as live:
        live.put_planned_job()
        # A wait beyond the planner's limit is granted up to it.
        for wait_s in ("0.001", "500", "inf"):
            query = {"wait_s": wait_s, "after_version": "1"}
            answer = live.http.get(RANK_PLAN, params=query)
            assert (answer.status_code, answer.content) == (204, b"")
            answer = live.http.get(FIRST_STEP, params=query)
            assert answer.json() == {"version": 1, "first_step": None}


def test_the_end_of_the_planner_releases_all_polls(threads: ThreadPoolExecutor) -> None:
    with live_planner(max_wait_s=600) as planner:
        planner.put_planned_job()
        after = {**LONG, "after_version": "1"}
        plan_poll = threads.submit(httpx.get, planner.http.base_url.join(RANK_PLAN), params=after)
        wait_for(planner, 1)
    assert plan_poll.result(PATIENCE_S).status_code == 204
