"""A server that answers what it was told to, in the planner's place: figures that never move."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

from tests.planner.jobs_to_show import READING
from tests.planner.patience import PATIENCE_S

from flyball_client.cli.top.reading import FollowedJob
from flyball_wire import routes
from flyball_wire.codec import encode
from flyball_wire.read_models import Overview

HOST = "127.0.0.1"


@dataclass
class Answers:
    """Answers by path; any other path is a 404.

    Attributes:
        status: of every answer; the body of a failure is one line.
        asked: every path that was asked for, with its query, in order.
        held: keeps every answer until it is set.
    """

    by_path: dict[str, object] = field(default_factory=dict)
    status: int = 200
    asked: list[str] = field(default_factory=list)
    held: threading.Event | None = None


def answers_about(reading: FollowedJob = READING, *others: FollowedJob) -> Answers:
    """A planner with these jobs."""
    answers = Answers()
    readings = (reading, *others)
    answers.by_path[routes.OVERVIEW] = Overview(jobs=tuple(each.overview for each in readings))
    for each in readings:
        job_id = each.overview.job_id
        answers.by_path |= {
            routes.fill(routes.JOB_OVERVIEW, job_id=job_id): each.overview,
            routes.fill(routes.STAGES_OF_STEPS, job_id=job_id): each.steps,
            routes.fill(routes.HISTORY, job_id=job_id): each.history,
            routes.fill(routes.STRAGGLERS, job_id=job_id): each.stragglers,
        }
    return answers


def answer_of(answers: Answers, address: str) -> tuple[int, object]:
    """Status and body for this path and query; of steps those that it asks for."""
    path, query = urlsplit(address).path, parse_qs(urlsplit(address).query)
    if answers.status != 200 or path not in answers.by_path:
        status = 404 if answers.status == 200 else answers.status
        return status, {"detail": "as it was told to", "errors": []}
    body = answers.by_path[path]
    if "after_step" in query and isinstance(body, tuple):
        after_step, limit = int(query["after_step"][0]), int(query["limit"][0])
        body = tuple(step for step in body if step.step > after_step)[-limit:]
    return 200, body


@contextmanager
def pretended_planner(answers: Answers, *, port: int = 0) -> Iterator[str]:
    """Serves the answers until the block ends; its address. Port 0: a free one."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answers.asked.append(self.path)
            if answers.held is not None:
                answers.held.wait(PATIENCE_S)
            status, body = answer_of(answers, self.path)
            content = json.dumps(encode(body)).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            with contextlib.suppress(ConnectionError):  # who asked has ended
                self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as its base
            """Nothing on stderr."""

    server = ThreadingHTTPServer((HOST, port), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"http://{HOST}:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(PATIENCE_S)
