"""Late posts of an earlier run do not count in the new run of a job."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from tests.planner.live import LivePlanner, live_planner
from tests.planner.samples import rank_registration

from flyball_server.jobs.reconcile.plans import PlanReconciler
from flyball_wire import routes

STEP = {"step": 3, "plan_version": 1, "time_s": 0.5, "energy_j": 10.0}


@pytest.fixture
def planner() -> Iterator[LivePlanner]:
    """With a job whose ranks have left."""
    with live_planner(reconcilers=(PlanReconciler(),)) as live:
        live.put_job(policy="uniform").raise_for_status()
        yield live


def path(route: str, **parts: str | int) -> str:
    return routes.fill(route, job_id="job", **parts)


def register(planner: LivePlanner, rank: int) -> str:
    """The run that the rank belongs to."""
    answer = planner.http.put(path(routes.RANK, rank=rank), json=rank_registration(rank))
    start_id: str = answer.raise_for_status().json()["start_id"]
    return start_id


def post(planner: LivePlanner, rank: int, **changes: Any) -> httpx.Response:  # noqa: ANN401 - JSON
    body = {"steps": [STEP], **changes}
    return planner.http.post(path(routes.RANK_MEASUREMENTS, rank=rank), json=body)


def leave(planner: LivePlanner, rank: int, **body: str) -> httpx.Response:
    return planner.http.post(path(routes.RANK_DEPARTURE, rank=rank), json=body)


def begin_old_run(planner: LivePlanner) -> str:
    """The run, whose ranks have left."""
    planner.put_profile().raise_for_status()
    (start_id,) = {register(planner, rank) for rank in (0, 1)}
    for rank in (0, 1):
        leave(planner, rank).raise_for_status()
    return start_id


def test_late_posts_of_the_old_run_are_refused_and_change_nothing_in_the_new_one(
    planner: LivePlanner,
) -> None:
    old = begin_old_run(planner)
    planner.put_job(policy="uniform", num_microbatches=3).raise_for_status()
    (new,) = {register(planner, rank) for rank in (0, 1)}
    late = post(planner, 0, start_id=old)
    assert late.status_code == 409
    assert "another start" in late.json()["detail"]
    assert planner.http.get(path(routes.STEPS)).json() == []
    assert post(planner, 0, start_id=new).json()["stored"] == 1
    held = path(routes.RANK_ACKNOWLEDGEMENT, rank=0)
    body = {"version": 1, "current_step": 4}
    assert planner.http.post(held, json={**body, "start_id": old}).status_code == 409
    assert planner.acknowledge(1, 1, 4).json()["first_step"] is None
    assert planner.http.post(held, json={**body, "start_id": new}).json()["first_step"] is not None
    assert leave(planner, 0, start_id=old).status_code == 409
    ranks = planner.http.get(path(routes.JOB)).json()["ranks"]
    assert [each["has_left"] for each in ranks] == [False, False]
    assert leave(planner, 0, start_id=new).status_code == 204


def test_a_rank_that_a_job_put_again_does_not_know_is_to_register_first(
    planner: LivePlanner,
) -> None:
    """Its planner has lost the job meanwhile, and another rank has put it again."""
    old = begin_old_run(planner)
    planner.http.delete(path(routes.JOB)).raise_for_status()
    planner.put_job(policy="uniform").raise_for_status()
    planner.put_profile().raise_for_status()
    register(planner, 0)
    held = {"version": 1, "current_step": 4, "start_id": old}
    for rank, status in ((0, 409), (1, 404)):
        assert post(planner, rank, start_id=old).status_code == status
        answer = planner.http.post(path(routes.RANK_ACKNOWLEDGEMENT, rank=rank), json=held)
        assert answer.status_code == status
    # What was refused so is kept by the rank, and posted when it has registered.
    assert post(planner, 1, start_id=register(planner, 1)).json()["stored"] == 1
