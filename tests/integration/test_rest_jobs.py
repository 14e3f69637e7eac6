"""Jobs, profiles and plans over HTTP, with the real planning core."""

from __future__ import annotations

import pytest
from tests.planner.live import LivePlanner
from tests.planner.samples import (
    rank_registration,
    registration,
)

from flyball_server.jobs.services import frontier_lock
from flyball_server.planning.documents.plan_document import plan_from_document
from flyball_server.planning.stragglers.slowed_pipelines import SlowedRequest, make_slowed_frontier
from flyball_server.views import frontier
from flyball_wire import routes
from flyball_wire.read_models import Frontier

JOB = routes.fill(routes.JOB, job_id="job")
TARGET = routes.fill(routes.TARGET, job_id="job")
PLANS = routes.fill(routes.PLANS, job_id="job")
FRONTIER = routes.fill(routes.FRONTIER, job_id="job")


def test_a_job_is_new_once_and_planned_with_its_profile_and_each_target(
    planner: LivePlanner,
) -> None:
    first, second = planner.put_job(), planner.put_job()
    assert (first.status_code, second.status_code) == (201, 200)
    assert first.json() == second.json() == planner.http.get(JOB).json()
    body = first.json()
    assert body["state"] == "awaiting-profile"
    assert (body["registration"]["num_ranks"], body["registration"]["emulated"]) == (2, True)
    assert body["ranks"] == []
    assert (body["newest_version"], body["active_version"], body["problem"]) == (None, None, None)
    assert body["created_at"].endswith("+00:00")
    unplanned = planner.http.get(FRONTIER)
    assert unplanned.status_code == 409
    assert unplanned.json()["detail"] == "Job job has no profile yet; put one first"
    answer = planner.put_profile()
    assert (answer.status_code, answer.json()["state"]) == (200, "planned")
    (view,) = planner.http.get(PLANS).json()
    assert (view["version"], view["first_step"]) == (1, None)
    plan = plan_from_document(view["plan"])
    assert (plan.policy, plan.blocking_power_w) == ("frontier", (70.0, 70.0))
    assert view["plan"]["solve_s"] > 0
    assert {each.frequency_mhz for stage in plan.stages for each in stage} <= {1410, 1200}
    assert planner.http.get(f"{PLANS}/1").json() == view
    answer = planner.http.put(TARGET, json={"policy": "baseline"})
    assert (answer.status_code, answer.json()["newest_version"]) == (200, 2)
    assert answer.json()["registration"]["policy"] == "baseline"
    old, new = planner.http.get(PLANS).json()
    assert old == view
    assert new["plan"]["saving_percent"] == 0


def test_a_tool_gives_a_budget_and_reads_planned_watts(planner: LivePlanner) -> None:
    planner.put_job()
    planner.put_profile()
    for rank, limit_w in enumerate((300.0, 250.0)):
        body = rank_registration(rank, conditions={"power_limit_w": limit_w})
        path = routes.fill(routes.RANK, job_id="job", rank=rank)
        planner.http.put(path, json=body).raise_for_status()
    planner.http.put(TARGET, json={"target": "power:450"}).raise_for_status()
    power = planner.http.get(routes.fill(routes.POWER, job_id="job")).json()
    assert (power["target"], power["version"], power["power_limit_w"]) == ("power:450", 2, 550.0)
    planned_w = [rank["planned_power_w"] for rank in power["ranks"]]
    assert sum(planned_w) == pytest.approx(power["planned_power_w"])
    assert 2 * 70 < power["planned_power_w"] <= 450
    assert [rank["power_limit_w"] for rank in power["ranks"]] == [300.0, 250.0]
    other = planner.http.get(routes.fill(routes.POWER, job_id="other"))
    assert other.status_code == 404
    bad = rank_registration(0, conditions={"power_limit_w": -1})
    answer = planner.http.put(routes.fill(routes.RANK, job_id="job", rank=0), json=bad)
    assert answer.status_code == 422
    assert "power_limit_w must be from 0" in answer.text
    unknown = rank_registration(0, conditions={"watts": 1})
    answer = planner.http.put(routes.fill(routes.RANK, job_id="job", rank=0), json=unknown)
    assert answer.status_code == 422


