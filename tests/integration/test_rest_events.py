"""Live events over HTTP: what there is, what changes, and how a stream ends."""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import httpx
import pytest
from tests.planner.listening import Listener, listening, parse_events
from tests.planner.live import LivePlanner, live_planner, serve_process
from tests.planner.patience import PATIENCE_S, wait_until
from tests.planner.samples import registration
from tests.planner.stores import TemporaryJobStore

from flyball_profiles.stage_profile import StageProfile
from flyball_server.http import dependencies
from flyball_server.jobs.auth.access import create_token
from flyball_server.jobs.errors import StoreBusyError
from flyball_server.jobs.records import PlanRecord
from flyball_server.jobs.store.postgres.postgres_store import PostgresJobStore
from flyball_server.views import history
from flyball_server.views.history import summary_of
from flyball_wire import routes
from flyball_wire.closed_loop import ComparisonStatus, Straggler
from flyball_wire.codec import decode, decode_list
from flyball_wire.messages import TOKEN_HEADER
from flyball_wire.read_models import JobOverview, Overview, PlanSummary, StagesOfStep

JOB = routes.fill(routes.JOB, job_id="job")
EVENTS = routes.fill(routes.JOB_EVENTS, job_id="job")
TARGET = routes.fill(routes.TARGET, job_id="job")
LONG: dict[str, Any] = {"wait_s": 500}


@pytest.fixture
def planner() -> Iterator[LivePlanner]:
    with live_planner(max_wait_s=600) as live:
        yield live


def post(planner: LivePlanner, rank: int, *steps: int, job_id: str = "job", **changes: Any) -> None:  # noqa: ANN401 - JSON values
    """A rank has measured these steps, 100 J each."""
    path = routes.fill(routes.RANK_MEASUREMENTS, job_id=job_id, rank=rank)
    measured = {"plan_version": None, "time_s": 0.9, "energy_j": 100.0, **changes}
    body = {"steps": [{"step": step, **measured} for step in steps]}
    planner.http.post(path, json=body).raise_for_status()


def told_steps(listener: Listener) -> list[list[int]]:
    """The numbers of the steps of each event so far."""
    return [[step["step"] for step in data] for data in listener.named("steps")]


def first_steps(
    planner: LivePlanner, headers: dict[str, str] | None = None, **query: int
) -> list[dict[str, Any]]:
    """The steps that a stream begins with."""
    params = {"wait_s": 0, **query}
    answer = planner.http.get(EVENTS, params=params, headers=headers).raise_for_status()
    told = [event.data for event in parse_events(answer.text) if event.name == "steps"]
    return told[0] if told else []


def numbers_of(steps: list[dict[str, Any]]) -> list[int]:
    return [step["step"] for step in steps]


def names(listener: Listener) -> list[str]:
    return [told.name for told in listener.events]


# ------------------------------------------------------------------ what there is


def test_a_stream_of_no_time_tells_what_there_is_and_ends(planner: LivePlanner) -> None:
    planner.put_planned_job()
    for rank in (0, 1):
        post(planner, rank, 0, 1)
    answer = planner.http.get(EVENTS, params={"wait_s": "0"})
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["x-accel-buffering"] == "no"
    assert answer.text.startswith("retry: 1000\n\n")
    events = {told.name: told for told in parse_events(answer.text)}
    assert list(events) == ["overview", "history", "stragglers", "comparison", "steps"]
    assert decode(JobOverview, events["overview"].data).newest_version == 1
    assert decode_list(PlanSummary, events["history"].data)[0].version == 1
    assert decode_list(Straggler, events["stragglers"].data) == ()
    assert decode(ComparisonStatus, events["comparison"].data).state == "none"
    assert [step.step for step in decode_list(StagesOfStep, events["steps"].data)] == [0, 1]
    assert events["steps"].event_id == "1"
    wait_until(lambda: planner.state.live_events.num_followed == 0)
    waiters = planner.state.waiters
    assert (waiters.num_waiting, waiters.num_at_once) == (0, 0)


