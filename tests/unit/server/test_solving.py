"""The executors: results and errors cross, a solve can be stopped, a process that ends is told."""

from __future__ import annotations

import os
import signal
import threading
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Executor
from pathlib import Path

import pytest
from tests.planner import solves
from tests.planner.patience import PATIENCE_S, wait_until

from flyball_server.app import make_executor, num_frontiers_at_once
from flyball_server.planning.errors import TargetUnreachableError
from flyball_server.settings import SettingsError, load_settings
from flyball_server.solving.in_thread import (
    PlannerThreads,
    SolverAwayError,
    SolverLostError,
    SolveStoppedError,
)
from flyball_server.solving.on_dask import DaskWorkers
from flyball_server.solving.processes import NICENESS, PlanningProcesses

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def processes() -> Iterator[PlanningProcesses]:
    made = PlanningProcesses(2)
    yield made
    made.shutdown()


@pytest.fixture(params=["in threads", "in processes"])
def executor(request: pytest.FixtureRequest, processes: PlanningProcesses) -> Executor:
    return PlannerThreads() if request.param == "in threads" else processes


def test_a_refusal_comes_back_with_its_kind_its_message_and_its_field(executor: Executor) -> None:
    with pytest.raises(TargetUnreachableError) as caught:
        executor.submit(solves.refuse, "target").result(PATIENCE_S)
    assert (caught.value.field, caught.value.message) == ("target", "not to be met")
    assert caught.value.nearest_target == "deadline:1.68"
    assert str(caught.value) == "target: not to be met"


def test_a_failure_comes_back_with_its_place_and_the_next_solve_goes_on(
    executor: Executor,
) -> None:
    error = executor.submit(solves.fail).exception(PATIENCE_S)
    assert isinstance(error, ZeroDivisionError)
    assert "in fail" in "".join(
        (*traceback.format_exception(error), *getattr(error, "__notes__", ()))
    )
    assert executor.submit(divmod, 7, 2).result(PATIENCE_S) == (3, 1)


def test_what_cannot_be_sent_there_or_back_fails_alone(processes: PlanningProcesses) -> None:
    with pytest.raises((AttributeError, TypeError), match="pickle"):
        processes.submit(lambda: 1).result(PATIENCE_S)
    with pytest.raises(TypeError, match="pickle"):
        processes.submit(threading.Lock).result(PATIENCE_S)
    assert processes.submit(abs, -1).result(PATIENCE_S) == 1


def test_cancelling_ends_one_process_of_low_priority_alone_and_what_waits_never_begins(
    processes: PlanningProcesses, tmp_path: Path
) -> None:
    assert processes.submit(solves.niceness).result(PATIENCE_S) >= min(19, NICENESS)
    files = [tmp_path / name for name in "abc"]
    futures = [processes.submit(solves.leave_pid_and_wait, file) for file in files]
    wait_until(lambda: files[0].exists() and files[1].exists())
    assert futures[2].cancel()
    with pytest.raises(CancelledError):
        futures[2].result(PATIENCE_S)
    stopped_pid, other_pid = (solves.pid_in(file) or 0 for file in files[:2])
    assert futures[0].cancel()
    with pytest.raises(SolveStoppedError):
        futures[0].result(PATIENCE_S)
    wait_until(lambda: not solves.is_there(stopped_pid))
    assert solves.is_there(other_pid)
    assert futures[1].running()
    # Another process has taken the place.
    assert processes.submit(abs, -1).result(PATIENCE_S) == 1
    assert futures[1].cancel()
    assert isinstance(futures[1].exception(PATIENCE_S), SolveStoppedError)
    assert not futures[1].cancel()
    assert not files[2].exists()


