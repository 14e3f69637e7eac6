"""`flyball serve` as a real process: what survives it, how it ends, what it says when it cannot."""

from __future__ import annotations

import signal
import socket
import subprocess
import threading
from pathlib import Path

import httpx
from tests.planner.live import (
    SERVE,
    ServeProcess,
    serve_environment,
    serve_process,
)
from tests.planner.patience import PATIENCE_S
from tests.planner.samples import profile_csv, rank_registration, registration

from flyball_wire import routes

JOB = routes.fill(routes.JOB, job_id="job")
PROFILE = routes.fill(routes.PROFILE, job_id="job")
PLANS = routes.fill(routes.PLANS, job_id="job")
CSV = {"Content-Type": "text/csv"}


def plan_a_job(served: ServeProcess) -> list[object]:
    """A job with two versions and an activation; what the planner says of it."""
    served.http.put(JOB, json=registration()).raise_for_status()
    served.http.put(PROFILE, content=profile_csv(), headers=CSV).raise_for_status()
    for rank in (0, 1):
        path = routes.fill(routes.RANK, job_id="job", rank=rank)
        served.http.put(path, json=rank_registration(rank)).raise_for_status()
        path = routes.fill(routes.RANK_ACKNOWLEDGEMENT, job_id="job", rank=rank)
        body = {"version": 1, "current_step": 3}
        served.http.post(path, json=body).raise_for_status()
    newer = profile_csv(forward_energy_j=33)
    served.http.put(PROFILE, content=newer, headers=CSV).raise_for_status()
    return what_is_kept(served)


def what_is_kept(served: ServeProcess) -> list[object]:
    """The job and its plans, but for when its ranks were heard of."""
    job, plans = (served.http.get(path).raise_for_status().json() for path in (JOB, PLANS))
    for rank in job["ranks"]:
        del rank["last_seen_at"]
    return [job, plans]


def test_a_job_and_its_plans_survive_a_planner_that_is_killed(tmp_path: Path) -> None:
    database = tmp_path / "state" / "planner.sqlite"
    with serve_process(database) as first:
        kept = plan_a_job(first)
        first.end(signal.SIGKILL)
    with serve_process(database) as second:
        assert what_is_kept(second) == kept
        job = second.http.get(JOB).json()
        assert (job["newest_version"], job["active_version"]) == (2, 1)
        again = second.http.put(JOB, json=registration())
        assert again.status_code == 200
        newest = second.http.put(PROFILE, content=profile_csv(), headers=CSV).json()
        assert newest["newest_version"] == 3


def test_one_line_says_where_it_listens_and_where_the_docs_are(tmp_path: Path) -> None:
    with serve_process(tmp_path / "planner.sqlite", flyball=SERVE) as served:
        address = str(served.http.base_url).rstrip("/")
        assert served.line == f"Flyball planner listening on {address} (API: {address}/docs)\n"
        assert address.startswith("http://127.0.0.1:")
        assert not address.endswith(":0")
        assert served.http.get("/docs").status_code == 200


def test_ctrl_c_ends_it_cleanly_with_a_long_poll_open(tmp_path: Path) -> None:
    with serve_process(tmp_path / "planner.sqlite") as served:
        plan_a_job(served)
        path = routes.fill(routes.RANK_PLAN, job_id="job", rank=0)
        statuses: list[int] = []
        is_sent = threading.Event()

        def trace(event: str, _info: object) -> None:
            if event == "http11.send_request_body.complete":
                is_sent.set()

        def poll() -> None:
            query = {"wait_s": "60", "after_version": "2"}
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
        assert list(temporary.iterdir())  # multiprocessing's, which goes with the planner
        assert served.end(signal.SIGTERM) == (0, "")
    assert list(temporary.iterdir()) == []


def test_a_second_planner_on_one_sqlite_file_is_one_line(tmp_path: Path) -> None:
    file = tmp_path / "planner.sqlite"
    link = tmp_path / "link.sqlite"
    link.symlink_to(file)
    with serve_process(file):
        for name in (file, link):
            line = refused("--port", "0", "--database", f"sqlite:///{name}")
            assert f"Another planner runs on {name}" in line
            assert f"{file}.lock" in line
    with serve_process(file) as again:
        assert again.http.get(routes.HEALTH).status_code == 200


def refused(*arguments: str, status: int = 2, **environment: str) -> str:
    """The one line on stderr of a `flyball serve` that exits with this status."""
    ended = subprocess.run(
        (*SERVE, "serve", *arguments),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
        env=serve_environment(**environment),
    )
    assert ended.returncode == status, ended.stderr
    assert ended.stdout == ""
    assert "Traceback" not in ended.stderr
    lines = ended.stderr.splitlines()
    assert len(lines) == 1, ended.stderr
    return lines[0]


def test_a_port_in_use_is_one_line(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        database = f"sqlite:///{tmp_path / 'planner.sqlite'}"
        line = refused("--port", port, "--database", database, status=75)
    assert f"cannot listen on 127.0.0.1:{port}" in line
    assert "--port" in line


def test_a_database_that_does_not_answer_is_one_line_without_its_password() -> None:
    address = "postgresql://ada:se%40cret@127.0.0.1:1/flyball"
    line = refused("--port", "0", status=75, FLYBALL_DATABASE=address)
    assert "Database postgresql://ada@127.0.0.1:1/flyball cannot be used" in line
    assert "refused" in line
    assert "cret" not in line
