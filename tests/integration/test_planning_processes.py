"""Plans are solved in processes beside the planner: it answers, changes its mind, and ends."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import httpx
import pytest
from distributed import LocalCluster
from tests.planner import solves
from tests.planner.live import (
    LivePlanner,
    ServeProcess,
    live_planner,
    serve_environment,
    serve_process,
)
from tests.planner.patience import PATIENCE_S, wait_until
from tests.planner.samples import profile_csv

from flyball_server.app import release_long_polls
from flyball_server.jobs.reconcile.plans import PlanReconciler
from flyball_server.solving.in_thread import SolverAwayError, SolveStoppedError
from flyball_server.solving.on_dask import DaskWorkers
from flyball_wire import routes

JOB = routes.fill(routes.JOB, job_id="job")
TARGET = routes.fill(routes.TARGET, job_id="job")
PROFILE = routes.fill(routes.PROFILE, job_id="job")
CSV = {"Content-Type": "text/csv"}


@pytest.fixture
def planning(tmp_path: Path) -> solves.Planner:
    return solves.Planner(tmp_path)


@contextmanager
def in_background(planner: LivePlanner) -> Iterator[ThreadPoolExecutor]:
    """Threads for calls that wait; they end with the planner's solves."""
    with ThreadPoolExecutor(64) as threads:
        try:
            yield threads
        finally:
            planner.state.services.executor.shutdown()
            release_long_polls(planner.app)


def solving_pid(planning: solves.Planner) -> int:
    """The process of the solve that goes on without an end, once it does."""
    wait_until(planning.solving.exists)
    return solves.pid_in(planning.solving) or 0


def is_gone(pid: int) -> bool:
    return not solves.is_there(pid)


@pytest.mark.parametrize("num_processes", [1, 0])
def test_a_new_target_stops_the_solve_for_the_old_one(tmp_path: Path, num_processes: int) -> None:
    planning = solves.Planner(tmp_path, asks=num_processes == 0)
    with (
        live_planner(planner=planning, planning_processes=num_processes) as planner,
        in_background(planner) as threads,
    ):
        planner.put_job().raise_for_status()
        first = threads.submit(planner.put_profile)
        if planning.asks:
            wait_until((tmp_path / "asking").exists)
            is_over = (tmp_path / "ended").exists
        else:
            is_over = partial(is_gone, solving_pid(planning))
        second = planner.http.put(TARGET, json={"target": "least-energy"})
        wait_until(is_over)
        for answer in (first.result(PATIENCE_S), second):
            assert (answer.status_code, answer.json()["newest_version"]) == (200, 1)
        assert answer.json()["registration"]["target"] == "least-energy"


def test_a_change_by_another_planner_on_the_store_stops_a_solve_too(
    planning: solves.Planner,
) -> None:
    with (
        live_planner(planner=planning, planning_processes=1) as planner,
        in_background(planner) as threads,
    ):
        planner.put_job().raise_for_status()
        first = threads.submit(planner.put_profile)
        pid = solving_pid(planning)
        with planner.state.services.store.writing("job") as writer:
            writer.delete_job("job")
        assert first.result(PATIENCE_S).status_code == 404
        wait_until(lambda: is_gone(pid))


def test_a_plan_whose_processes_die_again_fails_alone_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flyball_server.jobs.reconcile.plans.LOST_PAUSE_S", 0.1)
    dying = solves.Planner(tmp_path, num_deaths=3)
    with (
        live_planner(
            planner=dying, planning_processes=2, reconcilers=(PlanReconciler(),)
        ) as planner,
        in_background(planner) as threads,
    ):
        planner.put_job("endless").raise_for_status()
        endless = threads.submit(planner.put_profile, job_id="endless")
        pid = solving_pid(dying)
        planner.put_job(target="power:9").raise_for_status()
        answer = planner.put_profile()
        assert answer.status_code == 422
        assert answer.json()["errors"][0]["loc"] == "planning"
        assert "signal 9 (SIGKILL), also at a second attempt" in answer.json()["detail"]
        job = planner.http.get(JOB).json()
        assert (job["state"], job["problem"]) == ("planning-failed", answer.json()["detail"])
        assert solves.is_there(pid)
        assert not endless.done()
        # One that dies once is replaced, and its plan is made.
        assert planner.put_profile().json()["state"] == "planned"
        assert len(list(tmp_path.glob("death-*"))) == 3


