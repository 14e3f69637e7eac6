"""`/metrics` and `/readyz` of a live planner: complete, well-formed, documented, bounded."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import trustme
from prometheus_client.core import Metric
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as parse_openmetrics,
)
from prometheus_client.parser import text_string_to_metric_families as parse_text
from tests.planner.disks import small_disk_at
from tests.planner.live import LivePlanner, live_planner
from tests.planner.patience import PATIENCE_S, wait_until
from tests.planner.stores import HaltingStore

from flyball_server.http.readiness import WritingCheck
from flyball_server.http.routes.health import OPENMETRICS
from flyball_server.jobs.reconcile.plans import PlanReconciler
from flyball_server.jobs.store.sqlite.sqlite_store import SqliteJobStore
from flyball_wire import routes
from flyball_wire.messages import TOKEN_HEADER

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"
TOKEN = "operator's"  # noqa: S105 - a test's
# Base units of Prometheus that ours may have, and what says that there is none.
UNITS = ("_seconds", "_joules", "_hertz", "_bytes", "_ratio", "_info")
WITHOUT_UNIT = re.compile(
    r"flyball_(jobs|jobs_behind|ranks_\w+|stragglers|registrations_refused|plan_\w+_version|store_readable|long_polls_waiting)"
)
# With values in tests/unit/server/test_announced_work.py: of a job that announces its steps.
OF_ANNOUNCED_STEPS = "flyball_own_plan_"
PLANNED = "/api/v1/jobs/{job_id}/profile"


@pytest.fixture(scope="module")
def planner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LivePlanner]:
    """With a job that has all that a metric tells of: measured steps, a baseline, a long poll."""
    chain = tmp_path_factory.mktemp("tls") / "chain.pem"
    trustme.CA().issue_cert("planner.example").cert_chain_pems[0].write_to_path(str(chain))
    # Named only: the test's own server answers without TLS.
    with live_planner(tls_certificate=str(chain), tls_key=str(chain)) as live:
        live.put_planned_job()
        for rank in (0, 1):
            live.acknowledge(rank, 1, 3).raise_for_status()
        for rank in (0, 1):
            baseline = {"energy_j": 200.0, "sm_clock_mhz": 1400.0}
            live.post_steps(rank, *range(50, 60, 2), **baseline)
            live.post_steps(rank, *range(51, 60, 2), num_clock_misses=1, **baseline)
            planned = {"energy_j": 190.0, "sm_clock_mhz": 1200.0, "plan_version": 1}
            live.post_steps(rank, *range(60, 70), **planned)
        yield live


def families(planner: LivePlanner) -> dict[str, Metric]:
    """Return what is told, by name; read by Prometheus's own rules."""
    text = planner.http.get(routes.METRICS).raise_for_status().text
    return {family.name: family for family in parse_text(text)}


def test_the_metrics_are_those_documented_with_their_type_and_labels(planner: LivePlanner) -> None:
    rows = re.findall(r"^\| `([a-z_]+)` \| (\w+) \| ([^|]*)\|", PAGE.read_text(), re.MULTILINE)
    told = families(planner)
    documented = {name for name, _, _ in rows}
    assert {name.removesuffix("_total") for name in documented} == {
        name.removesuffix("_total") for name in told
    }
    for name, kind, labels in rows:
        family = told.get(name) or told[name.removesuffix("_total")]
        assert family.type == kind, name
        if name.startswith(OF_ANNOUNCED_STEPS):
            continue
        assert family.samples, f"{name} has no value in this test"
        found = set().union(*(sample.labels for sample in family.samples)) - {"le"}
        assert found == set(re.findall(r"`(\w+)`", labels)), name


def test_names_keep_to_the_rules_of_prometheus(planner: LivePlanner) -> None:
    for family in families(planner).values():
        name = family.name
        if family.name.startswith("process_"):
            continue
        assert re.fullmatch(r"flyball_[a-z]+(_[a-z]+)*", name), name
        assert family.documentation.strip(), name
        assert not name.endswith(("_count", "_sum", "_bucket", "_total", "_created")), name
        assert not re.search(r"_(ms|milliseconds|minutes|mj|kwh|percent|mhz|watts)", name), name
        labels = set().union(*(sample.labels for sample in family.samples))
        # Prometheus sets them at a scrape, and renames a metric's own.
        assert not labels & {"job", "instance"}, name
        if family.type == "counter":
            continue
        assert name.endswith(UNITS) or WITHOUT_UNIT.fullmatch(name), name


def test_both_formats_tell_the_same(planner: LivePlanner) -> None:
    as_text = planner.http.get(routes.METRICS)
    assert as_text.headers["content-type"].startswith("text/plain; version=0.0.4")
    accept = f"{OPENMETRICS};version=1.0.0;q=0.6,text/plain;version=0.0.4;q=0.3"
    as_openmetrics = planner.http.get(routes.METRICS, headers={"Accept": accept})
    assert as_openmetrics.headers["content-type"].startswith(f"{OPENMETRICS}; version=1.0.0")
    families_of = parse_openmetrics(as_openmetrics.text)  # type: ignore[no-untyped-call]
    parsed = {family.name for family in families_of}
    for odd in (b"", b"*/*", b"text/html", b"text/plain;version=\xff"):
        assert planner.http.get(routes.METRICS, headers={b"Accept": odd}).status_code == 200
    assert parsed == {name.removesuffix("_total") for name in families(planner)}
    assert "_created" not in as_text.text + as_openmetrics.text


