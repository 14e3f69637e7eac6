"""The reaction to the time of day."""

from __future__ import annotations

import pytest
from tests.planner.running import Running

from flyball_server.jobs.errors import InvalidFieldError
from flyball_server.jobs.job_state import JobState
from flyball_server.jobs.reconcile.plans import LONGEST_PAUSE_S, TimetableReconciler
from flyball_server.jobs.registry.inspection import get_job
from flyball_server.jobs.timetables import delete_timetable, get_timetable, put_timetable
from flyball_wire.closed_loop import Timetable, TimetableWindow
from flyball_wire.plan_options import Policy


def night(target: str = "least-energy") -> Timetable:
    return Timetable(
        windows=(TimetableWindow(from_time="22:00", until_time="06:00", target=target),)
    )


@pytest.fixture
def job() -> Running:
    return Running(effort="low")


def test_a_timetables_target_holds_in_its_window_and_the_jobs_own_after_it(job: Running) -> None:
    before = job.plan
    summary = put_timetable(job.services, "job", night())
    assert summary.current_target == "fastest"
    assert summary.next_change == job.now.replace(hour=22).isoformat()
    assert TimetableReconciler()(job.services, "job") == LONGEST_PAUSE_S
    job.pass_time(10 * 3600 - 60)
    assert TimetableReconciler()(job.services, "job") == 60
    assert job.newest.version == 1
    job.pass_time(60)
    TimetableReconciler()(job.services, "job")
    assert job.newest.version == 2
    assert job.plan.iteration_time_s > before.iteration_time_s
    assert get_timetable(job.services, "job").current_target == "least-energy"
    TimetableReconciler()(job.services, "job")
    assert job.newest.version == 2
    job.pass_time(8 * 3600)
    TimetableReconciler()(job.services, "job")
    assert job.plan == before


def test_a_timetable_that_is_taken_away_leaves_the_jobs_own_target(job: Running) -> None:
    before = job.plan
    job.pass_time(11 * 3600)
    put_timetable(job.services, "job", night())
    TimetableReconciler()(job.services, "job")
    assert job.newest.version == 2
    delete_timetable(job.services, "job")
    delete_timetable(job.services, "job")
    assert TimetableReconciler()(job.services, "job") is None
    assert job.plan == before
    assert get_timetable(job.services, "job").timetable is None


def test_a_budget_that_no_plan_meets_is_said_and_the_next_change_still_comes(job: Running) -> None:
    job.pass_time(17.75 * 3600)
    put_timetable(job.services, "job", night("power:1"))
    assert TimetableReconciler()(job.services, "job") == LONGEST_PAUSE_S
    assert get_job(job.services, "job").job.state is JobState.PLANNING_FAILED
    job.pass_time(600)
    assert TimetableReconciler()(job.services, "job") == 300
    job.pass_time(300)
    TimetableReconciler()(job.services, "job")
    assert get_job(job.services, "job").job.state is JobState.PLANNED


def test_a_straggler_within_a_window_is_planned_with_the_windows_target(job: Running) -> None:
    job.pass_time(11 * 3600)
    put_timetable(job.services, "job", night("slowdown:0.2"))
    TimetableReconciler()(job.services, "job")
    job.announce(0, 1.5)
    job.settle()
    assert job.plan.target == "slowdown:0.2"
    assert job.plan.baseline_iteration_time_s == pytest.approx(1.95)


def test_a_target_that_the_policy_does_not_know_is_refused_with_its_window() -> None:
    job = Running(policy=Policy.ENVELOPE)
    with pytest.raises(InvalidFieldError, match="aims at fastest only") as error:
        put_timetable(job.services, "job", night())
    assert error.value.field == "windows[0].target"
    put_timetable(job.services, "job", night("fastest"))
