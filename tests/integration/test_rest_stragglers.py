"""Stragglers and timetables over HTTP, with the planner's own reactions behind them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import httpx
import pytest
from tests.planner.live import LivePlanner, live_planner
from tests.planner.patience import wait_until

from flyball_wire import routes

STRAGGLERS = routes.fill(routes.STRAGGLERS, job_id="job")
STRAGGLER = routes.fill(routes.STRAGGLER, job_id="job", rank=1)
TIMETABLE = routes.fill(routes.TIMETABLE, job_id="job")
PLANS = routes.fill(routes.PLANS, job_id="job")
ALWAYS = {"from_time": "00:00", "until_time": "00:00", "target": "slowdown:0.1"}


@pytest.fixture
def planner() -> Iterator[LivePlanner]:
    with live_planner() as live:
        plan_quickly(live)
        yield live


def plan_quickly(planner: LivePlanner) -> None:
    """A job of two ranks with plan version 1, searched for with little effort."""
    planner.put_job(effort="low").raise_for_status()
    planner.put_profile().raise_for_status()
    planner.put_ranks()


def plans(planner: LivePlanner) -> list[dict[str, Any]]:
    views: list[dict[str, Any]] = planner.http.get(PLANS).json()
    return [view["plan"] for view in views]


def announced(planner: LivePlanner, **changes: object) -> httpx.Response:
    return planner.http.post(STRAGGLERS, json={"rank": 1, "slowdown": 1.5, **changes})


def test_an_announcement_is_answered_at_once_and_the_plan_follows(planner: LivePlanner) -> None:
    answer = announced(planner)
    assert answer.status_code == 200
    view = answer.json()
    assert (view["rank"], view["source"], view["reason"]) == (1, "announced", "slow")
    assert view["slowdown"] == 1.5
    assert view["until_time"] is None
    assert datetime.fromisoformat(view["from_time"]).utcoffset() == timedelta(0)
    rank_plan = routes.fill(routes.RANK_PLAN, job_id="job", rank=0)
    plan = planner.http.get(rank_plan, params={"after_version": 1, "wait_s": 60}).json()
    assert plan["version"] == 2
    before, after = plans(planner)
    assert after["baseline"]["iteration_time_s"] > before["baseline"]["iteration_time_s"]
    assert after["lower_bound_j"] <= after["energy_j"]
    [listed] = planner.http.get(STRAGGLERS).json()
    assert listed == {**view, "is_planned": True}


def test_an_announcement_that_cannot_be_used_names_its_field(planner: LivePlanner) -> None:
    for field, value in (
        ("slowdown", 0.5),
        ("slowdown", "much"),
        ("from_time", "22:00"),
        ("from_time", "2026-11-21T22:00:00"),
        ("until_time", "2001-01-01T00:00:00Z"),
        ("until_time", "9999-12-31T23:59:59.999999+00:00"),
        ("colour", "red"),
    ):
        answer = announced(planner, **{field: value})
        assert answer.status_code == 422
        assert field in str(answer.json())
    assert planner.http.get(STRAGGLERS).json() == []


def test_unknown_jobs_and_ranks_are_404(planner: LivePlanner) -> None:
    assert announced(planner, rank=7).status_code == 404
    assert (
        planner.http.delete(routes.fill(routes.STRAGGLER, job_id="job", rank=7)).status_code == 404
    )
    for path in (routes.STRAGGLERS, routes.TIMETABLE):
        assert planner.http.get(routes.fill(path, job_id="nobody")).status_code == 404
    assert planner.http.delete(routes.fill(routes.TIMETABLE, job_id="nobody")).status_code == 404


def test_a_timetable_whose_window_is_open_is_planned_for_and_taken_away_again(
    planner: LivePlanner,
) -> None:
    assert planner.http.get(TIMETABLE).json() == {
        "timetable": None,
        "current_target": "fastest",
        "next_change": None,
    }
    answer = planner.http.put(TIMETABLE, json={"windows": [ALWAYS]})
    assert answer.status_code == 200
    assert answer.json()["timetable"]["windows"][0] == {**ALWAYS, "days": None}
    wait_until(lambda: len(plans(planner)) == 2)
    view = planner.http.get(TIMETABLE).json()
    assert (view["current_target"], view["next_change"]) == ("slowdown:0.1", None)
    assert plans(planner)[1]["target"] == "slowdown:0.1"
    assert planner.http.delete(TIMETABLE).status_code == 204
    wait_until(lambda: len(plans(planner)) == 3)
    first, _, last = plans(planner)
    assert first == {**last, "solve_s": first["solve_s"]}


def test_a_window_that_cannot_be_used_is_named(planner: LivePlanner) -> None:
    windows = [ALWAYS, ALWAYS, {**ALWAYS, "from_time": "25:00"}]
    answer = planner.http.put(TIMETABLE, json={"windows": windows})
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["loc"] == "windows[2].from_time"
    for_ever = {**ALWAYS, "from_time": "2026-11-21T10:00Z", "until_time": "9999-12-31T23:59:59Z"}
    answer = planner.http.put(TIMETABLE, json={"windows": [for_ever], "timezone": "Europe/Berlin"})
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["loc"] == "windows[0].until_time"
    assert planner.http.get(TIMETABLE).json()["timetable"] is None
    answer = planner.http.put(TIMETABLE, json={"windows": [], "timezone": "Nowhere/Town"})
    assert answer.status_code == 422
    assert "timezone" in answer.json()["detail"]