def test_events_say_what_the_calls_of_the_same_name_do(planner: LivePlanner) -> None:
    planner.put_planned_job()
    for rank in (0, 1):
        planner.acknowledge(rank, 1, 3).raise_for_status()
        post(planner, rank, *range(12), num_clock_misses=2, num_thermally_capped=1)
    straggler = {"rank": 1, "slowdown": 1.5}
    planner.http.post(f"{JOB}/stragglers", json=straggler).raise_for_status()
    wait_until(lambda: len(planner.http.get(f"{JOB}/history").json()) == 2)
    answer = planner.http.get(EVENTS, params={"wait_s": "0"})
    told = {event.name: event.data for event in parse_events(answer.text)}
    for name, path in (
        ("history", "history"),
        ("stragglers", "stragglers"),
        ("comparison", "comparison"),
        ("steps", "steps/stages"),
    ):
        assert told[name] == planner.http.get(f"{JOB}/{path}").json(), name
    overview = planner.http.get(f"{JOB}/overview").json()
    assert told["overview"] | {"heard_at": None} == overview | {"heard_at": None}
    everything = planner.http.get(routes.EVENTS, params={"wait_s": "0"}).text
    (shown,) = (decode(Overview, each.data) for each in parse_events(everything))
    assert [job.job_id for job in shown.jobs] == ["job"]


# ------------------------------------------------------------------ what changes


def test_a_new_plan_is_told_at_once_and_what_has_not_changed_is_not_told_again(
    planner: LivePlanner,
) -> None:
    planner.put_planned_job()
    with listening(planner.http, EVENTS, **LONG) as listener:
        listener.wait_for("comparison")
        planner.http.put(TARGET, json={"policy": "uniform"}).raise_for_status()
        listener.wait_for("history", lambda data: len(data) == 2)
        listener.wait_for("overview", lambda data: data["newest_version"] == 2)
        for rank in (0, 1):
            planner.acknowledge(rank, 2, 3).raise_for_status()
        history = listener.wait_for("history", lambda data: data[-1]["first_step"] is not None)
        assert [version["policy"] for version in history] == ["frontier", "uniform"]
        assert (names(listener).count("stragglers"), names(listener).count("comparison")) == (1, 1)
        assert "steps" not in names(listener)


def test_steps_come_as_ranks_post_them_and_again_when_they_are_complete(
    planner: LivePlanner,
) -> None:
    planner.put_planned_job()
    with listening(planner.http, EVENTS, **LONG) as listener:
        listener.wait_for("overview")
        post(planner, 0, 0, 1)
        listener.wait_for("steps", lambda steps: steps[-1]["step"] == 1)
        post(planner, 1, 0)
        whole = listener.wait_for("steps", lambda steps: steps[0]["num_ranks"] == 2)
        assert [(step["step"], step["energy_j"]) for step in whole] == [(0, 200.0)]
        post(planner, 1, 1, 2)
        post(planner, 0, 2)
        listener.wait_for("steps", lambda s: (s[-1]["step"], s[-1]["num_ranks"]) == (2, 2))
        last = [told for told in listener.events if told.name == "steps"][-1]
        assert last.event_id == "2"
        # Complete ones are not told again.
        assert sum(numbers.count(0) for numbers in told_steps(listener)) == 2
        listener.wait_for("overview", lambda data: data["num_steps"] == 3)


def test_a_client_that_comes_back_gets_the_steps_it_has_missed(planner: LivePlanner) -> None:
    planner.put_planned_job()
    for rank in (0, 1):
        post(planner, rank, *range(6))

    assert numbers_of(first_steps(planner)) == [0, 1, 2, 3, 4, 5]
    assert numbers_of(first_steps(planner, after_step=3)) == [4, 5]
    assert first_steps(planner, after_step=5) == first_steps(planner, after_step=99) == []
    # Also an id of another run of the job, which was longer.
    for last_id in ("3", "99"):
        back = first_steps(planner, {"Last-Event-ID": last_id}, after_step=2)
        assert numbers_of(back) == [0, 1, 2, 3, 4, 5]


