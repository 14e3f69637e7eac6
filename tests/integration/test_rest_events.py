"""Live events over HTTP: the current state, changes, and the end of a stream."""

from __future__ import annotations

import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.planner.listening import Listener, listening, parse_events
from tests.planner.live import LivePlanner, live_planner, serve_process
from tests.planner.patience import PATIENCE_S, wait_until
from tests.planner.samples import registration
from tests.planner.stores import HaltingStore

from flyball_server.http import dependencies
from flyball_server.jobs.auth.access import create_token
from flyball_server.jobs.reconcile.plans import PlanReconciler
from flyball_server.jobs.store.postgres.postgres_store import PostgresJobStore
from flyball_wire import routes
from flyball_wire.messages import TOKEN_HEADER

JOB = routes.fill(routes.JOB, job_id="job")
EVENTS = routes.fill(routes.JOB_EVENTS, job_id="job")
TARGET = routes.fill(routes.TARGET, job_id="job")
LONG: dict[str, Any] = {"wait_s": 500}
AT_ONCE = {"wait_s": "0"}


def first_steps(
    planner: LivePlanner, headers: dict[str, str] | None = None, **query: int
) -> list[int]:
    """Return the numbers of the steps at the beginning of a stream."""
    params = {"wait_s": 0, **query}
    answer = planner.http.get(EVENTS, params=params, headers=headers).raise_for_status()
    sent = [event.data for event in parse_events(answer.text) if event.name == "steps"]
    return [step["step"] for steps in sent for step in steps]


def names(listener: Listener) -> list[str]:
    return [event.name for event in listener.events]


# ------------------------------------------------------------------ current state


def test_a_stream_of_no_time_sends_the_current_state_and_ends(planner: LivePlanner) -> None:
    planner.put_planned_job()
    for rank in (0, 1):
        planner.acknowledge(rank, 1, 3).raise_for_status()
        planner.post_steps(rank, 0, 1)
    answer = planner.http.get(EVENTS, params=AT_ONCE)
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["x-accel-buffering"] == "no"
    assert answer.text.startswith("retry: 1000\n\n")
    events = {event.name: event for event in parse_events(answer.text)}
    states = ["notes", "timetable", "history", "stragglers", "comparison"]
    assert list(events) == ["overview", *states, "steps"]
    assert events.pop("notes").data == planner.http.get(JOB).json()["notes"]
    for name, event in events.items():
        path = "steps/stages" if name == "steps" else name
        data, called = event.data, planner.http.get(f"{JOB}/{path}").json()
        if name == "overview":
            data, called = data | {"last_seen_at": None}, called | {"last_seen_at": None}
        assert data == called, name
    assert events["steps"].event_id == "1"
    wait_until(lambda: planner.state.live_events.num_followed == 0)
    waiters = planner.state.waiters
    assert (waiters.num_waiting, waiters.num_at_once) == (0, 0)


# ------------------------------------------------------------------ changes


def test_a_change_is_sent_at_once_and_only_once(planner: LivePlanner) -> None:
    with listening(planner.http, routes.EVENTS, **LONG) as all_jobs:
        assert all_jobs.wait_for("overview") == {"jobs": []}
        planner.put_planned_job()
        all_jobs.wait_for(
            "overview", lambda data: [job["num_registered"] for job in data["jobs"]] == [2]
        )
        assert set(names(all_jobs)) == {"overview"}
    notes = planner.http.get(JOB).json()["notes"]
    assert notes
    with listening(planner.http, EVENTS, **LONG) as listener:
        listener.wait_for("notes", lambda sent: sent == notes)
        listener.wait_for("comparison")
        planner.http.put(TARGET, json={"policy": "uniform"}).raise_for_status()
        listener.wait_for("history", lambda data: len(data) == 2)
        listener.wait_for("overview", lambda data: data["newest_version"] == 2)
        for rank in (0, 1):
            planner.acknowledge(rank, 2, 3).raise_for_status()
        listener.wait_for("history", lambda data: data[-1]["first_step"] is not None)
        assert "steps" not in names(listener)
        assert (names(listener).count("stragglers"), names(listener).count("comparison")) == (1, 1)
        windows = [{"from_time": "00:00", "until_time": "06:00", "target": "fastest"}]
        path = routes.fill(routes.TIMETABLE, job_id="job")
        planner.http.put(path, json={"timezone": "UTC", "windows": windows}).raise_for_status()
        listener.wait_for("timetable", lambda status: status["timetable"] is not None)
    # A stream of a deleted job ends.
    planner.put_job("other").raise_for_status()
    other = routes.fill(routes.JOB_EVENTS, job_id="other")
    with listening(planner.http, other, **LONG) as listener:
        listener.wait_for("comparison")
        planner.http.delete(routes.fill(routes.JOB, job_id="other")).raise_for_status()
        wait_until(lambda: listener.is_over)
        assert names(listener)[-1] == "gone"
        assert listener.named("gone") == [{}]