def test_a_killed_process_fails_its_solve(processes: PlanningProcesses) -> None:
    with pytest.raises(SolverLostError, match=r"signal 9 \(SIGKILL\)"):
        processes.submit(solves.end_by, signal.SIGKILL).result(PATIENCE_S)
    with pytest.raises(SolverLostError, match="status 3"):
        processes.submit(os._exit, 3).result(PATIENCE_S)
    assert processes.submit(abs, -1).result(PATIENCE_S) == 1
    # One that was killed while idle is replaced.
    pid = processes.submit(os.getpid).result(PATIENCE_S)
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not solves.is_there(pid))
    assert processes.submit(abs, -1).result(PATIENCE_S) == 1


def test_a_shutdown_ends_all_solves_and_allows_a_new_start(tmp_path: Path) -> None:
    executor = PlanningProcesses(1)
    running = executor.submit(solves.leave_pid_and_wait, tmp_path / "a")
    waiting = executor.submit(solves.leave_pid_and_wait, tmp_path / "b")
    wait_until((tmp_path / "a").exists)
    executor.shutdown()
    for future in (running, waiting):
        assert isinstance(future.exception(PATIENCE_S), SolveStoppedError)
    assert not solves.is_there(solves.pid_in(tmp_path / "a") or 0)
    with pytest.raises(RuntimeError):
        executor.submit(abs, -1)
    executor.start()
    pid = executor.submit(os.getpid).result(PATIENCE_S)
    assert solves.is_there(pid)
    executor.shutdown()
    assert not solves.is_there(pid)


def test_cancelling_ends_one_thread_alone(tmp_path: Path) -> None:
    executor = PlannerThreads()
    folders = [tmp_path / name for name in "ab"]
    for folder in folders:
        folder.mkdir()
    futures = [executor.submit(solves.ask_on, folder) for folder in folders]
    wait_until(lambda: all((folder / "asking").exists() for folder in folders))
    assert futures[0].cancel()
    with pytest.raises(SolveStoppedError):
        futures[0].result(PATIENCE_S)
    assert (folders[0] / "ended").exists()
    assert not futures[0].cancel()
    assert futures[1].running()
    executor.shutdown()
    assert isinstance(futures[1].exception(PATIENCE_S), SolveStoppedError)
    with pytest.raises(RuntimeError):
        executor.submit(abs, -1)
    executor.start()
    assert executor.submit(abs, -1).result(PATIENCE_S) == 1


@pytest.mark.parametrize("make", [PlannerThreads, lambda: PlanningProcesses(1)])
def test_without_a_thread_a_solve_fails_and_says_so_and_the_next_one_goes_on(
    make: Callable[[], Executor], monkeypatch: pytest.MonkeyPatch
) -> None:
    executor = make()

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as without_threads:
        without_threads.setattr(threading.Thread, "start", refuse)
        future = executor.submit(abs, -1)
    with pytest.raises(SolverAwayError, match=r"no thread .* \(can't start new thread\)"):
        future.result(PATIENCE_S)
    assert not future.cancel()
    assert executor.submit(abs, -1).result(PATIENCE_S) == 1
    executor.shutdown()


def test_the_executor_is_chosen_by_the_settings() -> None:
    assert isinstance(make_executor(0, None), PlannerThreads)
    assert isinstance(make_executor(1, None), PlanningProcesses)
    assert isinstance(make_executor(0, "dask://localhost:8786"), DaskWorkers)
    with pytest.raises(ValueError, match="at least 1"):
        PlanningProcesses(0)
    # One process is always left for plans.
    assert [num_frontiers_at_once(num, None) for num in (0, 1, 2, 8)] == [1, 1, 1, 7]


def test_an_executor_that_cannot_be_used_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for address in ("", "dask://", "dask://host", "tcp://h:1", "dask://:1", "dask://h:65536"):
        with pytest.raises(SettingsError, match="must be dask://HOST:PORT"):
            load_settings(planning_executor=address)
    assert load_settings(planning_executor="dask://host:8786").planning_processes >= 2
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(SettingsError, match="needs Dask; install the extra dask"):
        load_settings(planning_executor="dask://host:8786")
