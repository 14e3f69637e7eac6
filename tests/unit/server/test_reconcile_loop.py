"""The reconcile loop: every job that was enqueued is reconciled, and nothing ends it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from tests.planner.one_rank import register_rank, store_measurements
from tests.planner.patience import wait_until
from tests.planner.sample_plans import frequency_plan
from tests.planner.samples import (
    CountingPlanner,
    Services,
    job_record,
    job_spec,
    profile,
    rank_record,
    step_record,
)
from tests.planner.use_cases import register_job

from flyball_server.jobs.errors import MissingProfileError, StoreBusyError, UnknownJobError
from flyball_server.jobs.loop_state import Comparison
from flyball_server.jobs.reconcile import all_reconcilers
from flyball_server.jobs.reconcile.loop import NUM_THREADS, ReconcileLoop, Reconciler
from flyball_server.jobs.reconcile.solve import NUM_SLOTS
from flyball_server.jobs.records import JobRecord
from flyball_server.jobs.registry import inputs
from flyball_server.jobs.registry.inspection import get_job
from flyball_server.jobs.services import JobServices
from flyball_server.jobs.store.sql.job_reader import JobReader
from flyball_server.planning.planner import PlanRequest
from flyball_wire.messages import JobState
from flyball_wire.plans.plan import Plan

pytestmark = pytest.mark.slow

WAIT_S = 60.0


class LastReconciler:
    """After all others, and after no posts."""

    def runs_after_posts(self, reader: JobReader, job: JobRecord) -> bool:
        del reader, job
        return False


class Looking(LastReconciler):
    """A reaction that tells when it was called, and may fail first."""

    def __init__(self, *failures: Exception, again_s: float | None = None) -> None:
        self.looked: list[str] = []
        self._failures = list(failures)
        self._again_s = again_s
        self._changed = threading.Condition()

    def __call__(self, services: JobServices, job_id: str) -> float | None:
        with self._changed:
            self.looked.append(job_id)
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
    ReconcileLoop(()).stop()  # may come before starting
    looking = Looking()
    with running(looking) as reconcile_loop:
        for _ in range(1000):
            reconcile_loop.enqueue_reconcile("job")
        looking.wait_for(1)
    # Some of the thousand may have come after the first look.
    assert 1 <= len(looking.looked) <= 2
    assert not [one for one in threading.enumerate() if one.name.startswith("flyball-reconcile")]


def test_a_job_is_looked_at_again_when_the_reaction_asks_for_it() -> None:
    soon, in_centuries = Looking(again_s=0.0), Looking(again_s=3e11)
    with running(soon, job_ids=("job",)):
        soon.wait_for(3)
    with running(in_centuries, job_ids=("job",)) as reconcile_loop:
        in_centuries.wait_for(1)
        reconcile_loop.enqueue_reconcile("job")
        in_centuries.wait_for(2)


@pytest.mark.parametrize(
    "failure",
    [MissingProfileError(job_id="job"), ZeroDivisionError("no"), StoreBusyError(location="here")],
)
@pytest.mark.reconciler_fails
def test_a_failure_stops_no_other_and_one_of_the_store_is_retried_soon(
    failure: Exception, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flyball_server.jobs.reconcile.loop._STORE_RETRY_S", 0.05)
    failing, other = Looking(failure), Looking()
    with running(failing, other, job_ids=("job",)) as reconcile_loop:
        other.wait_for(1)
        if not isinstance(failure, StoreBusyError):
            reconcile_loop.enqueue_reconcile("job")
        failing.wait_for(2)
        other.wait_for(2)
    assert "job job: " in caplog.text


class Crossing(LastReconciler):
    """A reaction that notes how many looks at a job go on at once."""

    def __init__(self) -> None:
        self.most_of_a_job = 0
        self.num_looks = 0
        self._now: list[str] = []
        self._changed = threading.Condition()

    def __call__(self, services: JobServices, job_id: str) -> None:
        with self._changed:
            self._now.append(job_id)
            self.num_looks += 1
            self.most_of_a_job = max(self.most_of_a_job, self._now.count(job_id))
            self._changed.notify_all()
            self._changed.wait(0.001)
            self._now.remove(job_id)

    def wait_for(self, num_looks: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self.num_looks >= num_looks, WAIT_S)


def test_jobs_that_are_all_being_planned_stop_no_reaction_to_others() -> None:
    may_go = threading.Event()

    class Held(CountingPlanner):
        def __call__(self, request: PlanRequest) -> Plan:
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
    crossing = Crossing()
    with (
        running(crossing, services=services, job_ids=("job",)) as one,
        running(crossing, services=services) as other,
    ):
        for num_looks in range(1, 20):
            one.enqueue_reconcile("job")
            other.enqueue_reconcile("job")
            crossing.wait_for(num_looks)
        with services.store.lock("reconcile job"):
            num_looks = crossing.num_looks
            one.enqueue_reconcile("job")
        crossing.wait_for(num_looks + 1)  # after whoever looked at it
    assert crossing.most_of_a_job == 1


def test_all_jobs_are_looked_at_again_in_every_round() -> None:
    looking = Looking()
    services = Services(CountingPlanner()).jobs
    with running(looking, services=services, job_ids=("job",), round_s=0.02) as reconcile_loop:
        reconcile_loop.enqueue_reconcile("never stored")
        looking.wait_for(3)
        # As one that another planner on the store has registered, and then died.
        with services.store.writing("later") as writer:
            writer.save_job(job_record("later"))
        wait_until(lambda: "later" in looking.looked)
    assert looking.looked.count("never stored") <= 1


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


@pytest.mark.parametrize(
    "failure", [StoreBusyError(location="here"), ZeroDivisionError("no")], ids=str
)
@pytest.mark.reconciler_fails
def test_rows_of_deleted_jobs_are_removed_a_round_after_a_failure(
    failure: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("flyball_server.jobs.reconcile.loop._STORE_RETRY_S", 0.05)
    services = Services(CountingPlanner()).jobs
    answers: Iterator[Exception | bool]
    answers = iter([failure, True, False])
    num_asked: list[int] = []

    def forget_some() -> bool:
        answer = next(answers, False)
        num_asked.append(1)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(services.store, "forget_some", forget_some)
    retried = Looking(*[StoreBusyError(location="here")] * 5)
    reconcilers = (retried, *all_reconcilers())
    with running(*reconcilers, services=services, job_ids=("job",)) as reconcile_loop:
        wait_until(lambda: len(num_asked) == 1)
        retried.wait_for(5)
        assert len(num_asked) == 1
        reconcile_loop.enqueue_all()
        wait_until(lambda: len(num_asked) == 3)
        reconcile_loop.enqueue_reconcile("deleted")
        wait_until(lambda: len(num_asked) == 4)
    assert caplog.text.count("rows of deleted jobs are left for later") == 1


# ------------------------------------------------------------------ after posts of ranks

FAILED = {"problem": "no"}


class Noticed:
    """Services that tell which jobs were noticed for steps, with a planned job of one rank."""

    def __init__(
        self,
        state: JobState,
        comparison: Comparison | None,
        *,
        problem: str | None = None,
        **spec: Any,  # noqa: ANN401 - as JobSpec has them
    ) -> None:
        made = Services(CountingPlanner()).jobs
        register_job(made, "job", job_spec(**spec))
        register_rank(made, rank_record(0))
        with made.store.writing("job") as writer:
            job = writer.find_job("job")
            assert job is not None
            writer.save_job(job.evolve(state=state, problem=problem))
            loop_state = writer.find_loop_state("job")
            writer.save_loop_state(loop_state.evolve(comparison=comparison))
        self.jobs: list[str] = []
        self.services: JobServices = replace(
            made,
            enqueue_reconcile=self.jobs.append,
            is_reconciled_after_posts=ReconcileLoop(all_reconcilers()).runs_after_posts,
        )

    def after_a_post(self) -> bool:
        store_measurements(self.services, "job", 0, [step_record(0, 0)])
        assert self.jobs in ([], ["job"])
        return bool(self.jobs)


@pytest.mark.parametrize(
    ("state", "spec", "is_triggered"),
    [
        (JobState.PLANNED, {"adaptation": "frontier"}, True),
        (JobState.PLANNED, {"adaptation": "reconfigure", "policy": "envelope"}, True),
        (JobState.AWAITING_PROFILE, {"profiling": "online"}, True),
        (JobState.PROFILING, {"profiling": "online"}, True),
        (JobState.ENDED, {}, True),
        (JobState.EXPIRED, {}, True),
        # Ranks may be left probing.
        (JobState.PLANNING_FAILED, {**FAILED, "profiling": "online"}, True),
        (JobState.PLANNING_FAILED, FAILED, True),
        # Nothing is to be done.
        (JobState.PLANNED, {}, False),
        (JobState.PLANNED, {"adaptation": "announced"}, False),
        (JobState.PLANNED, {"profiling": "online"}, False),
        (JobState.AWAITING_PROFILE, {}, False),
    ],
)
def test_posts_trigger_reconciliation_where_something_is_to_be_done(
    state: JobState, spec: dict[str, Any], is_triggered: bool
) -> None:
    assert Noticed(state, None, **spec).after_a_post() is is_triggered


@pytest.mark.parametrize("version", [None, 2])
def test_a_comparison_counts_them_until_it_is_over(version: int | None) -> None:
    comparison = Comparison(num_pairs=8, version=version)
    assert Noticed(JobState.PLANNED, comparison).after_a_post()
    assert not Noticed(JobState.PLANNED, replace(comparison, is_done=True)).after_a_post()
