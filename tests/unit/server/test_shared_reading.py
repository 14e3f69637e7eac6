"""One reading of jobs for all who ask: shared, remembered for a moment, fresh for one job."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

import pytest
from tests.planner.samples import (
    MOMENT,
    CountingPlanner,
    Services,
    job_record,
    plan_record,
    rank_record,
    step_record,
)

from flyball_server.jobs.errors import StoreClosedError, UnknownJobError
from flyball_server.jobs.loop_state import JobLoopState, PlanningInputs
from flyball_server.jobs.services import JobServices
from flyball_server.views.job_figures import NUM_FRESH, REMEMBERED_S, SharedReading
from flyball_server.views.job_reading import JobReading
from flyball_server.views.report import get_report
from flyball_wire.read_models import MeasuredIteration


class Clock:
    """Monotonic seconds and the time of day, moved by hand."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s

    def time_of_day(self) -> datetime:
        return MOMENT + timedelta(seconds=self.now_s)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def services(clock: Clock) -> JobServices:
    return replace(Services(CountingPlanner()).jobs, now=clock.time_of_day)


@pytest.fixture
def shared(services: JobServices, clock: Clock) -> SharedReading:
    """Of jobs of which none has a label."""
    return SharedReading(lambda: JobReading(services, max_labelled=0, clock=clock), clock=clock)


def put_job(services: JobServices, job_id: str = "job", *, created_s: float = 0.0) -> None:
    """A job of two ranks on plan version 1 from step 10 on."""
    with services.store.writing(job_id) as writer:
        writer.save_job(job_record(job_id, seconds_later=created_s))
        for rank in (0, 1):
            writer.save_ranks([rank_record(rank, job_id=job_id)])
        writer.add_plan(plan_record(job_id=job_id))
        writer.name_first_step(job_id, 1, 10)


def post(services: JobServices, *steps: int, job_id: str = "job") -> None:
    """Both ranks have measured these: before step 10 at default clocks and with 100 J, then 90."""
    with services.store.writing(job_id) as writer:
        writer.save_steps(
            tuple(
                step_record(
                    step,
                    rank,
                    job_id=job_id,
                    plan_version=1 if step >= 10 else None,
                    energy_j=90.0 if step >= 10 else 100.0,
                )
                for step in steps
                for rank in (0, 1)
            )
        )


def test_readings_are_shared(services: JobServices, shared: SharedReading, clock: Clock) -> None:
    put_job(services)
    first = shared.overviews()
    post(services, 0)
    clock.now_s = REMEMBERED_S / 2
    assert shared.overviews() is first
    clock.now_s = REMEMBERED_S
    assert [figures.num_steps for figures in shared.overviews()] == [1]
    assert [figures.num_steps for figures in first] == [0]


def test_an_unknown_job_is_an_error(services: JobServices, shared: SharedReading) -> None:
    put_job(services)
    shared.overview_of("job")
    with services.store.writing("job") as writer:
        writer.delete_job("job")
    for job_id in ("job", "other"):
        with pytest.raises(UnknownJobError):
            shared.overview_of(job_id)
    assert shared.overviews() == ()


def test_fresh_jobs_come_first(services: JobServices, shared: SharedReading, clock: Clock) -> None:
    ids = [f"job-{number:02}" for number in range(NUM_FRESH + 2)]
    for number, job_id in enumerate(ids):
        put_job(services, job_id, created_s=number)
    assert [each.job_id for each in shared.overviews()] == ids[::-1]
    for job_id in ids:
        post(services, 0, job_id=job_id)
    clock.now_s = 1.0
    read = {each.job_id for each in shared.overviews() if each.num_steps}
    assert read == set(ids[2:])


def test_savings_equal_the_reports(services: JobServices, shared: SharedReading) -> None:
    put_job(services)
    post(services, *range(20))
    found = shared.overview_of("job")
    report = get_report(services, "job")
    assert found.saved_j == report.saved_j
    assert found.saving_percent == report.versions[-1].saving_percent
    assert found.num_steps == report.num_steps == 20
    # The first step after the change counts as one on the plan, though not for what is saved.
    assert found.measured == MeasuredIteration(
        clocks="plan",
        version=1,
        first_step=10,
        last_step=19,
        num_steps=10,
        iteration_time_s=sum([0.9] * 10) / 10,
        energy_j=180.0,
    )


def test_a_version_without_steps_is_skipped(services: JobServices, shared: SharedReading) -> None:
    put_job(services)
    post(services, *range(20))
    with services.store.writing("job") as writer:
        writer.add_plan(plan_record(2))
    found = shared.overview_of("job")
    assert (found.newest_version, found.active_version) == (2, 1)
    assert found.saving_percent is not None


def test_a_timetables_target_is_shown(services: JobServices, shared: SharedReading) -> None:
    put_job(services)
    assert shared.overview_of("job").target == "fastest"
    with services.store.writing("job") as writer:
        job = writer.find_job("job")
        assert job is not None
        writer.save_job(job.evolve(inputs_revision=1, planned_revision=1))
        in_force = PlanningInputs(target="power:900")
        writer.save_loop_state(JobLoopState(job_id="job", planned_for=in_force))
    assert shared.overview_of("job").target == "power:900"
    with services.store.writing("job") as writer:
        writer.save_job(job.evolve(inputs_revision=2, planned_revision=2))
        writer.save_loop_state(JobLoopState(job_id="job"))
    assert shared.overview_of("job").target == "fastest"


def test_a_closed_store_fails(services: JobServices, shared: SharedReading, clock: Clock) -> None:
    put_job(services)
    shared.overviews()
    clock.now_s = REMEMBERED_S
    services.store.close()
    for _ in range(2):
        with pytest.raises(StoreClosedError):
            shared.overviews()
        with pytest.raises(StoreClosedError):
            shared.overview_of("job")
    services.store.open()
    assert len(shared.overviews()) == 1
