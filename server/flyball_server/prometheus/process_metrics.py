"""Counters of this process: calls, solves, the store's transactions."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from importlib.metadata import version

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
)

from flyball_server.jobs.errors import StoreError, StoreFullError
from flyball_server.jobs.services import Solve
from flyball_server.jobs.store.contract import JobStore, StoreSpace
from flyball_server.jobs.store.sql.job_reader import JobReader
from flyball_server.jobs.store.sql.job_writer import JobWriter
from flyball_server.planning.policies import POLICIES

# s. A call takes milliseconds; a long poll waits for up to a minute, or the granted time.
_CALL_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
# s. From a small pipeline to the largest frontier at high effort.
_SOLVE_BUCKETS = (0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300, 600)
_STORE_BUCKETS = (0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10)

METHODS = frozenset({"GET", "HEAD", "OPTIONS", "PUT", "POST", "PATCH", "DELETE"})
OTHER = "other"
# Label of a call that was refused before routing, or that matches no route.
NO_ROUTE = "none"


class ProcessMetrics:
    """Histograms and counters of one app, in a registry of its own; thread-safe.

    Making one turns prometheus_client's `_created` series off, in the whole process.

    Args:
        num_waiting: function that returns the number of waiting long polls.
    """

    def __init__(self, *, num_waiting: Callable[[], int] = lambda: 0) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # it has no types
        self.registry = CollectorRegistry(auto_describe=False)
        build = Gauge(
            "flyball_build_info",
            "1; the label is the version of this planner.",
            ("version",),
            registry=self.registry,
        )
        build.labels(version=version("flyball")).set(1)
        waiting = Gauge(
            "flyball_long_polls_waiting",
            "Long polls that wait for an answer now, and streams of live events, in this process.",
            registry=self.registry,
        )
        waiting.set_function(num_waiting)
        self._calls = Histogram(
            "flyball_http_request_duration_seconds",
            "Time from a call's arrival to the end of its answer, s, including the wait of long"
            " polls; by route template (none: refused before routing, or no route), method and"
            " class of status.",
            ("route", "method", "status"),
            buckets=_CALL_BUCKETS,
            registry=self.registry,
        )
        self._solves = Histogram(
            "flyball_solve_duration_seconds",
            "Time to make a plan, s, including the wait for a process; by policy and outcome.",
            ("policy", "outcome"),
            buckets=_SOLVE_BUCKETS,
            registry=self.registry,
        )
        self._transactions = Histogram(
            "flyball_store_transaction_duration_seconds",
            "Time of job store transactions, s, including the wait for others; by kind.",
            ("kind",),
            buckets=_STORE_BUCKETS,
            registry=self.registry,
        )
        self._store_errors = Counter(
            "flyball_store_errors",
            "Errors of the job store, by kind.",
            ("kind",),
            registry=self.registry,
        )
        for kind in _store_error_kinds():
            self._store_errors.labels(kind=kind)
        ProcessCollector(registry=self.registry)

    def observe_call(self, *, route: str | None, method: str, status: int, seconds: float) -> None:
        """Count an answered call; `route` is its template."""
        self._calls.labels(
            route=NO_ROUTE if route is None else route,
            method=method if method in METHODS else OTHER,
            status=f"{status // 100}xx",
        ).observe(seconds)

    def observe_solve(self, solve: Solve) -> None:
        """Count a plan that was made, or failed."""
        policy = solve.policy if solve.policy in POLICIES else OTHER
        self._solves.labels(policy=policy, outcome=solve.outcome).observe(solve.seconds)

    def observe_transaction(self, *, kind: str, seconds: float) -> None:
        """Count a finished transaction of the store; `kind` is `read` or `write`."""
        self._transactions.labels(kind=kind).observe(seconds)

    def count_store_error(self, error: StoreError) -> None:
        """Count a store error."""
        self._store_errors.labels(kind=_kind_of(type(error))).inc()


def _store_error_kinds() -> list[str]:
    kinds: list[type[StoreError]] = [StoreError]
    for kind in kinds:  # the list grows by subclasses meanwhile
        kinds += kind.__subclasses__()
    return [_kind_of(kind) for kind in kinds]


def _kind_of(error: type[StoreError]) -> str:
    """Return the label, `too_new` for StoreTooNewError; `other` for StoreError itself."""
    name = error.__name__.removeprefix("Store").removesuffix("Error")
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower() or OTHER


class MeasuredStore:
    """Job store that measures the calls of another store.

    Args:
        store: wrapped store.
        metrics: metrics to update.

    Attributes:
        found_full_s: monotonic time at which a transaction last found no room, s.
    """

    def __init__(self, store: JobStore, metrics: ProcessMetrics) -> None:
        self._store = store
        self._metrics = metrics
        self.found_full_s = float("-inf")

    def open(self) -> None:
        """Open the wrapped store."""
        with self._counting_errors():
            self._store.open()

    def close(self) -> None:
        """Close the wrapped store."""
        self._store.close()

    @contextmanager
    def reading(self) -> Generator[JobReader]:
        """Open a reading transaction."""
        with self._measuring("read"), self._store.reading() as reader:
            yield reader

    @contextmanager
    def writing(self, subject: str) -> Generator[JobWriter]:
        """Open a transaction that may change data of this subject."""
        with self._measuring("write"), self._store.writing(subject) as writer:
            yield writer

    def forget_some(self) -> bool:
        """Remove rows of the wrapped store's deleted jobs; return whether more are left."""
        with self._measuring("write"):
            return self._store.forget_some()

    def check_writing(self) -> None:
        """Check that the wrapped store can be written."""
        with self._counting_errors():
            self._store.check_writing()

    def space(self) -> StoreSpace:
        """Return the space of the wrapped store."""
        return self._store.space()

    def lock(self, name: str, *, waits: bool = True) -> AbstractContextManager[bool]:
        """Take a lock of the wrapped store; waiting for it is not measured."""
        return self._store.lock(name, waits=waits)

    def signal(self, job_id: str) -> None:
        """Signal by the wrapped store."""
        with self._counting_errors():
            self._store.signal(job_id)

    def listen(self, heard: Callable[[str | None], None]) -> None:
        """Listen to the wrapped store."""
        self._store.listen(heard)

    @contextmanager
    def _measuring(self, kind: str) -> Generator[None]:
        started_s = time.perf_counter()
        try:
            with self._counting_errors():
                yield
        except StoreFullError:
            self.found_full_s = time.monotonic()
            raise
        finally:
            self._metrics.observe_transaction(kind=kind, seconds=time.perf_counter() - started_s)

    @contextmanager
    def _counting_errors(self) -> Generator[None]:
        try:
            yield
        except StoreError as error:
            self._metrics.count_store_error(error)
            raise
