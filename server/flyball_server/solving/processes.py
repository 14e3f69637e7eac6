"""Executor of a few planning processes: each solve has one for itself, and can be stopped."""

from __future__ import annotations

import gc
import multiprocessing
import os
import pickle
import signal
import threading
import traceback
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from typing import Any, ParamSpec, TypeVar

from flyball_pipeline.errors import PipelineError
from flyball_server.planning import planner
from flyball_server.solving.in_thread import (
    SolverLostError,
    SolveStoppedError,
    StoppableFuture,
    no_thread_error,
)
from flyball_wire.command.python_child import PATH_VARIABLES, python_environment

P = ParamSpec("P")
ResultT = TypeVar("ResultT")

_Task = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]

# Niceness of planning processes: answers to ranks have priority over plans.
NICENESS = 5
# Time until a process has ended after the request to end, or after its pipe broke, s.
_END_TIMEOUT_S = 10.0
# multiprocessing keeps one set of all children, without a lock.
_CHILDREN = threading.Lock()


class PlanningProcesses(Executor):
    """Executor with processes that are started on demand.

    A process that ends during a solve fails it with SolverLostError and is replaced. `cancel` of a
    running solve kills its process. All end with the planner, also when that is killed.

    Thread-safe. The function, its arguments and its result must be picklable, the function by its
    name.

    Args:
        num_processes: number of concurrent solves, at least 1.
    """

    def __init__(self, num_processes: int) -> None:
        if num_processes < 1:
            raise ValueError(f"num_processes must be at least 1, not {num_processes}")
        self._num_processes = num_processes
        self._guard = threading.Lock()
        self._idle: list[_Process] = []
        # By started solve, its process once assigned.
        self._begun: dict[StoppableFuture[Any], _Process | None] = {}
        self._stopped: set[StoppableFuture[Any]] = set()
        self._threads: ThreadPoolExecutor | None = None
        self._is_shut_down = False

    def start(self) -> None:
        """Start one process, so that the first solve does not wait for it; does not block.

        After a shutdown, solves are accepted again.
        """
        with self._guard:
            if self._is_shut_down:
                self._is_shut_down, self._threads = False, None
        self.submit(_nothing)

    def submit(
        self, fn: Callable[P, ResultT], /, *args: P.args, **kwargs: P.kwargs
    ) -> StoppableFuture[ResultT]:
        """Submit a solve and return its future, which fails if no thread can be started.

        Raises:
            RuntimeError: the executor is shut down.
        """
        future: StoppableFuture[ResultT] = StoppableFuture(self._stop)
        with self._guard:
            if self._is_shut_down:
                raise RuntimeError("the planning processes are shut down")
            if self._threads is None:
                self._threads = ThreadPoolExecutor(self._num_processes, "flyball-planning")
            try:
                self._threads.submit(self._run, future, (fn, args, kwargs))
            except RuntimeError as error:
                future.cancel()  # it is waiting, and a thread may take it later
                failed: StoppableFuture[ResultT] = StoppableFuture(self._stop)
                failed.set_exception(no_thread_error(error))
                return failed
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = True) -> None:
        """End all processes now; running and waiting solves end with SolveStoppedError."""
        del cancel_futures  # a solve may take minutes, and its result is not awaited
        with self._guard:
            self._is_shut_down = True
            begun = tuple(self._begun)
            idle, self._idle = self._idle, []
            threads = self._threads
        for future in begun:
            future.cancel()
        for process in idle:
            process.end()
        if threads is not None:
            threads.shutdown(wait=wait)

    def _stop(self, future: StoppableFuture[Any]) -> None:
        with self._guard:
            if future not in self._begun:
                return  # it has ended meanwhile
            self._stopped.add(future)
            process = self._begun[future]
        if process is not None:
            process.kill()

    def _run(self, future: StoppableFuture[Any], task: _Task) -> None:
        with self._guard:
            self._begun[future] = None
        if not future.set_running_or_notify_cancel():
            with self._guard:
                del self._begun[future]
            return
        try:
            is_good, answer = self._solved(future, pickle.dumps(task, pickle.HIGHEST_PROTOCOL))
        except BaseException as error:
            is_good, answer = False, error
        if is_good:
            future.set_result(answer)
        else:
            future.set_exception(answer)

    def _solved(self, future: StoppableFuture[Any], pickled: bytes) -> tuple[bool, Any]:
        """Return true and the result, or false and the exception."""
        process = None
        is_kept = False
        try:
            process = self._begin(future)
            outcome = process.solve(pickled)
            is_kept = True
        except SolverLostError:
            if self._is_unwanted(future):
                raise SolveStoppedError from None
            raise
        finally:
            with self._guard:
                # A process that was killed just after its answer cannot be used again.
                is_kept = is_kept and not self._is_unwanted(future)
                del self._begun[future]
                self._stopped.discard(future)
                if is_kept and process is not None:
                    self._idle.append(process)
            if process is not None and not is_kept:
                process.end()
        is_good, answer = pickle.loads(outcome)  # noqa: S301 - from a process of ours
        return is_good, answer

    def _is_unwanted(self, future: StoppableFuture[Any]) -> bool:
        return self._is_shut_down or future in self._stopped

    def _begin(self, future: StoppableFuture[Any]) -> _Process:
        """Return a process for the solve, the idle process used last, or else a new process.

        Raises:
            SolveStoppedError: the solve was cancelled before it had a process.
        """
        with self._guard:
            process = self._idle.pop() if self._idle else None
        # An idle one may have been killed from outside.
        if process is not None and not process.is_usable():
            process.end()
            process = None
        process = process or _Process()
        with self._guard:
            self._begun[future] = process
            is_wanted = not self._is_unwanted(future)
        if not is_wanted:
            process.end()
            raise SolveStoppedError
        return process