def test_steps_are_sent_when_posted_and_again_when_complete(planner: LivePlanner) -> None:
    planner.put_planned_job()
    with listening(planner.http, EVENTS, **LONG) as listener:
        listener.wait_for("overview")
        planner.post_steps(0, 0, 1)
        listener.wait_for("steps", lambda steps: steps[-1]["step"] == 1)
        planner.post_steps(1, 0)
        whole = listener.wait_for("steps", lambda steps: steps[0]["num_ranks"] == 2)
        assert [(step["step"], step["energy_j"]) for step in whole] == [(0, 200.0)]
        planner.post_steps(1, 1, 2)
        planner.post_steps(0, 2)
        listener.wait_for("steps", lambda s: (s[-1]["step"], s[-1]["num_ranks"]) == (2, 2))
        last = [told for told in listener.events if told.name == "steps"][-1]
        assert last.event_id == "2"
        # A complete step is not sent again.
        assert sum(step["step"] == 0 for sent in listener.named("steps") for step in sent) == 2
        listener.wait_for("overview", lambda data: data["num_steps"] == 3)


def test_a_client_that_reconnects_gets_the_steps_it_missed(planner: LivePlanner) -> None:
    planner.put_planned_job()
    for rank in (0, 1):
        planner.post_steps(rank, *range(300))
    assert first_steps(planner) == [*range(100, 300)]
    assert first_steps(planner, num_steps=250) == [*range(50, 300)]
    assert first_steps(planner, num_steps=2000, after_step=20) == [*range(21, 300)]
    assert first_steps(planner, after_step=299) == first_steps(planner, after_step=999) == []
    # A stream that goes on has sent them; 999 is of a longer run of the job.
    for last_id in ("203", "299", "999"):
        back = first_steps(planner, {"Last-Event-ID": last_id}, after_step=202, num_steps=2000)
        assert back == [*range(100, 300)]
    with listening(planner.http, EVENTS, num_steps=2000, **LONG) as listener:
        listener.wait_for("steps", lambda steps: len(steps) == 300)
        planner.post_steps(0, 300)
        listener.wait_for("steps", lambda steps: [each["step"] for each in steps] == [300])
        assert [len(sent) for sent in listener.named("steps")] == [300, 1]
    answer = planner.http.get(EVENTS, headers={"Last-Event-ID": "x"})
    assert answer.status_code == 422
    assert "\n" not in answer.json()["detail"]
    wait_until(lambda: planner.state.waiters.num_waiting == 0)


def test_pairs_of_a_comparison_that_begins_during_a_stream_are_sent(planner: LivePlanner) -> None:
    """The comparison's version exists before its first step is agreed."""
    planner.put_planned_job()
    for rank in (0, 1):
        planner.acknowledge(rank, 1, 0).raise_for_status()
    with listening(planner.http, EVENTS, **LONG) as listener:
        listener.wait_for("comparison")
        planner.http.put(f"{JOB}/comparison", json={"num_pairs": 50}).raise_for_status()
        listener.wait_for("comparison", lambda data: data["version"] == 2)
        for rank in (0, 1):
            activation = planner.acknowledge(rank, 2, 4).raise_for_status().json()
        first = activation["first_step"]
        for rank in (0, 1):
            planner.post_steps(rank, *range(first, first + 60), plan_version=2)
        told = listener.wait_for("comparison", lambda data: data["num_measured_pairs"] > 0)
        assert told == planner.http.get(f"{JOB}/comparison").json()
        assert told["state"] == "running"


# ------------------------------------------------------------------ end


