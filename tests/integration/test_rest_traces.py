"""Traces of a live planner's calls and solves; over OTLP with the real exporter."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest
from tests.planner.live import (
    SERVE,
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


class TracedPlanner:
    """A live planner, and after its end what it has traced.

    Attributes:
        spans: by name, those that ended, in that order.
    """

    def __init__(self, *, token: str | None = None) -> None:
        self._exporter = InMemorySpanExporter()
        self._context = live_planner(traces=Traces(self._exporter), token=token)
        self.spans: dict[str, list[Any]] = {}

    def __enter__(self) -> LivePlanner:
        return self._context.__enter__()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._context.__exit__(kind, error, trace)
        for span in self._exporter.get_finished_spans():
            self.spans.setdefault(span.name, []).append(span)


def test_a_solve_is_part_of_the_call_that_waits_for_it() -> None:
    traced = TracedPlanner()
    with traced as planner:
        planner.put_planned_job()
    (call,) = traced.spans[f"PUT {routes.PROFILE}"]
    (solve,) = traced.spans["solve"]
    assert call.kind == SpanKind.SERVER
    assert call.parent is None
    assert call.attributes["http.request.method"] == "PUT"
    assert call.attributes["http.route"] == routes.PROFILE
    assert call.attributes["http.response.status_code"] == 200
    assert call.attributes["flyball.job"] == "job"
    assert solve.parent.span_id == call.context.span_id
    assert solve.context.trace_id == call.context.trace_id
    assert call.start_time <= solve.start_time <= solve.end_time <= call.end_time
    assert dict(solve.attributes) == {
        "flyball.job": "job",
        "flyball.policy": "frontier",
        "flyball.num_stages": 2,
        "flyball.num_microbatches": 2,
        "flyball.outcome": "solved",
        "code.function.name": "make_plan_only",
    }
    (rank, _) = traced.spans[f"PUT {routes.RANK}"]
    assert rank.attributes["flyball.rank"] == 0
    assert call.resource.attributes["service.name"] == "flyball-planner"


def test_a_frontier_is_a_solve_too() -> None:
    traced = TracedPlanner()
    with traced as planner:
        planner.put_planned_job()
        path = routes.fill(routes.FRONTIER, job_id="job")
        for _ in range(2):
            planner.http.get(path, params={"points": 4}).raise_for_status()
    first, again = traced.spans[f"GET {routes.FRONTIER}"]
    _, solve = traced.spans["solve"]
    assert solve.parent.span_id == first.context.span_id
    assert first.context.trace_id != again.context.trace_id


def test_what_fails_says_so() -> None:
    traced = TracedPlanner()
    with traced as planner:
        planner.put_planned_job()
        target = planner.http.put(
            routes.fill(routes.TARGET, job_id="job"), json={"target": "deadline:0.001"}
        )
        assert target.status_code == 422
        assert planner.http.get(routes.fill(routes.JOB, job_id="other")).status_code == 404
        planner.http.get("/wp-login.php")
    _, failed = traced.spans["solve"]
    assert failed.attributes["flyball.outcome"] == "failed"
    assert failed.status.status_code == StatusCode.ERROR
    assert "0.001" in failed.status.description
    # A caller's mistake is no error of the planner's.
    (refused,) = traced.spans[f"PUT {routes.TARGET}"]
    (unknown,) = traced.spans[f"GET {routes.JOB}"]
    (unrouted,) = traced.spans["GET"]
    for call, status in ((refused, 422), (unknown, 404), (unrouted, 404)):
        assert call.attributes["http.response.status_code"] == status
        assert call.status.status_code == StatusCode.UNSET


def test_a_callers_trace_goes_on_and_no_secret_is_in_a_span() -> None:
    traced = TracedPlanner(token=TOKEN)
    with traced as planner:
        planner.http.headers[TOKEN_HEADER] = TOKEN
        planner.http.get(
            routes.JOBS,
            params={"label": "query-of-a-caller"},
            headers={"traceparent": f"00-{TRACE}-{PARENT}-01", "X-Request-Id": "my-call"},
        )
        planner.http.get(routes.JOBS, headers={"traceparent": "no such thing"})
        for path in (routes.HEALTH, routes.READY, routes.METRICS):
            planner.http.get(path).raise_for_status()
    continued, new = traced.spans[f"GET {routes.JOBS}"]
    assert f"{continued.context.trace_id:032x}" == TRACE
    assert f"{continued.parent.span_id:016x}" == PARENT
    assert continued.attributes["flyball.request_id"] == "my-call"
    assert new.parent is None
    assert list(traced.spans) == [f"GET {routes.JOBS}"]
    told = "".join(span.to_json() for spans in traced.spans.values() for span in spans)
    assert TOKEN not in told
    assert "query-of-a-caller" not in told


class Collector(ThreadingHTTPServer):
    """An OTLP collector on a free port of this machine."""

    def __init__(self) -> None:
        self.posts: list[tuple[str, bytes]] = []
        super().__init__(("127.0.0.1", 0), _Handler)

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.posts.append((self.path, body))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as its base
        del format, args


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_a_served_planner_sends_them_over_otlp(collector: Collector, tmp_path: Path) -> None:
    environment = serve_environment(
        FLYBALL_TRACES="1",
        OTEL_EXPORTER_OTLP_ENDPOINT=collector.address,
        OTEL_SERVICE_NAME="my-planner",
        OTEL_BSP_SCHEDULE_DELAY="50",
    )
    with serve_process(tmp_path / "planner.sqlite", environment=environment) as planner:
        planner.http.get(routes.JOBS).raise_for_status()
        wait_until(lambda: collector.posts != [])
    path, body = collector.posts[0]
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


def test_an_otel_variable_that_cannot_be_used_is_one_line(tmp_path: Path) -> None:
    environment = serve_environment(FLYBALL_TRACES="1", OTEL_BSP_MAX_QUEUE_SIZE="-1")
    said = subprocess.run(
        (*SERVE, "serve", "--port", "0", "--database", f"sqlite:///{tmp_path}/planner.sqlite"),
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert said.returncode == 2
    assert said.stderr.splitlines() == [
        "flyball serve: FLYBALL_TRACES: an OTEL_* variable is invalid: max_queue_size must be a"
        " positive integer."
    ]
