"""Targets that a job's plans met until conditions changed.

At the highest clocks an iteration of two stages and four microbatches takes 5 x 0.3 = 1.5 s. If
stage 1 takes 15 % longer it is the bottleneck: 0.1 + 4 x 0.345 + 0.2 = 1.68 s.
"""

from __future__ import annotations

import pytest
from tests.planner.running import Running, slow, two_stages
from tests.planner.use_cases import change_target, put_profile

from flyball_profiles.stage_profile_csv import parse_stage_profile
from flyball_server.jobs.errors import PlanningFailedError
from flyball_server.jobs.findings.announcements import withdraw_straggler
from flyball_server.jobs.registry.inspection import get_job, notes
from flyball_server.jobs.timetables import get_timetable
from flyball_wire.closed_loop import MissedTarget
from flyball_wire.messages import JobState
from flyball_wire.plan_options import TargetChange

DEADLINE = "deadline:1.6"
MISSED = MissedTarget(target=DEADLINE, nearest="deadline:1.68")


def is_kept(job: Running, missed: MissedTarget | None) -> bool:
    summary = get_job(job.services, "job")
    assert (summary.job.state, summary.job.problem) == (JobState.PLANNED, None)
    assert summary.job.spec.target == DEADLINE, "what was asked for stays"
    assert job.plan.target == (DEADLINE if missed is None else missed.nearest)
    assert job.plan.predicted.energy_j < job.plan.predicted.baseline_energy_j
    is_said = missed is not None and missed.text in notes(job.services, summary)
    return summary.findings.missed == missed and is_said is (missed is not None)


def test_a_straggler_or_a_new_profile_leaves_the_nearest_plan_and_its_end_the_target() -> None:
    job = Running(effort="low", target=DEADLINE)
    assert is_kept(job, None)
    job.announce(1, 1.15)
    job.settle()
    assert is_kept(job, MISSED)
    assert job.plan.iteration_time_s == pytest.approx(1.68)
    job.announce(1, 1.3)
    job.settle()
    assert is_kept(job, MissedTarget(target=DEADLINE, nearest="deadline:1.86"))
    assert get_timetable(job.services, "job").current_target == "deadline:1.86"
    withdraw_straggler(job.services, "job", 1)
    job.settle()
    assert is_kept(job, None)
    assert job.plan.iteration_time_s <= 1.6
    put_profile(job.services, "job", two_stages(1.2))
    assert job.loop_state.missed is not None
    assert is_kept(job, job.loop_state.missed)
    assert job.plan.iteration_time_s == pytest.approx(1.2 * 1.5)


def test_a_measured_straggler_leaves_the_nearest_plan_refined_by_the_jobs_own_effort() -> None:
    job = Running(adaptation="frontier", target=DEADLINE)
    for _ in range(2):
        job.run(16, slow(1, 1.15))
        job.acknowledged()
    [detected] = job.loop_state.detected
    assert detected.slowdown == pytest.approx(1.15, rel=0.01)
    assert job.loop_state.missed is not None
    assert is_kept(job, job.loop_state.missed)
    assert job.plan.iteration_time_s == pytest.approx(1.68, rel=0.01)


def test_a_target_that_cannot_be_met_is_refused_when_it_is_put_and_missed_afterwards() -> None:
    job = Running(effort="low")
    job.announce(1, 1.15)
    job.settle()
    before = job.newest
    for _ in range(2):
        with pytest.raises(PlanningFailedError, match=r"fastest takes 1\.68 s"):
            change_target(job.services, "job", TargetChange(target=DEADLINE))
        job.settle()
        summary = get_job(job.services, "job")
        assert (summary.job.state, summary.findings.missed) == (JobState.PLANNING_FAILED, None)
        assert job.newest == before
    job.announce(1, 1.2)
    job.settle()
    assert is_kept(job, MissedTarget(target=DEADLINE, nearest="deadline:1.74"))
    # The conditions under which it was refused come back, and another plan runs by now.
    job.announce(1, 1.15)
    job.settle()
    assert is_kept(job, MISSED)
    # What is put again is refused again.
    change_target(job.services, "job", TargetChange(target="fastest"))
    with pytest.raises(PlanningFailedError, match=r"fastest takes 1\.68 s"):
        change_target(job.services, "job", TargetChange(target="deadline:1"))


def test_a_power_budget_that_cannot_be_met_any_more_is_never_exceeded() -> None:
    job = Running(effort="low")
    power_w = job.plan.predicted.energy_j / job.plan.iteration_time_s
    change_target(job.services, "job", TargetChange(target=f"power:{power_w:.0f}"))
    before = job.newest
    rows = [
        f"{stage},{kind},{mhz},{time_s},{3 * power_w * time_s * mhz / 1400}"
        for stage in range(2)
        for kind, time_s in (("forward", 0.1), ("backward", 0.2))
        for mhz in (1400, 1300)
    ]
    csv = "stage,instruction,frequency,time,energy\n" + "\n".join(rows) + "\n"
    with pytest.raises(PlanningFailedError, match="on average"):
        put_profile(job.services, "job", parse_stage_profile(csv))
    assert job.newest == before
