"""The planner behind a real HTTP server: in a thread of the test, or as a process."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import uvicorn
from fastapi import FastAPI
from tests.planner.forked_command import ForkedCommand
from tests.planner.patience import PATIENCE_S, wait_until
from tests.planner.samples import profile_csv, rank_registration, registration
from tests.planner.stores import TemporaryJobStore

from flyball_server.app import create_app, release_long_polls
from flyball_server.http.dependencies import PlannerState
from flyball_server.jobs.reconcile.loop import Reconciler
from flyball_server.jobs.services import Planner
from flyball_server.jobs.store.contract import JobStore
from flyball_server.planning.planner import make_plan_only
from flyball_server.settings import Settings
from flyball_wire import routes

if TYPE_CHECKING:
    from flyball_server.tracing import Traces

# For clients of plain HTTP, which else read all authorities' certificates when they are made.
NO_AUTHORITIES = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


@dataclass(frozen=True, kw_only=True)
class AnsweringPlanner:
    """A planner that answers, by a client of it."""

    http: httpx.Client

    def put_job(self, job_id: str = "job", **changes: object) -> httpx.Response:
        """Register a job of two stages."""
        path = routes.fill(routes.JOB, job_id=job_id)
        return self.http.put(path, json=registration(**changes))

    def put_profile(self, text: str | None = None, job_id: str = "job") -> httpx.Response:
        """Put a CSV profile, by default one of two stages."""
        path = routes.fill(routes.PROFILE, job_id=job_id)
        content = profile_csv() if text is None else text
        return self.http.put(path, content=content, headers={"Content-Type": "text/csv"})

    def put_ranks(self, num_ranks: int = 2, job_id: str = "job") -> None:
        """Register the ranks, one per stage."""
        for rank in range(num_ranks):
            path = routes.fill(routes.RANK, job_id=job_id, rank=rank)
            self.http.put(path, json=rank_registration(rank)).raise_for_status()

    def put_planned_job(self, job_id: str = "job") -> None:
        """A job of two ranks with plan version 1."""
        self.put_job(job_id).raise_for_status()
        self.put_profile(job_id=job_id).raise_for_status()
        self.put_ranks(job_id=job_id)

    def acknowledge(
        self, rank: int, version: int, current_step: int, job_id: str = "job"
    ) -> httpx.Response:
        """Rank `rank` of the job has a version."""
        path = routes.fill(routes.RANK_ACKNOWLEDGEMENT, job_id=job_id, rank=rank)
        return self.http.post(path, json={"version": version, "current_step": current_step})

    def post_steps(self, rank: int, *steps: int, **fields: object) -> None:
        """Rank `rank` of the job has measured these steps; without a plan, if no field says so."""
        path = routes.fill(routes.RANK_MEASUREMENTS, job_id="job", rank=rank)
        measured = {"plan_version": None, "time_s": 0.9, "energy_j": 100.0, **fields}
        body = {"steps": [{"step": step, **measured} for step in steps]}
        self.http.post(path, json=body).raise_for_status()


@dataclass(frozen=True, kw_only=True)
class LivePlanner(AnsweringPlanner):
    """A planner in a thread of the test."""

    app: FastAPI

    @property
    def state(self) -> PlannerState:
        """Return what the app holds."""
        state: PlannerState = self.app.state.planner
        return state


# Of the loop, in which what it has accepted just now becomes a connection that can be shut down.
_TURNS_UNTIL_CONNECTED = 10


class _PromptServer(uvicorn.Server):
    """Ends as uvicorn does, but at once: that looks ten times a second whether it is to."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to listen."""
        self._loop, self._is_ending = asyncio.get_running_loop(), asyncio.Event()
        await super().startup(sockets)

    async def main_loop(self) -> None:
        """Serve until `end`."""
        ticking = self._loop.create_task(super().main_loop())  # the answers' date
        await self._is_ending.wait()
        ticking.cancel()

    def end(self) -> None:
        """End; from another thread, whenever that is."""
        self.should_exit = True
        with suppress(AttributeError, RuntimeError):  # not begun, or over
            self._loop.call_soon_threadsafe(self._is_ending.set)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Let what is being answered be answered, then end the application."""
        for server in self.servers:
            for listener in server.sockets:
                self._loop.remove_reader(listener.fileno())
        # asyncio loses what it has accepted where its server is closed in the same moment.
        for _ in range(_TURNS_UNTIL_CONNECTED):
            await asyncio.sleep(0)
        for closed in (*self.servers, *(sockets or ())):
            closed.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        while self.server_state.connections or self.server_state.tasks:
            await asyncio.sleep(0.005)
        await self.lifespan.shutdown()


@contextmanager
def live_planner(
    *,
    store: JobStore | None = None,
    planner: Planner = make_plan_only,
    reconcilers: Sequence[Reconciler] | None = None,
    token: str | None = None,
    max_body_bytes: int = 2**20,
    max_wait_s: float = 60.0,
    planning_processes: int = 0,
    traces: Traces | None = None,
    **settings_too: Any,  # noqa: ANN401 - as Settings has them
) -> Iterator[LivePlanner]:
    """A planner on a free loopback port, served by a thread until the block ends."""
    settings = Settings(
        database="sqlite:///unused.sqlite",
        token=token,
        max_body_bytes=max_body_bytes,
        max_wait_s=max_wait_s,
        planning_processes=planning_processes,
        **settings_too,
    )
    app = create_app(
        settings,
        TemporaryJobStore() if store is None else store,
        planner=planner,
        reconcilers=reconcilers,
        traces=traces,
    )
    # With its protocol named, as `flyball serve` has it: asyncio turns Nagle's algorithm off for no
    # other, and a body sent behind its headers waits 40 ms for the client's acknowledgement.
    with socket.socket(proto=socket.IPPROTO_TCP) as listener:
        listener.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{listener.getsockname()[1]}"
        server = _PromptServer(uvicorn.Config(app, log_config=None))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            wait_until(lambda: server.started or not thread.is_alive())
            with httpx.Client(base_url=address, timeout=PATIENCE_S, verify=NO_AUTHORITIES) as http:
                yield LivePlanner(app=app, http=http)
        finally:
            server.end()
            release_long_polls(app)
            thread.join(PATIENCE_S)
    assert not thread.is_alive()


@dataclass(frozen=True, kw_only=True)
class ServeProcess(AnsweringPlanner):
    """A running `flyball serve`."""

    process: subprocess.Popen[str] | ForkedCommand
    line: str

    def end(self, with_signal: signal.Signals) -> tuple[int, str]:
        """Send it a signal; its exit status and what it had written on stderr."""
        self.process.send_signal(with_signal)
        _, errors = self.process.communicate(timeout=PATIENCE_S)
        return self.process.wait(PATIENCE_S), errors


SERVE = (sys.executable, "-c", "from flyball_client.__main__ import main; raise SystemExit(main())")


def serve_environment(**changes: str) -> dict[str, str]:
    """This environment without any `FLYBALL_*`, and with the changes."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("FLYBALL_")}
    return {**kept, **changes}


@contextmanager
def serve_process(
    database: Path | str,
    *arguments: str,
    environment: dict[str, str] | None = None,
    verify: ssl.SSLContext | None = None,
    flyball: Sequence[str] | None = None,
) -> Iterator[ServeProcess]:
    """`flyball serve --port 0` on this SQLite file or address, killed at the end.

    `flyball` starts one from nothing; without it, it is forked. By default it plans in its threads,
    since a planning process would load the planner once more.
    """
    scheme = "http://" if verify is None else "https://"
    url = database if isinstance(database, str) else f"sqlite:///{database}"
    command = ("serve", "--port", "0", "--database", url, *arguments)
    environment = environment or serve_environment(FLYBALL_PLANNING_PROCESSES="0")
    process = (
        ForkedCommand(command, environment)
        if flyball is None
        else subprocess.Popen(
            (*flyball, *command),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        address = next((word for word in line.split() if word.startswith(scheme)), "")
        assert address, f"no address in {line!r}; {process.communicate(timeout=PATIENCE_S)[1]}"
        with httpx.Client(
            base_url=address, timeout=PATIENCE_S, verify=verify or NO_AUTHORITIES
        ) as http:
            yield ServeProcess(process=process, line=line, http=http)
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=PATIENCE_S)
