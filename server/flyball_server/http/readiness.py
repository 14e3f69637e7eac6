"""Readiness of the planner: the store can be read and plans can be solved, in bounded time."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future

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
                late = NotReadyError(what=f"{name} does not answer within {self._within_s:g} s")
                _LOG.warning("not ready: %s", late)
                raise late
            if (error := run.result()) is not None:
                # Location and reason are for operators, who have the log.
                _LOG.warning("not ready: %s: %s", name, error)
                raise NotReadyError(what=f"{name} is not available; see the planner's log")

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
    try:
        check()
    except Exception as error:
        started.set_result(error)
    else:
        started.set_result(None)


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
