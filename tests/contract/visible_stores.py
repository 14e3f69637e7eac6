"""Every job store behind a planner, as its REST API shows it, and the API's calls as one-liners."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.planner.live import live_planner, serve_environment, serve_process
from tests.planner.samples import profile_csv, rank_registration, registration
from tests.postgres.server import PostgresServer

from flyball_server.jobs.store.contract import JobStore
from flyball_server.jobs.store.job_stores import make_job_store
from flyball_server.jobs.store.memory.memory_store import MemoryJobStore
from flyball_wire import routes
from flyball_wire.messages import TOKEN_HEADER

TOKEN = "the-operators"  # noqa: S105 - of these planners only
CSV = {"Content-Type": "text/csv"}
# Longer than anything here is waited for: an answer comes from being woken.
LONG_S = 500
_NUMBERS = itertools.count(1)
Start = Callable[[], AbstractContextManager[httpx.Client]]


@dataclass(frozen=True, kw_only=True)
class VisibleJob:
    """A job of a planner, by its name."""

    http: httpx.Client
    job_id: str

    def path(self, route: str, **parts: str | int) -> str:
        """The address of something of the job."""
        return routes.fill(route, job_id=self.job_id, **parts)

    def get(self, route: str, *, query: dict[str, Any] | None = None, **parts: str | int) -> Any:  # noqa: ANN401 - JSON
        """Return what is there."""
        answer = self.http.get(self.path(route, **parts), params=query)
        return answer.raise_for_status().json()

    def register(self, **changes: object) -> Any:  # noqa: ANN401 - JSON
        """Make it known: two stages, a rank each."""
        # A plan of this policy takes no time.
        body = registration(**{"policy": "uniform", **changes})
        answer = self.http.put(self.path(routes.JOB), json=body)
        return answer.raise_for_status().json()

    def register_rank(self, rank: int, stage: int | None = None, **changes: object) -> Any:  # noqa: ANN401 - JSON
        """On the stage of its own number, or another one."""
        body = rank_registration(rank if stage is None else stage, **changes)
        return self.http.put(self.path(routes.RANK, rank=rank), json=body).raise_for_status().json()

    def put_profile(self, text: str | None = None) -> Any:  # noqa: ANN401 - JSON
        """Of two stages."""
        path, content = self.path(routes.PROFILE), profile_csv() if text is None else text
        return self.http.put(path, content=content, headers=CSV).raise_for_status().json()

    def fill(self) -> None:
        """Register it, its two ranks, and its profile, of which version 1 is made."""
        self.register()
        for rank in (0, 1):
            self.register_rank(rank)
        self.put_profile()

    def acknowledge(self, rank: int, version: int, current_step: int = 4) -> Any:  # noqa: ANN401 - JSON
        """A rank holds a version."""
        body = {"version": version, "current_step": current_step}
        path = self.path(routes.RANK_ACKNOWLEDGEMENT, rank=rank)
        return self.http.post(path, json=body).raise_for_status().json()

    def measure(self, rank: int, *steps: dict[str, Any]) -> httpx.Response:
        """A rank has measured steps."""
        path = self.path(routes.RANK_MEASUREMENTS, rank=rank)
        return self.http.post(path, json={"steps": steps})

    def leave(self) -> None:
        """Its two ranks have."""
        for rank in (0, 1):
            self.http.post(self.path(routes.RANK_DEPARTURE, rank=rank)).raise_for_status()

    def everything(self) -> dict[str, Any]:
        """All that is shown of what is stored of it."""
        routes_of_records = (
            routes.JOB,
            routes.PLANS,
            routes.STEPS,
            routes.STAGES_OF_STEPS,
            routes.STRAGGLERS,
            routes.TIMETABLE,
        )
        found = {route: self.get(route) for route in routes_of_records}
        answer = self.http.get(self.path(routes.PROFILE))
        return {**found, routes.PROFILE: answer.text if answer.is_success else None}


@dataclass(frozen=True, kw_only=True)
class VisibleStore:
    """A store that is seen through its planner only."""

    start: Start
    _running: ExitStack = field(default_factory=ExitStack)
    _clients: list[httpx.Client] = field(default_factory=list[httpx.Client])

    @property
    def http(self) -> httpx.Client:
        """An operator's, of the planner that runs now."""
        return self._clients[-1]

    def job(self, job_id: str | None = None) -> VisibleJob:
        """One that nobody has registered, unless it is named."""
        return VisibleJob(http=self.http, job_id=job_id or f"job-{next(_NUMBERS)}")

    def start_again(self) -> None:
        """End the planner, and start another on what it has kept."""
        self._running.close()
        self._clients.append(self._running.enter_context(self.start()))

    @contextmanager
    def opened(self) -> Generator[VisibleStore]:
        """The store, with a planner before it."""
        with self._running:
            self.start_again()
            yield self


def memory(request: pytest.FixtureRequest, folder: Path) -> Start:
    del request, folder
    return _in_process(MemoryJobStore())


def sqlite(request: pytest.FixtureRequest, folder: Path) -> Start:
    del request
    return _in_process(make_job_store(f"sqlite:///{folder}/planner.sqlite", for_planner=True))


def postgres(request: pytest.FixtureRequest, folder: Path) -> Start:
    del folder
    server: PostgresServer = request.getfixturevalue("postgres_server")
    databases = ExitStack()
    request.addfinalizer(databases.close)
    address = databases.enter_context(server.database())
    return _in_process(make_job_store(address, for_planner=True))


def live_server(request: pytest.FixtureRequest, folder: Path) -> Start:
    """`flyball serve`, which is killed at its end."""
    del request
    environment = serve_environment(
        FLYBALL_TOKEN=TOKEN, FLYBALL_PLANNING_PROCESSES="0", FLYBALL_MAX_WAIT_S=str(LONG_S)
    )

    @contextmanager
    def start() -> Iterator[httpx.Client]:
        with serve_process(folder / "served.sqlite", environment=environment) as server:
            server.http.headers[TOKEN_HEADER] = TOKEN
            yield server.http

    return start


ALL = (memory, sqlite, postgres, live_server)


def _in_process(store: JobStore) -> Start:
    @contextmanager
    def start() -> Iterator[httpx.Client]:
        with live_planner(store=store, token=TOKEN, max_wait_s=LONG_S) as live:
            live.http.headers[TOKEN_HEADER] = TOKEN
            yield live.http

    return start
