"""Planner's log of calls: their id, job and rank, in every line and answer."""

from __future__ import annotations

import io
import json
import logging
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.planner.live import LivePlanner, live_planner, serve_process
from tests.planner.patience import wait_until
from tests.planner.samples import profile_csv, rank_registration, registration
from tests.planner.stores import HaltingStore

from flyball_server.http.middleware.call_log import REQUEST_ID_HEADER
from flyball_server.log_setup import JsonFormatter
from flyball_wire import routes

JOB = routes.fill(routes.JOB, job_id="job")
RANK = routes.fill(routes.RANK, job_id="job", rank=1)


@pytest.fixture
def store() -> HaltingStore:
    """Store whose reads can fail with an unexpected error."""
    store = HaltingStore()
    store.error = ZeroDivisionError("a mistake")
    return store


@pytest.fixture(scope="module")
def planner() -> Iterator[LivePlanner]:
    with live_planner() as live:
        yield live


@pytest.fixture
def logged() -> Iterator[io.StringIO]:
    """All that this process logs from INFO on, as JSON lines."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter())
    root = logging.getLogger()
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    yield stream
    root.removeHandler(handler)
    root.setLevel(level)


def entries(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_every_answer_has_a_request_id_of_its_own(planner: LivePlanner) -> None:
    answers = [planner.http.get(path) for path in (routes.HEALTH, routes.HEALTH, "/nothing")]
    ids = [answer.headers[REQUEST_ID_HEADER] for answer in answers]
    assert len(set(ids)) == 3
    assert all(re.fullmatch(r"[0-9a-f]{32}", request_id) for request_id in ids)


@pytest.mark.parametrize(
    ("given", "is_kept"),
    [
        ("trace-1.A_b", True),
        ("x" * 128, True),
        ("x" * 129, False),
        ("", False),
        ("two words", False),
        ("id] job=other", False),
        ("\xff", False),
    ],
)
def test_a_request_id_is_kept_if_it_is_sane(
    planner: LivePlanner, given: str, is_kept: bool
) -> None:
    headers = {REQUEST_ID_HEADER.encode("ascii"): given.encode("latin-1")}
    answer = planner.http.get(routes.HEALTH, headers=headers)
    assert (answer.headers[REQUEST_ID_HEADER] == given) is is_kept


def test_a_line_about_a_call_says_which_and_about_which_job(logged: io.StringIO) -> None:
    with live_planner() as planner:
        planner.put_job().raise_for_status()
        path = routes.fill(routes.PROFILE, job_id="job")
        headers = {"Content-Type": "text/csv", REQUEST_ID_HEADER: "the-profile"}
        planner.http.put(path, content=profile_csv(), headers=headers).raise_for_status()
        wait_until(lambda: "made in" in logged.getvalue())
    (line,) = [entry for entry in entries(logged.getvalue()) if "made in" in entry["message"]]
    assert (line["job"], line["version"], line["request_id"]) == ("job", 1, "the-profile")
    assert line["level"] == "info"


def test_a_failure_of_ours_is_found_in_the_log_by_the_answer(
    logged: io.StringIO, store: HaltingStore
) -> None:
    with live_planner(store=store, reconcilers=()) as planner:
        planner.put_job().raise_for_status()
        store.fails = True
        answer = planner.http.get(
            routes.fill(routes.RANK_PLAN, job_id="job", rank=7),
            headers={REQUEST_ID_HEADER: "the-failing-one"},
        )
        store.fails = False
    assert answer.status_code == 500
    assert answer.headers[REQUEST_ID_HEADER] == "the-failing-one"
    assert "the-failing-one" in answer.json()["detail"]
    assert "a mistake" not in answer.text
    lines = [entry for entry in entries(logged.getvalue()) if "a mistake" in str(entry)]
    (line,) = [entry for entry in lines if entry.get("request_id") == "the-failing-one"]
    assert (line["job"], line["rank"]) == ("job", 7)
    assert "ZeroDivisionError" in line["exception"]


def test_a_path_cannot_forge_a_line(logged: io.StringIO, store: HaltingStore) -> None:
    with live_planner(store=store, reconcilers=()) as planner:
        store.fails = True
        # After an error of its own the planner may close a connection that is kept alive.
        planner.http.headers["Connection"] = "close"
        planner.http.get(routes.JOBS + "/job%0AINFO%20forged/ranks/1/plan")
        planner.http.get(routes.JOBS)
        store.fails = False
    found = entries(logged.getvalue())
    assert found
    assert not [entry for entry in found if "forged" in str(entry.get("job"))]


def register(http_headers: dict[str, str], database: Path, *arguments: str) -> list[str]:
    """The lines on stderr of a planner that has registered a job and a rank."""
    with serve_process(database, "--log-level", "debug", *arguments) as served:
        served.http.headers.update(http_headers)
        served.http.put(JOB, json=registration()).raise_for_status()
        served.http.put(RANK, json=rank_registration(1)).raise_for_status()
        status, errors = served.end(signal.SIGINT)
    assert status == 0
    return errors.splitlines()


def test_serve_logs_json_where_that_is_asked_for(tmp_path: Path) -> None:
    headers = {REQUEST_ID_HEADER: "mine"}
    lines = register(headers, tmp_path / "planner.sqlite", "--log-format", "json")
    found = [json.loads(line) for line in lines]
    assert found
    assert all({"time", "level", "logger", "message"} <= entry.keys() for entry in found)
    access = next(entry for entry in found if f"PUT {RANK}" in entry["message"])
    assert (access["job"], access["rank"], access["request_id"]) == ("job", 1, "mine")


def test_serve_logs_text_with_what_it_is_about(tmp_path: Path) -> None:
    lines = register({REQUEST_ID_HEADER: "mine"}, tmp_path / "planner.sqlite")
    (access,) = [line for line in lines if f"PUT {RANK}" in line]
    assert access.endswith("[job=job rank=1 request_id=mine]")
