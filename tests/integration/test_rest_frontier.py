"""A job's frontier over HTTP, and a point of it put as the target."""

from __future__ import annotations

from itertools import pairwise

from tests.planner.live import LivePlanner

from flyball_wire import routes

FRONTIER = routes.fill(routes.FRONTIER, job_id="job")
TARGET = routes.fill(routes.TARGET, job_id="job")
PLANS = routes.fill(routes.PLANS, job_id="job")


def test_a_frontier_falls_from_the_fastest_plan_and_stays_above_its_bound(
    planner: LivePlanner,
) -> None:
    planner.put_planned_job()
    answer = planner.http.get(FRONTIER, params={"points": 10})
    assert answer.status_code == 200, answer.text
    points = answer.json()["points"]
    assert len(points) >= 2
    for faster, slower in pairwise(points):
        assert faster["iteration_time_s"] < slower["iteration_time_s"]
        assert faster["energy_j"] > slower["energy_j"]
    for point in points:
        assert point["lower_bound_j"] <= point["energy_j"] * (1 + 1e-9)
        assert point["iteration_time_s"] <= point["deadline_s"]
    assert answer.json()["baseline"]["name"] == "baseline"


def test_a_chosen_point_becomes_a_new_version_for_the_ranks(planner: LivePlanner) -> None:
    planner.put_planned_job()
    planner.http.put(TARGET, json={"policy": "frontier"})
    versions = [plan["version"] for plan in planner.http.get(PLANS).json()]
    chosen = planner.http.get(FRONTIER, params={"points": 10}).json()["points"][-1]
    put = planner.http.put(TARGET, json={"target": f"deadline:{chosen['deadline_s']!r}"})
    assert put.status_code == 200, put.text
    newest = planner.http.get(PLANS).json()[-1]
    assert newest["version"] == versions[-1] + 1
    assert newest["plan"]["policy"] == "frontier"
    assert newest["plan"]["iteration_time_s"] <= chosen["deadline_s"]
    assert newest["plan"]["energy_j"] <= chosen["energy_j"] * 1.01
    assert newest["plan"]["gap_percent"] is not None


def test_a_job_without_a_profile_has_no_frontier_yet(planner: LivePlanner) -> None:
    planner.put_job()
    answer = planner.http.get(FRONTIER)
    assert answer.status_code == 409
    assert answer.json()["detail"] == "Job job has no profile yet; put one first"
