"""The reactions to announced stragglers and to the time of day."""

from __future__ import annotations

import pytest
from tests.planner.running import Running, two_stages
from tests.planner.use_cases import put_profile

from flyball_server.jobs.errors import InvalidFieldError
from flyball_server.jobs.findings.announcements import (
    list_stragglers,
    withdraw_straggler,
)
from flyball_server.jobs.reconcile import plans
from flyball_server.jobs.reconcile.plans import PlanReconciler
from flyball_server.jobs.registry.inspection import get_job
from flyball_server.jobs.timetables import delete_timetable, get_timetable, put_timetable
from flyball_server.jobs.versions.rank_plans import rank_instructions
from flyball_server.jobs.wanted.wanted import LONGEST_PAUSE_S
from flyball_wire.closed_loop import Timetable, TimetableWindow
from flyball_wire.messages import JobState
from flyball_wire.plan_options import Policy
from flyball_wire.plans.plan import Plan


@pytest.fixture
def job() -> Running:
    return Running(effort="low")


def test_earlier_plans_of_the_same_profile_are_taken_without_a_search(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job = Running()
    before = job.plan
    job.announce(1, 1.2)
    job.settle()
    slow = job.plan

    def never(*_: object) -> Plan:
        raise AssertionError("it is known")

    num_requests = len(job.requests)
    with monkeypatch.context() as without_search:
        without_search.setattr(plans, "make_slowed_plan", never)
        withdraw_straggler(job.services, "job", 1)
        job.settle()
        assert (job.newest.version, job.plan) == (3, before)
        job.announce(1, 1.2)
        job.settle()
        assert (job.newest.version, job.plan) == (4, slow)
    assert len(job.requests) == num_requests
    put_profile(job.services, "job", two_stages(1.1))
    withdraw_straggler(job.services, "job", 1)
    job.settle()
    assert job.plan.predicted.baseline_iteration_time_s == pytest.approx(1.1 * (5 * 0.3))


def test_it_comes_into_force_at_its_time_and_ends_at_its_time(job: Running) -> None:
    before = job.plan
    job.announce(0, 1.5, after_s=60, for_s=30)
    assert job.react() == 60
    assert job.newest.version == 1
    [view] = list_stragglers(job.services, "job")
    assert (view.source, view.is_planned) == ("announced", False)
    job.pass_time(60)
    assert job.react() == 30
    assert job.newest.version == 2
    # Stage 0 computes for 0.45 s a microbatch, and waits for 0.15 s until its first backward.
    assert job.plan.predicted.baseline_iteration_time_s == pytest.approx(4 * 0.45 + 0.15)
    assert list_stragglers(job.services, "job")[0].is_planned
    job.pass_time(30)
    assert job.react() is None
    assert job.newest.version == 3
    assert job.plan == before
    assert list_stragglers(job.services, "job") == ()
    assert job.loop_state.stragglers == ()


def test_the_same_announcement_again_changes_nothing_and_another_replaces_it(job: Running) -> None:
    job.announce(0, 1.0)  # as fast as its profile
    job.settle()
    assert job.newest.version == 1
    job.announce(0, 1.3)
    job.settle()
    loop_state = job.loop_state
    job.pass_time(5)
    job.announce(0, 1.3)
    for slowdown, times, field in (
        (101.0, {}, "slowdown"),
        (float("nan"), {}, "slowdown"),
        (1.2, {"after_s": 10.0, "for_s": -1.0}, "until_time"),
    ):
        with pytest.raises(InvalidFieldError) as error:
            job.announce(0, slowdown, **times)
        assert error.value.field == field
    job.settle()
    assert job.loop_state == loop_state
    job.announce(0, 1.4)
    job.settle()
    assert job.newest.version == 3
    assert [one.slowdown for one in list_stragglers(job.services, "job")] == [1.4]


def test_in_one_of_two_pipelines_it_gives_each_its_own_clocks() -> None:
    job = Running(num_pipelines=2, effort="low")
    job.announce(3, 1.4)
    job.settle()
    assert job.plan.is_separate
    assert [pipeline.dp_ranks for pipeline in job.plan.pipelines] == [(0,), (1,)]
    of_rank = {rank.rank: rank_instructions(job.plan, rank) for rank in job.ranks}
    assert of_rank[0] != of_rank[2]
    assert {item.frequency_mhz for item in of_rank[3]} == {1400}


def night(target: str = "least-energy") -> Timetable:
    return Timetable(
        windows=(TimetableWindow(from_time="22:00", until_time="06:00", target=target),)
    )


def test_a_timetables_target_holds_in_its_window_and_the_jobs_own_after_it(job: Running) -> None:
    before = job.plan
    summary = put_timetable(job.services, "job", night())
    assert summary.current_target == "fastest"
    assert summary.next_change == job.now.replace(hour=22).isoformat()
    assert PlanReconciler()(job.services, "job") == LONGEST_PAUSE_S
    job.pass_time(10 * 3600 - 60)
    assert PlanReconciler()(job.services, "job") == 60
    assert job.newest.version == 1
    job.pass_time(60)
    for _ in range(2):
        PlanReconciler()(job.services, "job")
        assert job.newest.version == 2
    assert job.plan.iteration_time_s > before.iteration_time_s
    assert get_timetable(job.services, "job").current_target == "least-energy"
    job.pass_time(8 * 3600)
    PlanReconciler()(job.services, "job")
    assert job.plan == before
    job.pass_time(16 * 3600)
    put_timetable(job.services, "job", night("slowdown:0.2"))
    PlanReconciler()(job.services, "job")
    job.announce(0, 1.5)
    job.settle()
    # With the straggler and with the target of the window.
    assert job.plan.target == "slowdown:0.2"
    assert job.plan.predicted.baseline_iteration_time_s == pytest.approx(1.95)
    # One that is taken away leaves the job's own target.
    withdraw_straggler(job.services, "job", 0)
    for _ in range(2):
        delete_timetable(job.services, "job")
    assert PlanReconciler()(job.services, "job") is None
    job.settle()
    assert job.plan == before
    assert get_timetable(job.services, "job").timetable is None


def test_a_budget_that_no_plan_meets_is_said_and_the_next_change_still_comes(job: Running) -> None:
    job.pass_time(17.75 * 3600)
    put_timetable(job.services, "job", night("power:1"))
    assert PlanReconciler()(job.services, "job") == LONGEST_PAUSE_S
    assert get_job(job.services, "job").job.state == JobState.PLANNING_FAILED
    assert job.plan.target == "fastest"
    job.pass_time(600)
    assert PlanReconciler()(job.services, "job") == 300
    job.pass_time(300)
    PlanReconciler()(job.services, "job")
    assert get_job(job.services, "job").job.state == JobState.PLANNED


def test_a_target_that_the_policy_does_not_know_is_refused_with_its_window() -> None:
    job = Running(policy=Policy.ENVELOPE)
    with pytest.raises(InvalidFieldError, match="aims at fastest only") as error:
        put_timetable(job.services, "job", night())
    assert error.value.field == "windows[0].target"
    put_timetable(job.services, "job", night("fastest"))
