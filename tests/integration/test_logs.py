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
from tests.planner.samples import rank_registration, registration
from tests.planner.stores import HaltingStore

from flyball_server.http.middleware.call_log import REQUEST_ID_HEADER
from flyball_server.log_setup import JsonFormatter
from flyball_wire import routes

JOB = routes.fill(routes.JOB, job_id="job")
RANK = routes.fill(routes.RANK, job_id="job", rank=1)


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


def test_a_request_id_is_kept_if_it_is_sane_and_else_made(planner: LivePlanner) -> None:
    given = (b"trace-1.A_b", b"x" * 128, b"x" * 129, b"", b"two words", b"id] job=other", b"\xff")
    headers = [[(REQUEST_ID_HEADER.encode("ascii"), each)] for each in given]
    answers = [
        planner.http.get(path, headers=each)
        for each in headers
        for path in (routes.HEALTH, "/nothing")
    ]
    ids = [answer.headers[REQUEST_ID_HEADER] for answer in answers]
    assert ids[:4] == [each.decode() for each in given[:2] for _ in range(2)]
    assert len(set(ids[4:])) == len(ids[4:])
    assert all(re.fullmatch(r"[0-9a-f]{32}", request_id) for request_id in ids[4:])


def test_a_line_about_a_call_says_which_and_about_which_job(
    logged: io.StringIO, planner: LivePlanner
) -> None:
    planner.put_planned_job()
    wait_until(lambda: "made in" in logged.getvalue())
    (made,) = [entry for entry in entries(logged.getvalue()) if "made in" in entry["message"]]
    assert (made["job"], made["version"], made["level"]) == ("job", 1, "info")
    headers = {REQUEST_ID_HEADER: "the-other-values"}
    answer = planner.http.put(JOB, json=registration(num_microbatches=9), headers=headers)
    assert answer.status_code == 409
    (line,) = [entry for entry in entries(logged.getvalue()) if "refused" in entry["message"]]
    assert (line["job"], line["request_id"]) == ("job", "the-other-values")
    assert line["level"] == "warning"


def test_a_failure_of_ours_is_found_in_the_log_by_the_answer(logged: io.StringIO) -> None:
    store = HaltingStore()
    store.error = ZeroDivisionError("a mistake")
    failing = {REQUEST_ID_HEADER: "the-failing-one"}
    with live_planner(store=store, reconcilers=()) as planner:
        planner.put_job().raise_for_status()
        store.fails = True
        answers = [
            planner.http.get(path, headers=failing)
            for path in (routes.fill(routes.RANK_PLAN, job_id="job", rank=7), JOB)
        ]
        # A path cannot forge a line.
        planner.http.headers["Connection"] = "close"
        planner.http.get(routes.JOBS + "/job%0AINFO%20forged/ranks/1/plan")
        store.fails = False
        assert planner.http.get(routes.HEALTH).status_code == 200
    for answer in answers:
        assert answer.status_code == 500
        assert answer.headers[REQUEST_ID_HEADER] == "the-failing-one"
        assert "see its log, at request the-failing-one" in answer.json()["detail"]
        assert "a mistake" not in answer.text
    assert answers[1].headers["Connection"] == "close"
    found = entries(logged.getvalue())
    lines = [entry for entry in found if "ZeroDivisionError" in entry.get("exception", "")]
    line = next(entry for entry in lines if entry.get("request_id") == "the-failing-one")
    assert (line["job"], line["rank"]) == ("job", 7)
    assert "a mistake" in line["exception"]
    assert not [entry for entry in found if "forged" in str(entry.get("job"))]


@pytest.mark.parametrize("log_format", ["json", "text"])
def test_serve_logs_text_or_json_with_what_it_is_about(tmp_path: Path, log_format: str) -> None:
    options = ("--log-level", "debug", "--log-format", log_format)
    with serve_process(tmp_path / "planner.sqlite", *options) as served:
        served.http.headers[REQUEST_ID_HEADER] = "mine"
        served.http.put(JOB, json=registration()).raise_for_status()
        served.http.put(RANK, json=rank_registration(1)).raise_for_status()
        status, errors = served.end(signal.SIGINT)
    assert status == 0
    (access,) = [line for line in errors.splitlines() if f"PUT {RANK}" in line]
    if log_format == "text":
        assert access.endswith("[job=job rank=1 request_id=mine]")
        return
    found = entries(errors)
    assert all({"time", "level", "logger", "message"} <= entry.keys() for entry in found)
    about = json.loads(access)
    assert (about["job"], about["rank"], about["request_id"]) == ("job", 1, "mine")
