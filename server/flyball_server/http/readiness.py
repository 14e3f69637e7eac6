"""Readiness of the planner: the store can be read and written, plans solved, in bounded time."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future
from typing import Protocol

from flyball_server.http.edge_errors import NotReadyError

_LOG = logging.getLogger(__name__)

# Longest time that a check may take before the planner counts as not ready, s.
READY_WITHIN_S = 2.0
Check = Callable[[], None]


class Readiness:
    """Run all checks concurrently, each at most once at a time on its own thread.

    A check that hangs therefore takes one thread, however many calls arrive.

    Args:
        checks: checks by the name of their subject; each returns, or raises with the reason.
        within_s: limit on the time of an answer, s.
    """

    def __init__(
        self, checks: Mapping[str, Check] | None = None, *, within_s: float = READY_WITHIN_S
    ) -> None:
        self._checks = dict(checks or {})
        self._within_s = within_s
        self._guard = threading.Lock()
        self._running: dict[str, Future[Exception | None]] = {}
        self._logged: str | None = None

    async def require(self) -> None:
        """Return when all checks pass.

        Raises:
            NotReadyError: a check failed or did not end in time.
        """
        runs = {name: asyncio.wrap_future(self._start(name)) for name in self._checks}
        if runs:
            await asyncio.wait(runs.values(), timeout=self._within_s)
        for name, run in runs.items():
            if not run.done():
                late = f"{name} does not answer within {self._within_s:g} s"
                self._log(late)
                raise NotReadyError(what=late)
            if (error := run.result()) is not None:
                # Location and reason are for operators, who have the log.
                self._log(f"{name}: {error}")
                raise NotReadyError(what=f"{name} is not available; see the planner's log")
        self._log(None)

    def _log(self, problem: str | None) -> None:
        """Log a change of the problem: anybody may call as often as they like."""
        if problem == self._logged:
            return
        self._logged = problem
        if problem is None:
            _LOG.info("ready again")
        else:
            _LOG.warning("not ready: %s", problem)

    def _start(self, name: str) -> Future[Exception | None]:
        with self._guard:
            running = self._running.get(name)
            if running is not None and not running.done():
                return running
            started: Future[Exception | None] = Future()
            # A caller's timeout must not cancel it for others.
            started.set_running_or_notify_cancel()
            self._running[name] = started
        threading.Thread(
            target=_run, args=(self._checks[name], started), name="flyball-ready", daemon=True
        ).start()
        return started


def _run(check: Check, started: Future[Exception | None]) -> None:
    started.set_result(_outcome(check))


def _outcome(check: Check) -> Exception | None:
    try:
        check()
    except Exception as error:
        return error
    return None


class WritableStore(Protocol):
    """Part of a store that WritingCheck needs."""

    found_full_s: float
    """Monotonic time at which a transaction last found no room, s."""

    def check_writing(self) -> None:
        """Store a small change that changes no data."""
        ...


class WritingCheck:
    """Readiness of the store for writes, checked periodically by a small one.

    All callers share its result. A small write may find the room that others do not: after one
    that found none the store counts as full for a while.

    Args:
        store: store that is written.
        period_s: validity of a result, s.
        full_s: time for which a full store counts as full, s.
        clock: monotonic, s.
    """

    def __init__(
        self,
        store: WritableStore,
        *,
        period_s: float = 5.0,
        full_s: float = 10.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._period_s = period_s
        self._full_s = full_s
        self._clock = clock
        self._tried_s = float("-inf")
        self._problem: Exception | None = None

    def __call__(self) -> None:
        """Return if the newest write was good, and no write of a call found the store full.

        Raises:
            Exception: the error of the newest write.
            RuntimeError: a write of a call found the store full.
        """
        if self._clock() - self._tried_s >= self._period_s:
            self._tried_s = self._clock()
            self._problem = _outcome(self._store.check_writing)
        if self._problem is not None:
            raise self._problem
        if self._clock() - self._store.found_full_s < self._full_s:
            raise RuntimeError(f"the store was full within the last {self._full_s:g} s")


class SolvingCheck:
    """Readiness of the solvers, checked periodically by an empty task.

    It never waits: while a task runs, possibly queued behind long solves, the result of the
    previous one counts.

    Args:
        executor: executor of solves.
        period_s: validity of a result, s.
    """

    def __init__(self, executor: Executor, *, period_s: float = 30.0) -> None:
        self._executor = executor
        self._period_s = period_s
        self._asked: Future[bool] | None = None
        self._asked_s = float("-inf")
        self._problem: BaseException | None = None

    def __call__(self) -> None:
        """Return if the newest result was good.

        Raises:
            Exception: the error of the executor, or of its newest task.
        """
        if self._asked is not None and self._asked.done():
            asked, self._asked = self._asked, None
            self._problem = None if asked.cancelled() else asked.exception()
        is_due = self._problem is not None or time.monotonic() - self._asked_s >= self._period_s
        problem = self._problem
        if self._asked is None and is_due:
            self._asked = self._executor.submit(bool)
            self._asked_s = time.monotonic()
        if problem is not None:
            raise problem
