"""Traces of a live planner's calls and solves; over OTLP with the real exporter."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from tests.integration.command_in_process import flyball, refusal
from tests.planner.live import (
    LivePlanner,
    live_planner,
    serve_environment,
    serve_process,
)
from tests.planner.patience import wait_until

from flyball_server.settings import SettingsError, load_settings
from flyball_wire import routes
from flyball_wire.messages import TOKEN_HEADER

pytest.importorskip("opentelemetry.sdk", reason="needs the extra 'otel'")

from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from flyball_server.tracing import Traces

TOKEN = "operator's-secret"  # noqa: S105 - a test's
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


Spans = dict[str, list[Any]]


@contextmanager
def traced(**settings: Any) -> Iterator[tuple[LivePlanner, Spans]]:  # noqa: ANN401 - as Settings
    """A live planner, and its spans by name in the order of their ends, there once it has ended."""
    exporter, spans = InMemorySpanExporter(), Spans()
    with live_planner(traces=Traces(exporter), **settings) as planner:
        yield planner, spans
    for span in exporter.get_finished_spans():
        spans.setdefault(span.name, []).append(span)


def test_a_plan_is_solved_by_the_loop_and_a_frontier_within_its_call() -> None:
    with traced() as (planner, spans):
        planner.put_planned_job()
        path = routes.fill(routes.FRONTIER, job_id="job")
        for _ in range(2):
            planner.http.get(path, params={"points": 4}).raise_for_status()
        impossible = {"target": "deadline:0.001"}
        target = planner.http.put(routes.fill(routes.TARGET, job_id="job"), json=impossible)
        assert target.status_code == 422
        assert planner.http.get(routes.fill(routes.JOB, job_id="other")).status_code == 404
        planner.http.get("/wp-login.php")
    (call,) = spans[f"PUT {routes.PROFILE}"]
    solve, of_frontier, failed = spans["solve"]
    assert (call.kind, call.parent) == (SpanKind.SERVER, None)
    assert call.attributes["http.request.method"] == "PUT"
    assert call.attributes["http.route"] == routes.PROFILE
    assert call.attributes["http.response.status_code"] == 200
    assert call.attributes["flyball.job"] == "job"
    # The call waits for a plan that the reconcile loop makes.
    assert solve.parent is None
    assert call.start_time <= solve.end_time <= call.end_time
    assert dict(solve.attributes) == {
        "flyball.job": "job",
        "flyball.policy": "frontier",
        "flyball.num_stages": 2,
        "flyball.num_microbatches": 2,
        "flyball.outcome": "solved",
        "code.function.name": "make_plan_only",
    }
    (rank, _) = spans[f"PUT {routes.RANK}"]
    assert rank.attributes["flyball.rank"] == 0
    assert call.resource.attributes["service.name"] == "flyball-planner"
    # A frontier is a solve too.
    first, again = spans[f"GET {routes.FRONTIER}"]
    assert of_frontier.parent.span_id == first.context.span_id
    assert first.context.trace_id != again.context.trace_id
    # What fails says so; a caller's mistake is no error of the planner's.
    assert failed.attributes["flyball.outcome"] == "failed"
    assert failed.status.status_code == StatusCode.ERROR
    assert "0.001" in failed.status.description
    for name, status in ((f"PUT {routes.TARGET}", 422), (f"GET {routes.JOB}", 404), ("GET", 404)):
        (refused,) = spans[name]
        assert refused.attributes["http.response.status_code"] == status
        assert refused.status.status_code == StatusCode.UNSET


def test_a_callers_trace_goes_on_and_no_secret_is_in_a_span() -> None:
    with traced(token=TOKEN) as (planner, spans):
        planner.http.headers[TOKEN_HEADER] = TOKEN
        planner.http.get(
            routes.JOBS,
            params={"label": "query-of-a-caller"},
            headers={"traceparent": f"00-{TRACE}-{PARENT}-01", "X-Request-Id": "my-call"},
        )
        planner.http.get(routes.JOBS, headers={"traceparent": "no such thing"})
        for path in (routes.HEALTH, routes.READY, routes.METRICS):
            planner.http.get(path).raise_for_status()
    assert list(spans) == [f"GET {routes.JOBS}"]
    continued, new = spans[f"GET {routes.JOBS}"]
    assert f"{continued.context.trace_id:032x}" == TRACE
    assert f"{continued.parent.span_id:016x}" == PARENT
    assert continued.attributes["flyball.request_id"] == "my-call"
    assert new.parent is None
    told = continued.to_json() + new.to_json()
    assert TOKEN not in told
    assert "query-of-a-caller" not in told


Posts = list[tuple[str, bytes]]


@pytest.fixture
def collector() -> Iterator[tuple[str, Posts]]:
    """Address of an OTLP collector of this machine, and what it was sent."""
    posts: Posts = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            posts.append((self.path, body))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as its base
            """Nothing on stderr."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", posts
        server.shutdown()
        thread.join()


def test_a_served_planner_sends_them_over_otlp(
    collector: tuple[str, Posts], tmp_path: Path
) -> None:
    address, posts = collector
    environment = serve_environment(
        FLYBALL_TRACES="1",
        OTEL_EXPORTER_OTLP_ENDPOINT=address,
        OTEL_SERVICE_NAME="my-planner",
        OTEL_BSP_SCHEDULE_DELAY="50",
    )
    with serve_process(tmp_path / "planner.sqlite", environment=environment) as planner:
        planner.http.get(routes.JOBS).raise_for_status()
        wait_until(lambda: posts != [])
    path, body = posts[0]
    assert path == "/v1/traces"
    assert b"GET /api/v1/jobs" in body
    assert b"my-planner" in body


# ------------------------------------------------------------------ settings


def test_a_planner_without_traces_loads_nothing_of_them() -> None:
    code = (
        "import sys; from flyball_server.app import create_app; create_app();"
        "raise SystemExit('flyball_server.tracing' in sys.modules"
        " or 'opentelemetry.sdk' in sys.modules)"
    )
    environment = serve_environment(FLYBALL_DATABASE="sqlite:///unused.sqlite")
    subprocess.run((sys.executable, "-c", code), env=environment, check=True)


def test_without_the_extra_the_setting_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk", None)
    monkeypatch.setenv("FLYBALL_TRACES", "1")
    with pytest.raises(SettingsError, match=r"FLYBALL_TRACES needs .*install the extra otel"):
        load_settings()


def test_an_otel_variable_that_cannot_be_used_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flyball_server.cli.serve.set_up_logging", lambda **_: None)
    monkeypatch.setenv("FLYBALL_TRACES", "1")
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "-1")
    database = f"sqlite:///{tmp_path}/planner.sqlite"
    assert refusal(flyball("serve", "--port", "0", "--database", database)) == (
        "flyball serve: FLYBALL_TRACES: an OTEL_* variable is invalid: max_queue_size must be a"
        " positive integer."
    )