def test_a_frontier_is_of_the_jobs_effort_and_forgotten_when_that_changes(
    planner: LivePlanner, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[str] = []

    def noted(slowed: SlowedRequest, num_points: int) -> Frontier:
        found.append(slowed.request.options.effort)
        return make_slowed_frontier(slowed, num_points)

    monkeypatch.setattr(frontier, "make_slowed_frontier", noted)
    planner.put_planned_job()
    # Not high, which searches for half a minute however small the pipeline is.
    for change in ({}, {"target": "least-energy"}, {"effort": "low"}, {}, {"effort": "normal"}):
        planner.http.put(TARGET, json=change).raise_for_status()
        planner.http.get(FRONTIER, params={"points": 3}).raise_for_status()
    assert found == ["normal", "low", "normal"]


def test_a_rank_that_registers_the_job_again_does_not_wait_for_a_planning(
    planner: LivePlanner,
) -> None:
    planner.put_planned_job()
    # As whoever plans it has, for as long as that takes.
    with planner.state.services.store.lock("reconcile job"):
        answer = planner.http.put(JOB, json=registration(), timeout=20)
    assert (answer.status_code, answer.json()["newest_version"]) == (200, 1)
    # A new target is planned while a frontier is being found.
    with planner.state.services.store.lock(frontier_lock("job")):
        answer = planner.http.put(TARGET, json={"target": "least-energy"}, timeout=20)
    assert (answer.status_code, answer.json()["newest_version"]) == (200, 2)


def test_a_target_that_cannot_be_met_is_named_and_shown(planner: LivePlanner) -> None:
    planner.put_planned_job()
    answer = planner.http.put(TARGET, json={"target": "deadline:0.001"})
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["loc"] == "target"
    job = planner.http.get(JOB).json()
    assert job["state"] == "planning-failed"
    assert job["problem"].startswith("target: no plan takes 0.001 s; the fastest takes ")
    assert job["newest_version"] == 1


def test_ranks_run_a_plan_from_the_step_that_is_named(planner: LivePlanner) -> None:
    planner.put_planned_job()
    plan_path = routes.fill(routes.RANK_PLAN, job_id="job", rank=1)
    plan = planner.http.get(plan_path)
    assert plan.status_code == 200
    whole = planner.http.get(f"{PLANS}/1").json()["plan"]
    of_rank = plan.json()
    assert of_rank.pop("plan_id")
    kinds, clocks = ["forward", "backward"], sorted({row[2] for row in whole["stages"][1]})[::-1]
    assert of_rank == {
        "job_id": "job",
        "version": 1,
        "stage": 1,
        "first_step": None,
        "kinds": ["forward", "backward"],
        "sm_clocks_mhz": clocks,
        "instructions": [
            [kinds.index(kind), microbatch, 0, clocks.index(mhz)]
            for kind, microbatch, mhz in whole["stages"][1]
        ],
        "predicted_iteration_time_s": whole["iteration_time_s"],
        "cycle": [],
        "cycle_rows": [],
        "baseline_cycle": [],
        "measurement_detail": "totals",
        "num_timed_steps": 12,
        "requests": [],
        "pipeline": None,
    }
    assert planner.http.get(plan_path, params={"after_version": 1}).status_code == 204
    assert planner.acknowledge(1, 1, 10).json() == {"version": 1, "first_step": None}
    named = planner.acknowledge(0, 1, 11).json()
    # 2 and a second's steps of 0.92 s to come, rounded up.
    assert named == {"version": 1, "first_step": 15}
    assert planner.http.get(plan_path).json()["first_step"] == 15
    assert planner.http.get(JOB).json()["active_version"] == 1
    assert planner.http.get(f"{PLANS}/1/first-step").json() == named
    ranks = planner.http.get(JOB).json()["ranks"]
    registered = rank_registration(0)
    # The clocks of thousands of ranks are not shown with a job, nor which start they belong to.
    hidden = {"sm_clocks_mhz", "start_id"}
    shown = {name: value for name, value in registered.items() if name not in hidden}
    assert ranks[0].pop("last_seen_at") is not None
    assert ranks[0] == {
        **shown,
        "rank": 0,
        "acknowledged_version": 1,
        "current_step": 11,
        "has_left": False,
        "no_clocks": None,
    }
    again = planner.http.put(routes.fill(routes.RANK, job_id="job", rank=0), json=registered)
    assert again.status_code == 200
    assert again.json()["acknowledged_version"] is None
