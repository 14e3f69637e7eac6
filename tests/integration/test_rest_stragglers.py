"""Stragglers and timetables over HTTP, with the planner's reactions."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import pytest
from tests.planner.live import LivePlanner, live_planner
from tests.planner.patience import wait_until

from flyball_wire import routes

STRAGGLERS = routes.fill(routes.STRAGGLERS, job_id="job")
TIMETABLE = routes.fill(routes.TIMETABLE, job_id="job")
PLANS = routes.fill(routes.PLANS, job_id="job")
ALWAYS: dict[str, Any] = {"from_time": "00:00", "until_time": "00:00", "target": "slowdown:0.1"}


@pytest.fixture
def planner() -> Iterator[LivePlanner]:
    with live_planner() as live:
        live.put_job(effort="low").raise_for_status()
        live.put_profile().raise_for_status()
        live.put_ranks()
        yield live


def plans(planner: LivePlanner) -> list[dict[str, Any]]:
    views: list[dict[str, Any]] = planner.http.get(PLANS).json()
    return [view["plan"] for view in views]


def test_an_announcement_is_answered_at_once_and_the_plan_follows(planner: LivePlanner) -> None:
    answer = planner.http.post(STRAGGLERS, json={"rank": 1, "slowdown": 1.5})
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
    assert after["lower_bound_j"] <= after["energy_j"] * (1 + 1e-12)
    [listed] = planner.http.get(STRAGGLERS).json()
    assert listed == {**view, "is_planned": True}


def test_a_deadline_that_a_straggler_makes_unreachable_keeps_the_nearest_plan(
    planner: LivePlanner,
) -> None:
    job = routes.fill(routes.JOB, job_id="job")
    target = routes.fill(routes.TARGET, job_id="job")
    fastest_s = plans(planner)[0]["baseline"]["iteration_time_s"]
    asked = f"deadline:{1.01 * fastest_s:.6g}"
    assert planner.http.put(target, json={"target": asked}).status_code == 200
    planner.http.post(STRAGGLERS, json={"rank": 1, "slowdown": 1.15}).raise_for_status()
    wait_until(lambda: planner.http.get(job).json()["missed"] is not None)
    view = planner.http.get(job).json()
    nearest = plans(planner)[-1]["target"]
    assert view["missed"] == {"target": asked, "nearest": nearest}
    assert (view["state"], view["registration"]["target"]) == ("planned", asked)
    assert any(asked in note and nearest in note for note in view["notes"])
    overview = planner.http.get(routes.fill(routes.JOB_OVERVIEW, job_id="job")).json()
    assert (overview["target"], overview["missed"]) == (nearest, view["missed"])
    refused = planner.http.put(target, json={"target": f"deadline:{fastest_s:.6g}"})
    assert refused.status_code == 422
    overview = planner.http.get(routes.fill(routes.JOB_OVERVIEW, job_id="job")).json()
    assert (overview["state"], overview["target"]) == ("planning-failed", nearest)


def test_a_timetable_whose_window_is_open_is_planned_for_and_taken_away_again(
    planner: LivePlanner,
) -> None:
    none = {"timetable": None, "current_target": "fastest", "next_change": None}
    assert planner.http.get(TIMETABLE).json() == none
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


def test_an_invalid_announcement_or_timetable_names_its_field(planner: LivePlanner) -> None:
    slow = {"rank": 1, "slowdown": 1.5}
    for path, body, place in (
        (STRAGGLERS, slow | {"slowdown": 0.5}, "slowdown"),
        (STRAGGLERS, slow | {"from_time": "22:00"}, "from_time"),
        (STRAGGLERS, slow | {"until_time": "2001-01-01T00:00Z"}, "until_time"),
        (STRAGGLERS, slow | {"colour": "red"}, "body"),
        (TIMETABLE, {"windows": [ALWAYS, ALWAYS | {"from_time": "25:00"}]}, "windows[1].from_time"),
        (TIMETABLE, {"windows": [ALWAYS | {"days": ["mon", "monday"]}]}, "windows.0.days.1"),
        (TIMETABLE, {"windows": [], "timezone": "Nowhere/Town"}, "timezone"),
    ):
        answer = planner.http.request("POST" if path == STRAGGLERS else "PUT", path, json=body)
        assert answer.status_code == 422
        assert answer.json()["errors"][0]["loc"] == place
    assert planner.http.get(STRAGGLERS).json() == []
    assert planner.http.get(TIMETABLE).json()["timetable"] is None