def test_sigterm_ends_a_planner_with_an_open_stream(tmp_path: Path) -> None:
    with serve_process(tmp_path / "planner.sqlite") as served:
        served.http.put(JOB, json=registration()).raise_for_status()
        with listening(served.http, EVENTS) as listener:
            listener.wait_for("overview")
            status, errors = served.end(signal.SIGTERM)
            wait_until(lambda: listener.is_over)
        assert status == 0
        assert "Traceback" not in errors


# ------------------------------------------------------------------ refusals and failures


def test_streams_beyond_the_limit_are_a_503(monkeypatch: pytest.MonkeyPatch) -> None:
    """Streams of no time have a limit of their own."""
    monkeypatch.setattr(dependencies, "MAX_SNAPSHOTS", 1)
    store = HaltingStore()
    with (
        live_planner(
            store=store, max_waiting=1, max_wait_s=600, reconcilers=(PlanReconciler(),)
        ) as planner,
        ThreadPoolExecutor(1) as threads,
    ):
        planner.put_planned_job()
        waiters = planner.state.waiters
        with listening(planner.http, EVENTS) as listener:
            listener.wait_for("overview")
            for path in (EVENTS, routes.EVENTS):
                answer = planner.http.get(path, params={"wait_s": "0.05"})
                assert answer.status_code == 503
                assert answer.headers["Retry-After"] == "5"
                text = planner.http.get(path, params=AT_ONCE).raise_for_status().text
                assert parse_events(text)[0].name == "overview"
        wait_until(lambda: waiters.num_waiting == 0)
        store.may_read.clear()
        held = threads.submit(planner.http.get, EVENTS, params=AT_ONCE)
        wait_until(lambda: waiters.num_at_once == 1)
        for path in (EVENTS, routes.EVENTS):
            assert planner.http.get(path, params=AT_ONCE).status_code == 503
        assert waiters.num_waiting == 0
        store.may_read.set()
        assert held.result(PATIENCE_S).status_code == 200
        assert planner.http.get(routes.EVENTS, params=AT_ONCE).status_code == 200


def test_a_store_that_fails_is_reported_once_and_the_stream_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = HaltingStore()
    with live_planner(store=store, max_wait_s=600, reconcilers=(PlanReconciler(),)) as planner:
        planner.put_planned_job()
        with listening(planner.http, EVENTS) as listener:
            listener.wait_for("comparison")
            store.fails = True
            problem = listener.wait_for("trouble")
            assert "job store is not available" in problem["detail"]
            # What is read quickly may be read a moment later than what failed first.
            wait_until(lambda: planner.http.get(EVENTS, params=AT_ONCE).status_code == 503)
            store.fails = False
            wait_until(lambda: "overview" in names(listener)[names(listener).index("trouble") :])
            assert names(listener).count("trouble") == 1
    assert "Traceback" not in caplog.text


def test_a_token_opens_the_events_of_its_jobs_only() -> None:
    with live_planner(token="t", max_wait_s=600) as planner:  # noqa: S106 - a test's
        token = create_token(planner.state.services.store, job_id="job", has_operator=True)[1]
        planner.http.headers[TOKEN_HEADER] = "t"
        for job_id in ("job", "other"):
            planner.put_job(job_id).raise_for_status()
        answer = httpx.get(planner.http.base_url.join(routes.EVENTS), timeout=PATIENCE_S)
        assert answer.status_code == 401
        planner.http.headers[TOKEN_HEADER] = token
        text = planner.http.get(routes.EVENTS, params=AT_ONCE).text
        assert [job["job_id"] for job in parse_events(text)[0].data["jobs"]] == ["job"]
        assert planner.http.get(EVENTS, params=AT_ONCE).status_code == 200
        others = routes.fill(routes.JOB_EVENTS, job_id="other")
        assert planner.http.get(others, params=AT_ONCE).status_code == 403


def test_changes_of_another_planner_on_the_database_are_sent(postgres_database: str) -> None:
    with (
        live_planner(store=PostgresJobStore(postgres_database), max_wait_s=600) as one,
        live_planner(store=PostgresJobStore(postgres_database), max_wait_s=600) as other,
    ):
        one.put_planned_job()
        with listening(other.http, EVENTS) as listener:
            listener.wait_for("comparison")
            one.http.put(TARGET, json={"policy": "uniform"}).raise_for_status()
            listener.wait_for("history", lambda data: len(data) == 2)
            one.post_steps(0, 7)
            listener.wait_for("steps", lambda steps: steps[0]["step"] == 7)
