"""The reconcile loop: every job that was enqueued is reconciled, and nothing ends it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest
from tests.planner.patience import wait_until
from tests.planner.samples import (
    CountingPlanner,
    Services,
    frequency_plan,
    job_record,
    job_spec,
    profile,
)
from tests.planner.use_cases import register_job

from flyball_server.jobs.errors import MissingProfileError, StoreBusyError, UnknownJobError
from flyball_server.jobs.reconcile import all_reconcilers
from flyball_server.jobs.reconcile.loop import NUM_THREADS, ReconcileLoop, Reconciler
from flyball_server.jobs.records import JobRecord
from flyball_server.jobs.registry import inputs
from flyball_server.jobs.registry.inspection import get_job
from flyball_server.jobs.replanning.plan_job import NUM_SLOTS
from flyball_server.jobs.services import JobServices
from flyball_server.jobs.store.contract import JobReader
from flyball_server.planning.plan import FrequencyPlan
from flyball_server.planning.planner import PlanRequest

pytestmark = pytest.mark.slow

WAIT_S = 10.0


class LastReconciler:
    """After all others, and after no posts."""

    order = 100

    def runs_after_posts(self, reader: JobReader, job: JobRecord) -> bool:
        del reader, job
        return False


class Looking(LastReconciler):
    """A reaction that tells when it was called, and may fail first."""

    def __init__(self, *failures: Exception, again_s: float | None = None) -> None:
        self.looked: list[str] = []
        self.threads: set[str] = set()
        self._failures = list(failures)
        self._again_s = again_s
        self._changed = threading.Condition()

    def __call__(self, services: JobServices, job_id: str) -> float | None:
        with self._changed:
            self.looked.append(job_id)
            self.threads.add(threading.current_thread().name)
            self._changed.notify_all()
        if self._failures:
            raise self._failures.pop(0)
        return self._again_s

    def wait_for(self, num_looks: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.looked) >= num_looks, WAIT_S)


@contextmanager
def running(
    *reconcilers: Reconciler,
    job_ids: tuple[str, ...] = (),
    services: JobServices | None = None,
    **options: float,
) -> Iterator[ReconcileLoop]:
    services = services or Services(CountingPlanner()).jobs
    with services.store.writing("job") as writer:
        for job_id in job_ids:
            writer.save_job(job_record(job_id))
    reconcile_loop = ReconcileLoop(reconcilers, **options)
    reconcile_loop.start(services)
    try:
        yield reconcile_loop
    finally:
        reconcile_loop.stop()


def test_a_job_is_looked_at_after_a_notice_and_many_notices_are_one_look() -> None:
    looking = Looking()
    with running(looking) as reconcile_loop:
        for _ in range(1000):
            reconcile_loop.enqueue_reconcile("job")
        looking.wait_for(1)
    # Some of the thousand may have come after the first look.
    assert 1 <= len(looking.looked) <= 2


def test_a_job_is_looked_at_again_when_the_reaction_asks_for_it() -> None:
    looking = Looking(again_s=0.0)
    with running(looking, job_ids=("job",)):
        looking.wait_for(3)


@pytest.mark.parametrize("failure", [MissingProfileError(job_id="job"), ZeroDivisionError("no")])
def test_a_failure_stops_no_other(failure: Exception, caplog: pytest.LogCaptureFixture) -> None:
    failing, other = Looking(failure), Looking()
    with running(failing, other, job_ids=("job",)) as reconcile_loop:
        other.wait_for(1)
        reconcile_loop.enqueue_reconcile("job")
        failing.wait_for(2)
        other.wait_for(2)
    assert "job job: " in caplog.text


def test_a_store_failure_is_retried_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flyball_server.jobs.reconcile.loop._STORE_RETRY_S", 0.1)
    failing = Looking(StoreBusyError(location="here"))
    with running(failing, job_ids=("job",)):
        failing.wait_for(2)


def test_stopping_ends_the_thread_and_may_come_before_starting() -> None:
    ReconcileLoop(()).stop()
    with running(Looking()):
        pass
    assert not [one for one in threading.enumerate() if one.name.startswith("flyball-reconcile")]


def test_a_reaction_that_asks_for_a_look_in_centuries_ends_nothing() -> None:
    looking = Looking(again_s=3e11)
    with running(looking, job_ids=("job",)) as reconcile_loop:
        looking.wait_for(1)
        reconcile_loop.enqueue_reconcile("job")
        looking.wait_for(2)


class Crossing(LastReconciler):
    """A reaction that notes how many looks at a job, and at all jobs, go on at once."""

    def __init__(self, *, until_at_once: int) -> None:
        self.most_of_a_job = 0
        self.most = 0
        self.num_looks = 0
        self._now: list[str] = []
        self._until = until_at_once
        self._changed = threading.Condition()

    def __call__(self, services: JobServices, job_id: str) -> None:
        with self._changed:
            self._now.append(job_id)
            self.num_looks += 1
            self.most_of_a_job = max(self.most_of_a_job, self._now.count(job_id))
            self.most = max(self.most, len(self._now))
            self._changed.notify_all()
            self._changed.wait_for(lambda: self.most >= self._until, WAIT_S)
            self._now.remove(job_id)

    def wait_for(self, num_looks: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self.num_looks >= num_looks, WAIT_S)


def test_a_job_that_takes_long_keeps_no_other_waiting() -> None:
    crossing = Crossing(until_at_once=2)
    with running(crossing, job_ids=("a", "b")):
        crossing.wait_for(2)
    assert crossing.most == 2


def test_jobs_that_are_all_being_planned_stop_no_reaction_to_others() -> None:
    may_go = threading.Event()

    class Held(CountingPlanner):
        def __call__(self, request: PlanRequest) -> FrequencyPlan:
            self.requests.append(request)
            assert may_go.wait(WAIT_S)
            return frequency_plan()

    planner = Held()
    services = Services(planner).jobs
    for number in range(NUM_THREADS):
        register_job(services, f"job-{number}", job_spec())
        inputs.put_profile(services, f"job-{number}", profile())
    looking = Looking()
    reconcile_loop = ReconcileLoop((*all_reconcilers(), looking))
    reconcile_loop.start(services)
    wait_until(lambda: len(planner.requests) == NUM_SLOTS)
    register_job(services, "other", job_spec())
    reconcile_loop.enqueue_reconcile("other")
    wait_until(lambda: "other" in looking.looked)
    assert len(planner.requests) == NUM_SLOTS
    may_go.set()
    wait_until(lambda: len(planner.requests) == NUM_THREADS)
    reconcile_loop.stop()
    plans = [get_job(services, f"job-{number}").newest_version for number in range(NUM_THREADS)]
    assert plans == [1] * NUM_THREADS


def test_one_of_several_planners_on_a_store_looks_at_a_job_at_a_time() -> None:
    services = Services(CountingPlanner()).jobs
    crossing = Crossing(until_at_once=1)
    with (
        running(crossing, services=services, job_ids=("job",)) as one,
        running(crossing, services=services) as other,
    ):
        for num_looks in range(1, 20):
            one.enqueue_reconcile("job")
            other.enqueue_reconcile("job")
            crossing.wait_for(num_looks)
    assert crossing.most_of_a_job == 1


def test_a_job_that_another_planner_looks_at_is_looked_at_after_it() -> None:
    services = Services(CountingPlanner()).jobs
    looking = Looking()
    with ExitStack() as stack:
        with services.store.lock("reconcile job"):
            loop = stack.enter_context(running(looking, services=services, job_ids=("job",)))
            loop.enqueue_reconcile("job")
        looking.wait_for(1)
    assert looking.looked[0] == "job"


def test_all_jobs_are_looked_at_again_in_every_round() -> None:
    looking = Looking()
    services = Services(CountingPlanner()).jobs
    with running(looking, services=services, job_ids=("job",), round_s=0.1):
        looking.wait_for(3)
        # As one that another planner on the store has registered, and then died.
        with services.store.writing("later") as writer:
            writer.save_job(job_record("later"))
        wait_until(lambda: "later" in looking.looked)


def test_a_job_that_is_gone_is_looked_at_no_more(caplog: pytest.LogCaptureFixture) -> None:
    gone, other = Looking(UnknownJobError(job_id="gone"), again_s=0.0), Looking()
    with running(gone, other) as reconcile_loop:
        reconcile_loop.enqueue_reconcile("gone")
        gone.wait_for(1)
        reconcile_loop.enqueue_reconcile("job")
        other.wait_for(1)
    assert other.looked == ["job"]
    assert gone.looked.count("gone") == 1
    assert caplog.text == ""
