"""Readiness of the planner: its store answers a read within a bounded time."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future

from flyball_server.http.edge_errors import NotReadyError

_LOG = logging.getLogger(__name__)

# A probe that has to wait longer is answered that the planner is not ready, s.
READY_WITHIN_S = 2.0
Check = Callable[[], None]


class Readiness:
    """Asks all checks at once, each on a thread of its own and never twice at a time.

    A check that hangs therefore costs one thread, however often somebody asks.

    Args:
        checks: by what they are about, in words; each returns, or raises with the reason.
        within_s: the longest that an answer takes, s.
    """

    def __init__(
        self, checks: Mapping[str, Check] | None = None, *, within_s: float = READY_WITHIN_S
    ) -> None:
        self._checks = dict(checks or {})
        self._within_s = within_s
        self._guard = threading.Lock()
        self._asked: dict[str, Future[Exception | None]] = {}

    async def require(self) -> None:
        """Return when all checks pass.

        Raises:
            NotReadyError: one does not, or not in time.
        """
        answers = {name: asyncio.wrap_future(self._ask(name)) for name in self._checks}
        if answers:
            await asyncio.wait(answers.values(), timeout=self._within_s)
        for name, answer in answers.items():
            if not answer.done():
                late = NotReadyError(what=f"{name} does not answer within {self._within_s:g} s")
                _LOG.warning("not ready: %s", late)
                raise late
            if (error := answer.result()) is not None:
                # Where it is and how it is reached is the operator's business: the log says so.
                _LOG.warning("not ready: %s: %s", name, error)
                raise NotReadyError(what=f"{name} cannot be used; its log says why")

    def _ask(self, name: str) -> Future[Exception | None]:
        with self._guard:
            running = self._asked.get(name)
            if running is not None and not running.done():
                return running
            asked: Future[Exception | None] = Future()
            asked.set_running_or_notify_cancel()  # who gives up must not end it for others
            self._asked[name] = asked
        threading.Thread(
            target=_answer, args=(self._checks[name], asked), name="flyball-ready", daemon=True
        ).start()
        return asked


def _answer(check: Check, asked: Future[Exception | None]) -> None:
    try:
        check()
    except Exception as error:
        asked.set_result(error)
    else:
        asked.set_result(None)


class SolvingCheck:
    """Readiness of the solvers, checked by an empty solve now and then.

    It waits for no answer: while one is awaited, perhaps behind long solves, the one before
    counts.

    Args:
        executor: solves.
        period_s: as long as an answer counts, s.
    """

    def __init__(self, executor: Executor, *, period_s: float = 30.0) -> None:
        self._executor = executor
        self._period_s = period_s
        self._asked: Future[bool] | None = None
        self._asked_s = float("-inf")
        self._problem: BaseException | None = None

    def __call__(self) -> None:
        """Return where the newest answer was good.

        Raises:
            Exception: the executor's, or of its newest answer.
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
