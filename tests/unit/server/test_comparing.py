"""Comparisons: asked for once, run as a version of their own, and always over in the end."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from tests.planner.one_rank import acknowledge, register_rank, store_measurements, take_up
from tests.planner.sample_plans import frequency_plan
from tests.planner.samples import (
    CountingPlanner,
    Services,
    job_spec,
    profile,
    rank_record,
    step_record,
)
from tests.planner.use_cases import change_target, put_profile, register_job

from flyball_server.jobs.errors import JobIsOverError, NoRanksPresentError, UnknownJobError
from flyball_server.jobs.reconcile.plans import PlanReconciler
from flyball_server.jobs.records import PlanRecord
from flyball_server.jobs.savings.comparisons import (
    ComparisonReconciler,
    comparison_cycle,
    delete_comparison,
    get_comparison,
    start_comparison,
)
from flyball_server.jobs.versions.plan_versions import add_version
from flyball_wire.measurements import MeasurementDetail
from flyball_wire.messages import JobState
from flyball_wire.plan_options import TargetChange


class ComparedJob:
    """A job of two ranks whose plan is in force, and its reconciler.

    Attributes:
        next_step: of the ranks.
    """

    def __init__(self, *, is_restarted: bool = False) -> None:
        self.services = Services(CountingPlanner(iteration_time_s=0.9)).jobs
        self.next_step = 0
        self._is_restarted = is_restarted
        self._reconciler = ComparisonReconciler()
        register_job(self.services, "job", job_spec())
        for rank in (0, 1):
            register_rank(self.services, rank_record(rank))

    def reconcile(self) -> None:
        """Reconcile the job; after a restart, by a reconciler without a cache."""
        if self._is_restarted:
            self._reconciler = ComparisonReconciler()
        self._reconciler(self.services, "job")
        PlanReconciler()(self.services, "job")

    def plan(self) -> ComparedJob:
        put_profile(self.services, "job", profile())
        self.activate()
        return self

    def compare(self, num_pairs: int) -> int:
        """Start a comparison; the version of it that both ranks take up."""
        start_comparison(self.services, "job", num_pairs)
        self.reconcile()
        return self.activate()

    def activate(self) -> int:
        """Both ranks take the newest version up; they go on from its first step."""
        version = self.versions()[-1].version
        self.next_step = take_up(
            self.services, (0, 1), version=version, current_step=self.next_step
        )
        return version

    def measure(
        self, num_steps: int, *, ranks: tuple[int, ...] = (0, 1), **changes: object
    ) -> None:
        """So many steps on the version that is in force."""
        numbers = range(self.next_step, self.next_step + num_steps)
        version = max(each.version for each in self.versions() if each.first_step is not None)
        for rank in ranks:
            steps = [step_record(step, rank, plan_version=version, **changes) for step in numbers]
            store_measurements(self.services, "job", rank, steps)
        self.next_step += num_steps

    def versions(self) -> tuple[PlanRecord, ...]:
        with self.services.store.reading() as reader:
            return reader.list_plans("job")

    def progress(self) -> tuple[str, int | None, int]:
        found = get_comparison(self.services, "job")
        return found.state, found.version, found.num_measured_pairs


@pytest.fixture(params=[False, True], ids=["running", "restarted"])
def job(request: pytest.FixtureRequest) -> ComparedJob:
    return ComparedJob(is_restarted=request.param).plan()


def test_the_plain_plan_comes_back_when_enough_pairs_are_measured(job: ComparedJob) -> None:
    assert start_comparison(job.services, "job", 12).state == "running"
    job.reconcile()
    plain, compared = job.versions()
    assert (compared.plan, compared.measurement_detail) == (plain.plan, plain.measurement_detail)
    # 0.9 s a step: blocks of three steps last 2 s, but 12 pairs make six blocks of two.
    assert compared.baseline_cycle == (False,) * 2 + (True,) * 4 + (False,) * 2
    assert job.progress() == ("running", 2, 0)
    assert start_comparison(job.services, "job", 6).version == 2, "fewer end it earlier"
    job.activate()
    job.measure(12)
    job.reconcile()
    # The first step is a warm-up, and its pair is lost.
    assert job.progress() == ("running", 2, 5)
    job.measure(4)
    job.reconcile()
    assert job.progress() == ("done", 2, 7)
    plain, _, again = job.versions()
    assert (again.plan, again.baseline_cycle) == (plain.plan, ())
    job.reconcile()
    assert len(job.versions()) == 3


def test_a_repeated_request_changes_nothing_until_the_end(job: ComparedJob) -> None:
    job.compare(4)
    assert start_comparison(job.services, "job", 4).version == 2
    job.reconcile()
    assert len(job.versions()) == 2
    job.measure(11)
    job.reconcile()
    job.activate()
    assert job.progress()[0] == "done"
    assert start_comparison(job.services, "job", 4).version is None
    job.reconcile()
    assert job.progress() == ("running", 4, 0)


def test_a_new_plan_in_between_ends_the_comparison_and_is_not_undone(job: ComparedJob) -> None:
    job.compare(10)
    job.measure(10)
    change_target(job.services, "job", TargetChange(target="least-energy"))
    job.reconcile()
    assert job.progress() == ("ended", 2, 4)
    assert len(job.versions()) == 3
    job.activate()
    job.measure(30)
    assert job.progress() == ("ended", 2, 4)


def test_a_comparison_whose_steps_are_never_good_is_given_up(job: ComparedJob) -> None:
    job.compare(4)
    job.measure(30, num_unplanned=1)
    job.reconcile()
    assert job.progress() == ("ended", 2, 0)
    assert job.versions()[-1].baseline_cycle == ()


def test_a_run_that_starts_over_goes_on_with_the_comparison(job: ComparedJob) -> None:
    start_comparison(job.services, "job", 4)
    job.next_step = 500
    job.reconcile()
    job.activate()
    job.next_step = 0
    for rank in (0, 1):
        register_rank(job.services, rank_record(rank))
        acknowledge(job.services, "job", rank, version=2, current_step=0)
    assert [each.version for each in job.versions()] == [1, 2, 3]
    job.reconcile()
    assert job.progress() == ("running", 3, 0)
    job.activate()
    job.measure(11)
    job.reconcile()
    assert job.progress()[0] == "done"
    assert job.versions()[-1].baseline_cycle == ()


def test_a_comparison_ignores_older_steps_of_a_run_that_started_over(job: ComparedJob) -> None:
    job.next_step = 5000
    job.measure(3)
    job.next_step = 0
    for rank in (0, 1):
        register_rank(job.services, rank_record(rank))
    job.activate()
    version = job.compare(4)
    job.measure(2)
    job.reconcile()
    assert job.progress()[:2] == ("running", version)
    job.measure(9)
    job.reconcile()
    assert job.progress() == ("done", version, 4)


def test_a_comparison_that_is_withdrawn_gives_the_plain_plan_back(job: ComparedJob) -> None:
    delete_comparison(job.services, "job")
    start_comparison(job.services, "job", 6)
    delete_comparison(job.services, "job")  # before it began
    job.reconcile()
    assert job.progress() == ("none", None, 0)
    job.compare(6)
    job.measure(8)
    delete_comparison(job.services, "job")
    job.reconcile()
    plain, _, again = job.versions()
    assert again == plain.evolve(version=3, created_at=again.created_at, first_step=None)
    assert job.progress() == ("ended", 2, 3)
    delete_comparison(job.services, "job")
    job.reconcile()
    assert len(job.versions()) == 3
    with pytest.raises(UnknownJobError):
        delete_comparison(job.services, "other")


def test_a_plan_that_does_not_hold_yet_or_is_being_reconfigured_is_waited_for() -> None:
    job = ComparedJob()
    put_profile(job.services, "job", profile())
    start_comparison(job.services, "job", 4)
    job.reconcile()
    assert job.progress() == ("running", None, 0)
    for detail in (MeasurementDetail.INSTRUCTIONS, MeasurementDetail.TOTALS):
        with job.services.store.writing("job") as writer:
            newest = writer.newest_plan("job")
            assert newest is not None
            digest, plan = newest.digest, frequency_plan()
            add_version(job.services, writer, "job", plan, measurement_detail=detail, digest=digest)
        job.reconcile()
        assert job.progress() == ("running", None, 0)
        job.activate()
        job.reconcile()
        version = None if detail == MeasurementDetail.INSTRUCTIONS else 4
        assert job.progress() == ("running", version, 0)


def test_a_job_without_a_rank_in_training_is_not_compared(job: ComparedJob) -> None:
    silent = replace(job.services, now=lambda: job.services.now() + timedelta(days=1))
    with pytest.raises(NoRanksPresentError, match="No rank of job job is in training; start it"):
        start_comparison(silent, "job", 6)
    assert job.progress()[0] == "none"


def test_a_job_that_is_over_is_not_compared(job: ComparedJob) -> None:
    start_comparison(job.services, "job", 6)
    with job.services.store.writing("job") as writer:
        writer.save_job(writer.require_job("job").moved(JobState.ENDED))
    job.reconcile()
    assert len(job.versions()) == 1
    with pytest.raises(JobIsOverError, match="Job job is ended; start its training again first"):
        start_comparison(job.services, "job", 12)
    register_rank(job.services, rank_record(0))
    assert start_comparison(job.services, "job", 6).state == "running"


@pytest.mark.parametrize(
    ("num_pairs", "iteration_time_s", "block"),
    [(2, 0.001, 1), (60, 0.001, 10), (60, 0.5, 4), (60, 7.0, 1), (10_000, 0.01, 200)],
)
def test_blocks_last_two_seconds(num_pairs: int, iteration_time_s: float, block: int) -> None:
    cycle = comparison_cycle(num_pairs, iteration_time_s)
    assert cycle == (False,) * block + (True,) * 2 * block + (False,) * block