def test_calls_that_wait_for_a_plan_keep_no_other_waiting(planning: solves.Planner) -> None:
    with (
        live_planner(planner=planning, planning_processes=1) as planner,
        in_background(planner) as threads,
        # The planner's pool for calls has 40 threads: these are more than it could hold.
        httpx.Client(
            base_url=planner.http.base_url,
            timeout=PATIENCE_S,
            limits=httpx.Limits(max_connections=100),
        ) as http,
    ):
        planner.put_job().raise_for_status()
        started = threading.Barrier(61)

        def put() -> httpx.Response:
            started.wait(PATIENCE_S)
            return http.put(PROFILE, content=profile_csv(), headers=CSV)

        waiting = [threads.submit(put) for _ in range(60)]
        started.wait(PATIENCE_S)
        solving_pid(planning)
        planner.put_job("other", target="least-energy").raise_for_status()
        for _ in range(50):
            assert planner.http.get(JOB).json()["state"] == "awaiting-profile"
        assert not any(call.done() for call in waiting)
        planner.http.put(TARGET, json={"target": "least-energy"}).raise_for_status()
        versions = {call.result(PATIENCE_S).json()["newest_version"] for call in waiting}
        assert versions == {1}


def children_of(pid: int) -> set[int]:
    """All processes below this one."""
    found: set[int] = set()
    for tasks in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, tasks.read_text(encoding="utf-8").split()):
            found |= {child} | children_of(child)
    return found


def put_endless_job(served: ServeProcess) -> None:
    """A job whose planning goes on for half a minute at least."""
    served.put_job(num_microbatches=1024, effort="high").raise_for_status()
    with pytest.raises((httpx.TransportError, httpx.HTTPStatusError)):
        served.put_profile().raise_for_status()


@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGKILL])
def test_a_planner_that_ends_while_it_solves_leaves_no_process_and_the_job_to_be_planned(
    tmp_path: Path, ending: signal.Signals
) -> None:
    database = tmp_path / "planner.sqlite"
    with serve_process(database, environment=serve_environment()) as served:
        calling = threading.Thread(target=put_endless_job, args=(served,))
        calling.start()
        with httpx.Client(base_url=served.http.base_url, timeout=PATIENCE_S) as http:
            # The profile is stored before it is planned.
            wait_until(lambda: http.get(PROFILE).status_code == 200)
        children = children_of(served.process.pid)
        assert children
        served.process.send_signal(ending)
        status = served.process.wait(PATIENCE_S)
        calling.join(PATIENCE_S)
        assert status == (-ending if ending is signal.SIGKILL else 0)
        wait_until(lambda: all(map(is_gone, children)))
    with serve_process(database) as again:
        # Found unplanned: it is being planned already, and the new effort stops that.
        answer = again.http.put(TARGET, json={"effort": "low"}).raise_for_status()
        assert (answer.json()["state"], answer.json()["newest_version"]) == ("planned", 1)
        again.end(signal.SIGTERM)


@pytest.fixture(scope="module")
def dask_cluster() -> Iterator[str]:
    """A scheduler with one worker, as threads; its address as the setting takes it."""
    with LocalCluster(  # type: ignore[no-untyped-call]  # distributed has no types
        n_workers=1,
        threads_per_worker=1,
        processes=False,
        protocol="tcp",
        host="127.0.0.1",
        dashboard_address=None,
    ) as cluster:
        yield cluster.scheduler_address.replace("tcp", "dask")


def test_plans_are_solved_on_dask_where_that_is_asked_for(
    tmp_path: Path, dask_cluster: str
) -> None:
    environment = serve_environment(FLYBALL_PLANNING_EXECUTOR=dask_cluster)
    with serve_process(tmp_path / "planner.sqlite", environment=environment) as served:
        served.put_job(effort="low").raise_for_status()
        answer = served.put_profile()
        assert (answer.status_code, answer.json()["newest_version"]) == (200, 1)
        refused = served.http.put(TARGET, json={"target": "deadline:0.001"})
        assert refused.status_code == 422
        assert refused.json()["errors"][0]["loc"] == "target"
        assert not children_of(served.process.pid)
        assert served.end(signal.SIGINT)[0] == 0


def test_a_solve_on_dask_ends_when_it_is_cancelled_and_when_its_planner_is_gone(
    tmp_path: Path, dask_cluster: str
) -> None:
    executor = DaskWorkers(dask_cluster.replace("dask", "tcp"))  # one worker of one thread
    asking, ended = tmp_path / "asking", tmp_path / "ended"
    try:
        endless = executor.submit(solves.ask_on, tmp_path)
        wait_until(asking.exists)
        assert endless.cancel()
        assert isinstance(endless.exception(PATIENCE_S), SolveStoppedError)
        wait_until(ended.exists)
        # The worker is left to the next one.
        asking.unlink()
        ended.unlink()
        executor.submit(solves.ask_on, tmp_path)
        wait_until(asking.exists)
    finally:
        executor.shutdown()
    wait_until(ended.exists)


def test_a_scheduler_that_does_not_answer_fails_the_solve(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flyball_server.solving.on_dask.CONNECT_TIMEOUT_S", 0.2)
    executor = DaskWorkers("tcp://127.0.0.1:1")
    with pytest.raises(SolverAwayError, match=r"Dask at tcp://127\.0\.0\.1:1 does not answer"):
        executor.submit(abs, -1).result(PATIENCE_S)
