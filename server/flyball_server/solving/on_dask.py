"""Executor of Dask workers: many planning processes on other machines."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError, Executor, Future
from typing import Any, ParamSpec, TypeVar

from flyball_server.planning.cancellation import Check, cancelled_by
from flyball_server.solving.in_thread import (
    SolverAwayError,
    SolverLostError,
    SolveStoppedError,
    StoppableFuture,
)

P = ParamSpec("P")
ResultT = TypeVar("ResultT")

CONNECT_TIMEOUT_S = 5
# Dask's state of a task that runs but was cancelled.
_CANCELLED = "cancelled"


class DaskWorkers(Executor):
    """Executor on a Dask scheduler's workers, which must have the planner's Flyball installed.

    It connects at the first solve. If the scheduler does not answer, a solve ends with
    SolverAwayError; if several workers were lost, with SolverLostError. A cancelled solve ends at
    once for its caller, and on its worker at the solver's next check for cancellation; so does one
    of a planner that is gone.

    Args:
        address: address of the scheduler, `tcp://HOST:PORT`.
    """

    def __init__(self, address: str) -> None:
        self._address = address
        self._guard = threading.Lock()
        # distributed is an extra: its types are missing without it.
        self._client: Any = None
        self._is_shut_down = False

    def submit(
        self, fn: Callable[P, ResultT], /, *args: P.args, **kwargs: P.kwargs
    ) -> StoppableFuture[ResultT]:
        """Submit a solve and return its future, which counts as running from now on.

        Raises:
            RuntimeError: the executor is shut down.
        """
        stopped = threading.Event()
        inner: list[Future[Any]] = []

        def stop(_future: StoppableFuture[ResultT]) -> None:
            stopped.set()
            for future in inner:
                future.cancel()

        outer: StoppableFuture[ResultT] = StoppableFuture(stop)
        outer.set_running_or_notify_cancel()
        try:
            submitted: Future[Any] = self._executor().submit(run_while_wanted, fn, args, kwargs)
        except OSError as error:
            problem = f"Dask at {self._address} does not answer ({error})"
            outer.set_exception(SolverAwayError(problem))
            return outer
        inner.append(submitted)
        submitted.add_done_callback(lambda done: _pass_on(done, outer))
        if stopped.is_set():
            submitted.cancel()
        return outer

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = True) -> None:
        """Disconnect from the scheduler, which drops the submitted solves."""
        del wait, cancel_futures
        with self._guard:
            self._is_shut_down = True
            client, self._client = self._client, None
        if client is not None:
            client.close()

    def _executor(self) -> Any:  # noqa: ANN401 - an executor of distributed
        # Imported here: it takes a second, and is needed with Dask only.
        distributed: Any = importlib.import_module("distributed")
        with self._guard:
            if self._is_shut_down:
                raise RuntimeError("the executor is shut down")
            if self._client is None:
                self._client = distributed.Client(
                    self._address, timeout=CONNECT_TIMEOUT_S, set_as_default=False
                )
            return self._client.get_executor(pure=False)


def run_while_wanted(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:  # noqa: ANN401 - of any function
    """Run the function as a task on its worker and return its result.

    Raises:
        SolveStoppedError: the solve was cancelled.
    """
    with cancelled_by(_check_of_task()):
        return function(*args, **kwargs)


def _check_of_task() -> Check:
    """Return the check of the task that runs in this thread of a worker.

    Dask cannot end a thread. The scheduler notifies the worker of a task that was cancelled, or of
    a lost client; the worker records it, but has no public interface for it.
    """
    distributed: Any = importlib.import_module("distributed")
    worker: Any = distributed.get_worker()
    key: Any = worker.get_current_task()

    def check() -> None:
        task: Any = worker.state.tasks.get(key)
        if task is None or task.state == _CANCELLED:
            raise SolveStoppedError

    return check


def _pass_on(done: Future[Any], outer: StoppableFuture[Any]) -> None:
    """Pass the inner future's outcome on to the outer one."""
    try:
        outer.set_result(done.result())
    except CancelledError:
        outer.set_exception(SolveStoppedError())
    except Exception as error:
        is_lost = type(error).__name__ == "KilledWorker"
        outer.set_exception(SolverLostError(f"Dask: {error}") if is_lost else error)