def test_calls_are_told_by_route_and_no_name_is_a_label(planner: LivePlanner) -> None:
    for path in ("/api/v1/jobs/a-strangers-job", "/wp-login.php", "/api/v1/jobs/a%20b/x"):
        planner.http.get(path)
    planner.http.request("BREW", routes.HEALTH)
    calls = families(planner)["flyball_http_request_duration_seconds"].samples
    known = {routes.HEALTH, *planner.app.openapi()["paths"]}
    for call in calls:
        assert call.labels["route"] in known | {"none"}
        assert call.labels["method"] in {"GET", "PUT", "POST", "DELETE", "other"}
        assert re.fullmatch(r"[1-5]xx", call.labels["status"])
    counts = {
        (call.labels["method"], call.labels["route"], call.labels["status"])
        for call in calls
        if call.name.endswith("_count")
    }
    assert ("PUT", PLANNED, "2xx") in counts
    assert ("GET", "/api/v1/jobs/{job_id}", "4xx") in counts
    assert ("GET", "none", "4xx") in counts


def test_a_long_poll_that_waits_is_told(planner: LivePlanner) -> None:
    path = routes.fill(routes.RANK_PLAN, job_id="job", rank=0)
    target = routes.fill(routes.TARGET, job_id="job")

    def waiting() -> float:
        return families(planner)["flyball_long_polls_waiting"].samples[0].value

    assert waiting() == 0
    with ThreadPoolExecutor(1) as threads:
        query = {"after_version": "1", "wait_s": "60"}
        poll = threads.submit(planner.http.get, path, params=query)
        wait_until(lambda: waiting() == 1)
        planner.http.put(target, json={"target": "slowdown:0.1"}).raise_for_status()
        assert poll.result(PATIENCE_S).status_code == 200
    wait_until(lambda: waiting() == 0)


def test_solves_are_told_by_policy_and_outcome() -> None:
    with live_planner(reconcilers=(PlanReconciler(),)) as planner:
        planner.put_planned_job()
        impossible = planner.http.put(
            routes.fill(routes.TARGET, job_id="job"), json={"target": "deadline:0.001"}
        )
        assert impossible.status_code == 422
        solves = families(planner)["flyball_solve_duration_seconds"].samples
        counts = {
            (solve.labels["policy"], solve.labels["outcome"]): solve.value
            for solve in solves
            if solve.name.endswith("_count")
        }
    assert counts == {("frontier", "planned"): 1, ("frontier", "failed"): 1}


def test_a_planner_whose_store_fails_is_alive_and_not_ready() -> None:
    store = HaltingStore()
    with live_planner(store=store, token=TOKEN, metrics_open=True) as planner:
        # Metrics are open, and nothing else is.
        assert planner.http.get(routes.METRICS).status_code == 200
        assert planner.http.get(routes.JOBS).status_code == 401
        planner.http.headers[TOKEN_HEADER] = TOKEN  # of the settings: no look at the store
        store.fails = True
        answer = planner.http.get(routes.READY)
        assert answer.status_code == 503
        assert "the job store is not available" in answer.json()["detail"]
        assert planner.http.get(routes.HEALTH).status_code == 200
        told = families(planner)
        assert told["flyball_store_readable"].samples[0].value == 0
        errors = told["flyball_store_errors"].samples
        assert next(e.value for e in errors if e.labels.get("kind") == "unavailable") > 0
        store.fails = False
        assert planner.http.get(routes.READY).status_code == 200


def test_a_planner_with_a_full_disk_is_not_ready_until_there_is_room_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    each_time = functools.partial(WritingCheck, period_s=0.0, full_s=0.0)
    monkeypatch.setattr("flyball_server.app.WritingCheck", each_time)
    path = routes.fill(routes.RANK_MEASUREMENTS, job_id="job", rank=0)
    with (
        small_disk_at(tmp_path / "disk", 4) as disk,
        live_planner(store=SqliteJobStore(disk.folder / "planner.sqlite")) as planner,
    ):
        planner.put_planned_job()
        assert planner.http.get(routes.READY).status_code == 200
        with disk.filled():
            for step in range(20):
                # Some are stored: in what the write-ahead log has of room.
                measured = [{"step": step, "plan_version": 1, "time_s": 1.0, "energy_j": 1.0}]
                stored = planner.http.post(path, json={"steps": measured})
                assert stored.status_code in {200, 503}
                answer = planner.http.get(routes.READY)
                assert answer.status_code == 503
            assert "writing to the job store is not available" in answer.json()["detail"]
            assert planner.http.get(routes.HEALTH).status_code == 200
            assert planner.http.get(routes.JOBS).status_code == 200
        assert planner.http.get(routes.READY).status_code == 200
        planner.http.post(path, json={"steps": measured}).raise_for_status()
