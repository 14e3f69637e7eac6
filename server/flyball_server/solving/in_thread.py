"""Solving in threads of the planner, one for each solve."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextvars import copy_context
from typing import Any, Generic, ParamSpec, TypeVar

from flyball_server.planning.cancellation import cancelled_by

ResultT = TypeVar("ResultT")


class SolveStoppedError(Exception):
    """The caller has cancelled the solve, or the executor was shut down."""


class SolverLostError(Exception):
    """The solving process ended during the solve; the text gives the cause if known."""


class SolverAwayError(SolverLostError):
    """The solving process cannot be reached or started."""


def no_thread_error(cause: RuntimeError) -> SolverAwayError:
    """Return the error of a solve for which no thread can be started."""
    return SolverAwayError(f"no thread for it could be started ({cause})")


class StoppableFuture(Future[ResultT], Generic[ResultT]):
    """Future with a `cancel` that also ends a running solve.

    A solve that is cancelled before it runs ends as any future does; a running one ends with
    SolveStoppedError, a moment later.

    Args:
        stop: function that ends the running solve; at most once per `cancel`, from any thread.
    """

    def __init__(self, stop: Callable[[StoppableFuture[ResultT]], None]) -> None:
        super().__init__()
        self._stop = stop

    def cancel(self) -> bool:
        """Stop the solve; False: it is already done."""
        if super().cancel():
            return True
        if self.done():
            return False
        self._stop(self)
        return True


P = ParamSpec("P")


class PlannerThreads(Executor):
    """Executor with one thread of this process per solve, without a limit.

    It starts no process; a solve shares the CPU with the planner. A cancelled one ends at its
    solver's next check for cancellation, and its future with it.
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()
        # By running solve, the function that ends it.
        self._running: dict[StoppableFuture[Any], threading.Event] = {}
        self._is_shut_down = False

    def start(self) -> None:
        """Accept solves again after a shutdown."""
        with self._guard:
            self._is_shut_down = False

    def submit(
        self, fn: Callable[P, ResultT], /, *args: P.args, **kwargs: P.kwargs
    ) -> StoppableFuture[ResultT]:
        """Start a solve and return its future, which fails if no thread can be started.

        Raises:
            RuntimeError: the executor is shut down.
        """
        stopped = threading.Event()
        future: StoppableFuture[ResultT] = StoppableFuture(lambda _: stopped.set())
        future.set_running_or_notify_cancel()
        with self._guard:
            if self._is_shut_down:
                raise RuntimeError("the executor is shut down")
            self._running[future] = stopped

        def solve() -> None:
            try:
                with cancelled_by(lambda: _check(stopped)):
                    result = fn(*args, **kwargs)
            except BaseException as error:
                self._forget(future)
                future.set_exception(error)
            else:
                self._forget(future)
                future.set_result(result)

        # Its log lines have the caller's context. The planner does not wait for its end.
        thread = threading.Thread(
            target=copy_context().run, args=(solve,), name="flyball-solve", daemon=True
        )
        try:
            thread.start()
        except RuntimeError as error:
            self._forget(future)
            future.set_exception(no_thread_error(error))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = True) -> None:
        """End all solves with SolveStoppedError, at their solvers' next check."""
        del wait, cancel_futures  # a solver checks soon, and its result is not awaited
        with self._guard:
            self._is_shut_down = True
            running = tuple(self._running.values())
        for stopped in running:
            stopped.set()

    def _forget(self, future: StoppableFuture[Any]) -> None:
        with self._guard:
            del self._running[future]


def _check(stopped: threading.Event) -> None:
    if stopped.is_set():
        raise SolveStoppedError
