"""A planner whose database was restored to an older state, with ranks that run newer plans."""

from __future__ import annotations

import logging
import shutil
import sqlite3
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.planner.linked_rank import LinkedRank
from tests.planner.live import LivePlanner, ServeProcess, serve_process
from tests.planner.patience import wait_until

from flyball_wire import routes


def change_target(planner: ServeProcess, target: str) -> int:
    """The version of its plan."""
    path = routes.fill(routes.TARGET, job_id="job")
    answer = planner.http.put(path, json={"target": target}).raise_for_status()
    version: int = answer.json()["newest_version"]
    return version


def steps_of(planner: ServeProcess) -> dict[int, dict[str, Any]]:
    answer = planner.http.get(routes.fill(routes.STEPS, job_id="job")).raise_for_status()
    return {each["step"]: each for each in answer.json()}


def test_ranks_of_a_restored_planner_post_on_and_come_onto_its_newest_plan(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    database, backup = tmp_path / "planner.sqlite", tmp_path / "backup.sqlite"
    caplog.set_level(logging.WARNING, logger="flyball_client")
    with ExitStack() as training:
        with serve_process(database) as planner:
            port = planner.http.base_url.port
            assert port is not None
            planner.put_job().raise_for_status()
            planner.put_profile().raise_for_status()
            ranks = [LinkedRank(f"http://127.0.0.1:{port}", rank) for rank in (0, 1)]
            for rank in ranks:
                training.callback(rank.close)
            wait_until(lambda: all(rank.activated for rank in ranks))
            with closing(sqlite3.connect(database)) as old, closing(sqlite3.connect(backup)) as new:
                old.backup(new)
            assert change_target(planner, "slowdown:0.1") == 2
            wait_until(lambda: all(rank.activated[-1].version == 2 for rank in ranks))
        lost = [rank.activated[-1] for rank in ranks]
        for file in tmp_path.glob("planner.sqlite*"):
            file.unlink()
        shutil.copy(backup, database)
        caplog.clear()
        with serve_process(database, "--port", str(port)) as planner:
            # Another plan gets the number of the one that the ranks still run.
            assert change_target(planner, "least-energy") == 2
            for rank, plan in zip(ranks, lost, strict=True):
                rank.measure(7, plan)
            wait_until(
                lambda: all(
                    rank.activated[-1].version == 2 and rank.activated[-1] not in lost
                    for rank in ranks
                )
            )
            for rank in ranks:
                rank.measure(8, rank.activated[-1])
            wait_until(lambda: steps_of(planner).get(8, {}).get("num_ranks") == 2)
            found = steps_of(planner)
            report = planner.http.get(routes.fill(routes.REPORT, job_id="job")).json()
        assert (found[7]["plan_versions"], found[7]["unknown_versions"]) == ([], [2])
        assert (found[8]["plan_versions"], found[8]["unknown_versions"]) == ([2], [])
        assert (report["num_steps"], report["num_unknown_steps"]) == (1, 1)
        assert [rank.link.outbox.num_dropped for rank in ranks] == [0, 0]
        logged = [record.getMessage() for record in caplog.records]
        assert not [line for line in logged if "planner lost" not in line], logged


def post(http: httpx.Client, *steps: dict[str, Any], rank: int = 0) -> httpx.Response:
    path = routes.fill(routes.RANK_MEASUREMENTS, job_id="job", rank=rank)
    body = [{"step": 0, "time_s": 0.5, "energy_j": 1.0, **step} for step in steps]
    return http.post(path, json={"steps": body})


def test_steps_on_an_unknown_plan_are_shown_by_stages_and_counted_as_nothing(
    planner: LivePlanner,
) -> None:
    planner.put_planned_job()

    def shown(route: str) -> Any:  # noqa: ANN401 - JSON
        return planner.http.get(routes.fill(route, job_id="job")).raise_for_status().json()

    # A version that never was is refused in one line, and nothing stored.
    refused = post(planner.http, {"plan_version": 1}, {"step": 1, "plan_version": 99})
    assert refused.status_code == 422
    detail = refused.json()["detail"]
    assert "no such plan version" in detail
    assert "newest: 1" in detail
    assert "\n" not in detail
    assert shown(routes.STEPS) == []
    assert post(planner.http, {"plan_version": 99}, rank=7).status_code == 404
    rank_plan = routes.fill(routes.RANK_PLAN, job_id="job", rank=0)
    plan_id = planner.http.get(rank_plan).json()["plan_id"]
    for rank in (0, 1):
        steps = [{"step": 1, "plan_version": 1, "plan_id": "of-another-database"}]
        steps += [{"step": step, "plan_version": 1, "plan_id": plan_id} for step in (2, 3)]
        post(planner.http, *steps, rank=rank).raise_for_status()
    by_stages = shown(routes.STAGES_OF_STEPS)
    assert [each["unknown_versions"] for each in by_stages] == [[1], [], []]
    assert [each["plan_versions"] for each in by_stages] == [[], [1], [1]]
    report = shown(routes.REPORT)
    assert (report["num_steps"], report["time_s"], report["num_unknown_steps"]) == (2, 1.0, 1)
    overview = shown(routes.JOB_OVERVIEW)
    assert (overview["num_steps"], overview["num_unknown_steps"]) == (2, 1)
    # The step again, on a plan that is known.
    for rank in (0, 1):
        post(planner.http, {"step": 1, "plan_version": 1, "plan_id": plan_id}, rank=rank)
    report = shown(routes.REPORT)
    assert (report["num_steps"], report["num_unknown_steps"]) == (3, 0)