class _Process:
    """Planning process and its pipe; used by one thread at a time, except for `kill`."""

    def __init__(self) -> None:
        # A fork of the planner would hold its locks and listen on its socket.
        context = multiprocessing.get_context("forkserver")
        with _CHILDREN, _child_environment():
            # What all need would otherwise be loaded by each process.
            context.set_forkserver_preload([__name__, planner.__name__])
            self._connection, theirs = context.Pipe()
            self._process = context.Process(
                target=serve, args=(theirs,), name="flyball-planning", daemon=True
            )
            self._process.start()
            theirs.close()

    def is_usable(self) -> bool:
        """Return whether an idle process runs: its pipe is readable only after its end."""
        return not self._connection.poll(0)

    def solve(self, pickled: bytes) -> bytes:
        """Return the outcome, as from `outcome_of`.

        Raises:
            SolverLostError: the process has ended before it had one.
        """
        try:
            self._connection.send_bytes(pickled)
            return self._connection.recv_bytes()
        except (EOFError, OSError):
            raise SolverLostError(self._ending()) from None

    def kill(self) -> None:
        with _CHILDREN:
            self._process.kill()

    def end(self) -> None:
        """Kill the process and wait for its end."""
        self.kill()
        self._exit_status()
        self._connection.close()

    def _ending(self) -> str:
        status = self._exit_status()
        if status is None:
            return "the planning process does not answer any more"
        if status < 0:
            return f"the planning process was ended by {_signal_name(-status)}"
        return f"the planning process has ended with status {status}"

    def _exit_status(self) -> int | None:
        """Return the exit status as in subprocess: -9 after SIGKILL; None: running."""
        wait([self._process.sentinel], timeout=_END_TIMEOUT_S)
        with _CHILDREN:
            self._process.join(0)
            return self._process.exitcode


@contextmanager
def _child_environment() -> Generator[None]:
    """Have multiprocessing start its fork server and resource tracker without the working folder.

    It offers neither their command nor their environment to be changed.
    """
    before = {name: os.environ.get(name) for name in PATH_VARIABLES}
    made = python_environment(os.environ)
    _set_variables({name: made.get(name) for name in PATH_VARIABLES})
    try:
        yield
    finally:
        _set_variables(before)


def _set_variables(values: Mapping[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def _nothing() -> None:
    """Do nothing: the function of a solve that only starts a process."""


def _signal_name(number: int) -> str:
    try:
        return f"signal {number} ({signal.Signals(number).name})"
    except ValueError:
        return f"signal {number}"


def serve(connection: Connection) -> None:
    """Solve each received pickled task; end when the planner closes its end or exits."""
    # Ctrl-C is sent to all processes of the terminal; the planner ends its own.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.nice(NICENESS)
    threading.Thread(target=_end_with_planner, name="flyball-planner-watch", daemon=True).start()
    # Objects that exist by now stay: collecting them takes longer than many a solve.
    gc.collect()
    gc.freeze()
    while True:
        try:
            pickled = connection.recv_bytes()
        except EOFError:
            return
        connection.send_bytes(outcome_of(pickled))


def outcome_of(pickled: bytes) -> bytes:
    """Return a pickled (True, result) or (False, exception) of a pickled task."""
    try:
        function, args, kwargs = pickle.loads(pickled)  # noqa: S301 - from the planner itself
        return pickle.dumps((True, function(*args, **kwargs)), pickle.HIGHEST_PROTOCOL)
    except Exception as error:
        return pickle.dumps((False, _portable(error)), pickle.HIGHEST_PROTOCOL)


def _portable(error: Exception) -> Exception:
    """Return the exception in picklable form; if it has none, another with its text."""
    text = traceback.format_exc()
    if not isinstance(error, PipelineError):
        error.add_note(f"in a planning process:\n{text}")
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301 - of our own making
    except Exception:
        return RuntimeError(text)
    return error


def _end_with_planner() -> None:
    """End this process when the planner has ended, for any reason."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