def test_the_pairs_of_a_comparison_that_begins_while_somebody_follows_are_told(
    planner: LivePlanner,
) -> None:
    """Its version is there for a while before a step is named from which it holds."""
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
            post(planner, rank, *range(first, first + 60), plan_version=2)
        told = listener.wait_for("comparison", lambda data: data["num_measured_pairs"] > 0)
        assert told == planner.http.get(f"{JOB}/comparison").json()
        assert told["state"] == "running"


def test_when_the_job_is_deleted_that_is_told_and_the_stream_ends(planner: LivePlanner) -> None:
    planner.put_job().raise_for_status()
    with listening(planner.http, EVENTS, **LONG) as listener:
        listener.wait_for("comparison")
        planner.http.delete(JOB).raise_for_status()
        wait_until(lambda: listener.is_over)
        assert names(listener)[-1] == "gone"
        assert listener.named("gone") == [{}]


def test_the_overview_of_all_jobs_is_told_when_one_comes_or_changes(planner: LivePlanner) -> None:
    with listening(planner.http, routes.EVENTS, **LONG) as listener:
        assert listener.wait_for("overview") == {"jobs": []}
        planner.put_planned_job("job")
        listener.wait_for(
            "overview",
            lambda data: (
                [(job["job_id"], job["num_registered"]) for job in data["jobs"]] == [("job", 2)]
            ),
        )
        assert set(names(listener)) == {"overview"}


# ------------------------------------------------------------------ how it ends


def test_a_planner_that_is_told_to_end_does_so_while_somebody_follows(tmp_path: Path) -> None:
    with serve_process(tmp_path / "planner.sqlite") as served:
        served.http.put(JOB, json=registration()).raise_for_status()
        with listening(served.http, EVENTS) as listener:
            listener.wait_for("overview")
            status, errors = served.end(signal.SIGTERM)
            wait_until(lambda: listener.is_over)
        assert status == 0
        assert "Traceback" not in errors


# ------------------------------------------------------------------ what is refused, what fails


def test_what_is_wrong_with_the_call_is_answered_before_the_stream(planner: LivePlanner) -> None:
    assert planner.http.get(EVENTS).status_code == 404
    planner.put_job().raise_for_status()
    for query in ({"wait_s": "-1"}, {"wait_s": "x"}, {"after_step": "-2"}, {"after_step": "1e3"}):
        assert planner.http.get(EVENTS, params=query).status_code == 422
    answer = planner.http.get(EVENTS, headers={"Last-Event-ID": "x"})
    assert answer.status_code == 422
    assert "\n" not in answer.json()["detail"]
    assert planner.state.waiters.num_waiting == 0


def test_one_stream_more_than_calls_are_held_is_a_503() -> None:
    with live_planner(max_waiting=1, max_wait_s=600) as planner:
        planner.put_planned_job()
        with listening(planner.http, EVENTS) as listener:
            listener.wait_for("overview")
            for path in (EVENTS, routes.EVENTS):
                for query in ({}, {"wait_s": "0.05"}):
                    answer = planner.http.get(path, params=query)
                    assert answer.status_code == 503
                    assert answer.headers["Retry-After"] == "5"
                # What there is now need not be waited for, and is told.
                text = planner.http.get(path, params={"wait_s": "0"}).raise_for_status().text
                assert parse_events(text)[0].name == "overview"
            assert planner.http.get(routes.OVERVIEW).status_code == 200
            assert planner.state.waiters.num_waiting == 1


