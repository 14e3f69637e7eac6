"""Overviews over HTTP: every job in a row, or one, measured and predicted apart."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from tests.planner.live import LivePlanner, live_planner
from tests.planner.patience import PATIENCE_S, wait_until

from flyball_server.jobs.reconcile.plans import PlanReconciler
from flyball_server.jobs.records import JobRecord
from flyball_server.jobs.store.sql.job_reader import JobReader
from flyball_wire import routes
from flyball_wire.codec import decode
from flyball_wire.read_models import JobOverview, Overview

JOB = routes.fill(routes.JOB, job_id="job")


def overview_of(planner: LivePlanner, job_id: str = "job") -> JobOverview:
    answer = planner.http.get(routes.fill(routes.JOB_OVERVIEW, job_id=job_id))
    return decode(JobOverview, answer.raise_for_status().json())


def everything(planner: LivePlanner) -> tuple[JobOverview, ...]:
    return decode(Overview, planner.http.get(routes.OVERVIEW).raise_for_status().json()).jobs


def test_a_job_that_waits_for_all_has_nothing_measured_and_nothing_predicted(
    planner: LivePlanner,
) -> None:
    planner.put_job().raise_for_status()
    shown = overview_of(planner)
    assert (shown.state, shown.emulated) == ("awaiting-profile", True)
    assert (shown.num_stages, shown.num_microbatches, shown.schedule) == (2, 2, "1f1b")
    assert (shown.num_ranks, shown.num_registered, shown.num_present) == (2, 0, 0)
    assert (shown.newest_version, shown.active_version) == (None, None)
    assert (shown.policy, shown.target) == ("frontier", "fastest")
    assert (shown.predicted, shown.measured, shown.saved_j) == (None, None, None)
    assert (shown.num_steps, shown.is_caught_up, shown.problem) == (0, True, None)
    assert shown.last_seen_at == shown.created_at
    assert everything(planner) == (shown,)
    # All jobs follow within a moment.
    planner.put_job("b").raise_for_status()
    wait_until(lambda: [job.job_id for job in everything(planner)] == ["b", "job"])


def test_what_is_predicted_is_the_plans_and_what_is_measured_the_ranks(
    planner: LivePlanner,
) -> None:
    planner.put_planned_job()
    for rank in (0, 1):
        planner.acknowledge(rank, 1, 3).raise_for_status()
    for rank in (0, 1):
        planner.post_steps(rank, *range(50, 60), energy_j=200.0)
        planner.post_steps(rank, *range(60, 70), plan_version=1, energy_j=190.0)
    shown = overview_of(planner)
    plan = planner.http.get(routes.fill(routes.PLAN, job_id="job", version=1)).json()["plan"]
    assert shown.predicted is not None
    assert shown.predicted.energy_j == plan["energy_j"]
    assert shown.predicted.baseline_energy_j == plan["baseline"]["energy_j"]
    assert shown.predicted.saving_percent == pytest.approx(plan["saving_percent"])
    assert shown.predicted.saving_sources is not None
    assert shown.measured is not None
    assert (shown.measured.clocks, shown.measured.version) == ("plan", 1)
    assert (shown.measured.first_step, shown.measured.last_step) == (60, 69)
    assert (shown.measured.num_steps, shown.measured.energy_j) == (10, 380.0)
    # Ten steps each at 400 J and 380 J, without the first of either kind.
    assert shown.measured_baseline_energy_j is not None
    assert shown.measured_baseline_energy_j.mean == 400.0
    assert shown.saving_percent is not None
    assert shown.saving_percent.mean == pytest.approx(5.0)
    assert shown.slowdown_percent is not None
    assert shown.slowdown_percent.mean == pytest.approx(0.0)
    assert shown.saved_j is not None
    assert shown.saved_j.mean == pytest.approx(9 * 20.0)
    report = planner.http.get(f"{JOB}/report").json()
    answer = planner.http.get(f"{JOB}/overview").json()
    assert answer["saved_j"] == report["saved_j"]
    version = report["versions"][-1]
    for name, of_version in (
        ("measured_baseline_time_s", "baseline_time_s"),
        ("measured_baseline_energy_j", "baseline_energy_j"),
        ("slowdown_percent", "slowdown_percent"),
        ("saving_percent", "saving_percent"),
    ):
        assert answer[name] == version[of_version], name


def test_one_job_is_shown_as_it_is_now_though_metrics_have_no_label_for_it() -> None:
    with live_planner(metrics_jobs=0) as planner:
        planner.put_planned_job()
        for num_steps in (1, 2):
            planner.post_steps(0, num_steps)
            planner.post_steps(1, num_steps)
            assert overview_of(planner).num_steps == num_steps
        planner.http.put(f"{JOB}/target", json={"target": "slowdown:0.1"}).raise_for_status()
        shown = overview_of(planner)
        assert (shown.newest_version, shown.target) == (2, "slowdown:0.1")


def test_many_who_ask_at_once_share_one_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    may_list, list_jobs = threading.Event(), JobReader.list_jobs
    readings: list[JobReader] = []

    def counted(reader: JobReader) -> tuple[JobRecord, ...]:
        readings.append(reader)
        may_list.wait(PATIENCE_S)
        return list_jobs(reader)

    with (
        live_planner(reconcilers=(PlanReconciler(),)) as planner,
        ThreadPoolExecutor(20) as threads,
        httpx.Client(base_url=planner.http.base_url, timeout=PATIENCE_S) as http,
    ):
        planner.put_job().raise_for_status()
        monkeypatch.setattr(JobReader, "list_jobs", counted)
        try:
            asked = [threads.submit(http.get, routes.OVERVIEW) for _ in range(20)]
            wait_until(lambda: len(readings) == 1)
            # Those who wait take no thread that others need.
            assert planner.http.get(f"{JOB}/plans").json() == []
        finally:
            may_list.set()
        answers = [each.result(PATIENCE_S).json() for each in asked]
        assert {job["job_id"] for answer in answers for job in answer["jobs"]} == {"job"}
        assert len(readings) <= 3
