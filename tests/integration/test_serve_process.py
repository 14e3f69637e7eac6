"""`flyball serve` as a real process: what survives it, how it ends, what it says when it cannot."""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from tests.integration.command_in_process import Done, flyball, refusal
from tests.planner.live import (
    SERVE,
    serve_environment,
    serve_process,
)
from tests.planner.patience import PATIENCE_S, wait_until

from flyball_wire import routes

JOB = routes.fill(routes.JOB, job_id="job")


def test_one_line_says_where_it_listens_and_where_the_docs_are(tmp_path: Path) -> None:
    with serve_process(tmp_path / "planner.sqlite", flyball=SERVE) as served:
        address = str(served.http.base_url).rstrip("/")
        assert served.line == f"Flyball planner listening on {address} (API: {address}/docs)\n"
        assert address.startswith("http://127.0.0.1:")
        assert not address.endswith(":0")
        assert served.http.get("/docs").status_code == 200


def test_ctrl_c_ends_it_cleanly_with_a_long_poll_open(tmp_path: Path) -> None:
    with serve_process(tmp_path / "planner.sqlite") as served:
        served.put_planned_job()
        path = routes.fill(routes.RANK_PLAN, job_id="job", rank=0)
        statuses: list[int] = []
        is_sent = threading.Event()

        def trace(event: str, _info: object) -> None:
            if event == "http11.send_request_body.complete":
                is_sent.set()

        def poll() -> None:
            query = {"wait_s": "60", "after_version": "1"}
            with httpx.Client(base_url=served.http.base_url, timeout=PATIENCE_S) as http:
                answer = http.get(path, params=query, extensions={"trace": trace})
            statuses.append(answer.status_code)

        thread = threading.Thread(target=poll)
        thread.start()
        assert is_sent.wait(PATIENCE_S)
        # Sent later, answered: the planner has taken up the poll too.
        served.http.get(JOB).raise_for_status()
        status, errors = served.end(signal.SIGINT)
        thread.join(PATIENCE_S)
    assert status == 0
    assert "Traceback" not in errors
    assert "Cancel" not in errors
    assert statuses == [204]


def test_sigterm_ends_it_cleanly_and_leaves_no_folder_behind(tmp_path: Path) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    environment = serve_environment(TMPDIR=str(temporary), FLYBALL_PLANNING_PROCESSES="1")
    with serve_process(tmp_path / "planner.sqlite", environment=environment) as served:
        # Multiprocessing's, which comes with the first process and goes with the planner.
        wait_until(lambda: any(temporary.iterdir()))
        assert served.end(signal.SIGTERM) == (0, "")
    assert list(temporary.iterdir()) == []


def test_a_second_planner_on_one_sqlite_file_is_one_line(
    tmp_path: Path, serve: Callable[..., Done]
) -> None:
    file = tmp_path / "planner.sqlite"
    link = tmp_path / "link.sqlite"
    link.symlink_to(file)
    with serve_process(file):
        for name in (file, link):
            line = refusal(serve("--database", f"sqlite:///{name}"))
            assert f"Another planner runs on {name}" in line
            assert f"{file}.lock" in line
    with serve_process(file) as again:
        assert again.http.get(routes.HEALTH).status_code == 200


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Done]:
    """Runs a `flyball serve` that ends before it serves, in this process."""
    monkeypatch.setattr("flyball_server.cli.serve.set_up_logging", lambda **_: None)
    return lambda *arguments: flyball("serve", "--port", "0", *arguments)


def test_what_a_planner_cannot_have_now_is_one_line_without_a_password(
    tmp_path: Path, serve: Callable[..., Done]
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        used = serve("--port", port, "--database", f"sqlite:///{tmp_path / 'planner.sqlite'}")
    away = serve("--database", "postgresql://ada:se%40cret@127.0.0.1:1/flyball")
    for done in (used, away):
        assert (done.returncode, done.stdout) == (75, "")
        assert len(done.stderr.splitlines()) == 1, done.stderr
    assert f"cannot listen on 127.0.0.1:{port}" in used.stderr
    assert "--port" in used.stderr
    assert "Database postgresql://ada@127.0.0.1:1/flyball cannot be used" in away.stderr
    assert "refused" in away.stderr
    assert "cret" not in away.stderr