def test_one_stream_of_no_time_more_than_are_held_is_a_503(
    planner: LivePlanner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such streams leave the places of those that wait, and have their own."""
    monkeypatch.setattr(dependencies, "MAX_SNAPSHOTS", 1)
    planner.put_planned_job()
    waiters = planner.state.waiters
    with planner_reads_no_history(planner) as connection:
        for path in (EVENTS, routes.EVENTS):
            answer = planner.http.get(path, params={"wait_s": "0"})
            assert answer.status_code == 503
            assert answer.headers["Retry-After"] == "5"
        with listening(planner.http, EVENTS, **LONG) as listener:
            listener.wait_for("overview")
            assert (waiters.num_at_once, waiters.num_waiting) == (1, 1)
        connection.close()
        wait_until(lambda: waiters.num_at_once == 0)
        assert planner.http.get(routes.EVENTS, params={"wait_s": "0"}).status_code == 200


@contextmanager
def planner_reads_no_history(planner: LivePlanner) -> Iterator[socket.socket]:
    """A stream of no time of `job` that does not begin as long as the block lasts."""
    may_go_on = threading.Event()

    def slowly(record: PlanRecord, profile: StageProfile | None) -> PlanSummary:
        assert may_go_on.wait(60)
        return summary_of(record, profile)

    try:
        with (
            patch.object(history, "summary_of", slowly),
            closing(socket.socket()) as connection,
        ):
            url = planner.http.base_url
            connection.connect((url.host, url.port))
            connection.sendall(f"GET {EVENTS}?wait_s=0 HTTP/1.1\r\nHost: h\r\n\r\n".encode())
            wait_until(lambda: planner.state.waiters.num_at_once == 1)
            yield connection
    finally:
        may_go_on.set()


def test_a_token_opens_the_events_of_its_own_jobs_alone() -> None:
    with live_planner(token="t", max_wait_s=600) as planner:  # noqa: S106 - a test's
        token = create_token(planner.state.services.store, job_id="job", has_operator=True)[1]
        planner.http.headers[TOKEN_HEADER] = "t"
        for job_id in ("job", "other"):
            planner.put_job(job_id).raise_for_status()
        answer = httpx.get(planner.http.base_url.join(routes.EVENTS), timeout=PATIENCE_S)
        assert answer.status_code == 401
        planner.http.headers[TOKEN_HEADER] = token
        text = planner.http.get(routes.EVENTS, params={"wait_s": "0"}).text
        assert [job["job_id"] for job in parse_events(text)[0].data["jobs"]] == ["job"]
        assert planner.http.get(EVENTS, params={"wait_s": "0"}).status_code == 200
        others = routes.fill(routes.JOB_EVENTS, job_id="other")
        assert planner.http.get(others, params={"wait_s": "0"}).status_code == 403


class FailingStore(TemporaryJobStore):
    """A store that can be told to fail when it is read."""

    fails = False

    def reading(self) -> Any:  # noqa: ANN401 - a context manager, as the store's own
        if self.fails:
            raise StoreBusyError(location="here")
        return super().reading()


def ends_with_overview(listener: Listener) -> bool:
    return names(listener)[-1] == "overview"


def test_trouble_with_the_store_is_told_and_the_stream_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = FailingStore()
    with live_planner(store=store, max_wait_s=600, reconcilers=()) as planner:
        planner.put_planned_job()
        with (
            listening(planner.http, EVENTS) as job,
            listening(planner.http, routes.EVENTS) as everything,
        ):
            job.wait_for("comparison")
            everything.wait_for("overview")
            store.fails = True
            for listener in (job, everything):
                problem = listener.wait_for("trouble")
                assert "job store is not available" in problem["detail"]
            assert planner.http.get(EVENTS).status_code == 503
            store.fails = False
            for listener in (job, everything):
                wait_until(partial(ends_with_overview, listener))
                assert names(listener).count("trouble") == 1
    assert "Traceback" not in caplog.text


def test_a_planner_tells_what_another_one_on_its_database_has_changed(
    postgres_database: str,
) -> None:
    with (
        live_planner(store=PostgresJobStore(postgres_database), max_wait_s=600) as one,
        live_planner(store=PostgresJobStore(postgres_database), max_wait_s=600) as other,
    ):
        one.put_planned_job()
        with listening(other.http, EVENTS) as listener:
            listener.wait_for("comparison")
            one.http.put(TARGET, json={"policy": "uniform"}).raise_for_status()
            listener.wait_for("history", lambda data: len(data) == 2)
            post(one, 0, 7)
            listener.wait_for("steps", lambda steps: steps[0]["step"] == 7)
