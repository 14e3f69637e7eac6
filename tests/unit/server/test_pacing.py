"""The reactions to stragglers, drift and the time of day, over a store in memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import pytest
from tests.planner.samples import job_spec, rank_record, step_record

from flyball_client.wire_loop import Timetable, TimetableWindow
from flyball_profiles.stage_profile import StageProfile
from flyball_profiles.stage_profile_csv import parse_stage_profile
from flyball_server.jobs.activation import acknowledge
from flyball_server.jobs.control import JobControl
from flyball_server.jobs.errors import (
    InvalidFieldError,
    UnknownJobError,
    UnknownRankError,
)
from flyball_server.jobs.inputs import TargetUpdate, change_target, put_profile
from flyball_server.jobs.inspection import get_job, get_plan
from flyball_server.jobs.job_state import JobState
from flyball_server.jobs.measurements import store_measurements
from flyball_server.jobs.memory_store import MemoryJobStore
from flyball_server.jobs.pace_steps import clock_times
from flyball_server.jobs.publication import add_version
from flyball_server.jobs.rank_part import rank_instructions
from flyball_server.jobs.reactions.pacing import MIN_STEPS, Pacing
from flyball_server.jobs.reactions.timetabled import LONGEST_PAUSE_S, timetabled
from flyball_server.jobs.records import PlanRecord, RankRecord, StepDetail, StepReport
from flyball_server.jobs.registration import register_job, register_rank
from flyball_server.jobs.services import JobServices
from flyball_server.jobs.stragglers import (
    Announcement,
    announce_straggler,
    list_stragglers,
    withdraw_straggler,
)
from flyball_server.jobs.timetables import delete_timetable, get_timetable, put_timetable
from flyball_server.planning.plan import DataParallelPlan, FrequencyPlan
from flyball_server.planning.probe_plan import ProbePlan

NUM_STAGES, NUM_MICROBATCHES = 2, 4
Factor = Callable[[int], float]
"""rank -> how many times as long its instructions take."""


def two_stages(factor: float = 1.0) -> StageProfile:
    """Forward 0.1 s and backward 0.2 s at 1400 MHz; a slower clock saves energy."""
    rows = [
        f"{stage},{kind},{mhz},{factor * time_s * 1400 / mhz:.6f},{time_s * mhz**2 / 6e3}"
        for stage in range(NUM_STAGES)
        for kind, time_s in (("forward", 0.1), ("backward", 0.2))
        for mhz in (1400, 1300, 1200, 1100)
    ]
    return parse_stage_profile("stage,instruction,frequency,time,energy\n" + "\n".join(rows) + "\n")


@dataclass
class Running:
    """A job that runs step after step, on a clock that stands until it is set."""

    num_pipelines: int = 1
    adaptation: str = "announced"
    effort: str = "normal"
    policy: str | None = None
    now: datetime = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
    pacing: Pacing = field(default_factory=Pacing)
    step: int = 0

    def __post_init__(self) -> None:
        store = MemoryJobStore()
        store.open()
        self.services = JobServices(store=store, wake=lambda _: None, now=lambda: self.now)
        num_ranks = NUM_STAGES * self.num_pipelines
        spec = job_spec(
            num_microbatches=NUM_MICROBATCHES,
            num_ranks=num_ranks,
            adaptation=self.adaptation,
            effort=self.effort,
            policy=self.policy,
        )
        register_job(self.services, "job", spec)
        for rank in range(num_ranks):
            register_rank(
                self.services,
                rank_record(rank, stage=rank % NUM_STAGES, dp_rank=rank // NUM_STAGES),
            )
        put_profile(self.services, "job", two_stages())
        self.acknowledged()

    @property
    def ranks(self) -> tuple[RankRecord, ...]:
        with self.services.store.reading() as reader:
            return reader.list_ranks("job")

    @property
    def control(self) -> JobControl:
        with self.services.store.reading() as reader:
            return reader.find_control("job")

    @property
    def newest(self) -> PlanRecord:
        version = get_job(self.services, "job").newest_version
        assert version is not None
        return get_plan(self.services, "job", version)

    @property
    def plan(self) -> FrequencyPlan | DataParallelPlan:
        plan = self.newest.plan
        assert not isinstance(plan, ProbePlan)
        return plan

    def react(self) -> float | None:
        """Look once; in how many seconds to look again."""
        return self.pacing(self.services, "job")

    def acknowledged(self) -> None:
        """All ranks have the newest version, and are at its first step."""
        version = self.newest.version
        for rank in self.ranks:
            acknowledge(self.services, "job", rank.rank, version=version, current_step=self.step)
        self.step = self.newest.first_step or self.step

    def settle(self) -> None:
        """React and acknowledge until nothing new comes of it."""
        for _ in range(4):
            version = self.newest.version
            self.react()
            if self.newest.version == version:
                return
            self.acknowledged()
        raise AssertionError("the job is planned again and again")

    def run(self, num_steps: int, factor: Factor = lambda rank: 1.0, **changes: int) -> None:
        """Steps on the newest plan, each looked at."""
        for _ in range(num_steps):
            self.post(factor, **changes)
            self.react()

    def post(self, factor: Factor, **changes: int) -> None:
        """One step of all ranks, at the clocks of the newest plan."""
        record, profile = self.newest, two_stages()
        for rank in self.ranks:
            times_s = clock_times(profile, rank.stage)
            counts = Counter(
                (str(item.kind), item.chunk, item.frequency_mhz)
                for item in rank_instructions(record.plan, rank)
            )
            rows = tuple(
                (*key, count, times_s[key] * factor(rank.rank), 0.0)
                for key, count in counts.items()
            )
            step = step_record(self.step, rank.rank, plan_version=record.version, **changes)
            detail = StepDetail(job_id="job", rank=rank.rank, step=self.step, by_clock=rows)
            store_measurements(self.services, "job", rank.rank, [step], [detail])
        self.step += 1

    def announce(
        self,
        rank: int,
        slowdown: float,
        *,
        after_s: float | None = None,
        for_s: float | None = None,
    ) -> None:
        """A straggler from some seconds on, and for so long."""
        from_s = self.now.timestamp() + (after_s or 0.0)
        announce_straggler(
            self.services,
            "job",
            Announcement(
                rank=rank,
                slowdown=slowdown,
                from_unix_s=None if after_s is None else from_s,
                until_unix_s=None if for_s is None else from_s + for_s,
            ),
        )

    def pass_time(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)


def slow(rank: int, slowdown: float) -> Factor:
    return lambda one: slowdown if one == rank else 1.0


# ------------------------------------------------------------------ announced


def test_an_announced_straggler_is_planned_for_at_once_and_then_with_more_effort() -> None:
    job = Running()
    before = job.plan
    job.announce(1, 1.2)
    assert job.react() is None
    quick = job.plan
    assert job.newest.version == 2
    assert quick.iteration_time_s > before.iteration_time_s
    assert job.control.in_force.effort == "low"
    job.react()
    assert job.newest.version == 2, "not before all ranks have the quick plan"
    job.acknowledged()
    job.react()
    assert job.newest.version == 3
    assert job.control.in_force.effort is None
    assert job.plan.energy_j <= quick.energy_j
    job.acknowledged()
    job.settle()
    assert job.newest.version == 3


def test_it_comes_into_force_at_its_time_and_ends_at_its_time() -> None:
    job = Running(effort="low")
    before = job.plan
    job.announce(0, 1.5, after_s=60, for_s=30)
    assert job.react() == 60
    assert job.newest.version == 1
    [view] = list_stragglers(job.services, "job")
    assert (view.source, view.is_in_force) == ("announced", False)
    job.pass_time(60)
    assert job.react() == 30
    assert job.newest.version == 2
    # Stage 0 computes for 0.45 s a microbatch, and waits for 0.15 s until its first backward.
    assert job.plan.baseline_iteration_time_s == pytest.approx(4 * 0.45 + 0.15)
    assert list_stragglers(job.services, "job")[0].is_in_force
    job.pass_time(30)
    assert job.react() is None
    assert job.newest.version == 3
    assert job.plan == before
    assert list_stragglers(job.services, "job") == ()
    assert job.control.stragglers == ()


def test_withdrawn_the_plan_is_as_it_was() -> None:
    job = Running(effort="low")
    before = job.plan
    job.announce(1, 1.3)
    job.settle()
    withdraw_straggler(job.services, "job", 1)
    withdraw_straggler(job.services, "job", 1)
    job.settle()
    assert job.newest.version == 3
    assert job.plan == before


def test_the_same_announcement_again_changes_nothing_and_another_replaces_it() -> None:
    job = Running(effort="low")
    job.announce(1, 1.3)
    job.settle()
    control = job.control
    job.pass_time(5)
    job.announce(1, 1.3)
    job.settle()
    assert job.control == control
    job.announce(1, 1.4)
    job.settle()
    assert job.newest.version == 3
    assert [one.slowdown for one in list_stragglers(job.services, "job")] == [1.4]


def test_in_one_of_two_pipelines_it_gives_each_its_own_clocks() -> None:
    job = Running(num_pipelines=2, effort="low")
    job.announce(3, 1.4)
    job.settle()
    assert isinstance(job.plan, DataParallelPlan)
    assert [pipeline.dp_rank for pipeline in job.plan.pipelines] == [0, 1]
    of_rank = {rank.rank: rank_instructions(job.plan, rank) for rank in job.ranks}
    assert of_rank[0] != of_rank[2]
    assert {item.frequency_mhz for item in of_rank[3]} == {1400}


def test_a_straggler_as_fast_as_its_profile_changes_no_plan() -> None:
    job = Running(effort="low")
    job.announce(0, 1.0)
    job.settle()
    assert job.newest.version == 1


def test_a_job_without_a_profile_is_planned_for_it_once_that_comes() -> None:
    job = Running(effort="low")
    register_job(job.services, "other", job_spec(num_microbatches=NUM_MICROBATCHES))
    register_rank(job.services, rank_record(1, job_id="other"))
    announcement = Announcement(rank=1, slowdown=1.5, from_unix_s=None, until_unix_s=None)
    announce_straggler(job.services, "other", announcement)
    job.pacing(job.services, "other")
    assert get_job(job.services, "other").job.state is JobState.AWAITING_PROFILE
    put_profile(job.services, "other", two_stages())
    plan = get_plan(job.services, "other", 1).plan
    assert isinstance(plan, FrequencyPlan)
    assert plan.baseline_iteration_time_s > job.plan.baseline_iteration_time_s


def test_a_deadline_that_a_straggler_makes_unreachable_is_said_and_the_older_plan_holds() -> None:
    job = Running(effort="low")
    deadline_s = job.plan.baseline_iteration_time_s * 1.05
    change_target(job.services, "job", TargetUpdate(target=f"deadline:{deadline_s}"))
    job.announce(0, 1.5)
    job.settle()
    summary = get_job(job.services, "job")
    assert summary.job.state is JobState.PLANNING_FAILED
    assert "the fastest takes" in (summary.job.problem or "")
    assert summary.newest_version == 2
    assert not list_stragglers(job.services, "job")[0].is_in_force
    withdraw_straggler(job.services, "job", 0)
    job.settle()
    assert get_job(job.services, "job").job.state is JobState.PLANNED


def test_a_planner_that_was_restarted_goes_on_where_it_was() -> None:
    job = Running()
    job.announce(1, 1.2, for_s=100)
    job.react()
    job.acknowledged()
    job.pacing = Pacing()
    job.settle()
    assert job.newest.version == 3
    job.pass_time(100)
    job.pacing = Pacing()
    job.settle()
    assert job.control.in_force.rank_paces == ()


@pytest.mark.parametrize(
    ("rank", "slowdown", "after_s", "for_s", "field"),
    [
        (0, 0.9, None, None, "slowdown"),
        (0, 101.0, None, None, "slowdown"),
        (0, float("nan"), None, None, "slowdown"),
        (0, 1.2, 10.0, -1.0, "until_time"),
        (0, 1.2, -20.0, 10.0, "until_time"),
    ],
)
def test_an_announcement_that_makes_no_sense_is_refused_with_its_field(
    rank: int, slowdown: float, after_s: float | None, for_s: float | None, field: str
) -> None:
    with pytest.raises(InvalidFieldError) as error:
        Running(effort="low").announce(rank, slowdown, after_s=after_s, for_s=for_s)
    assert error.value.field == field


def test_nobody_is_announced_whom_the_job_does_not_have() -> None:
    job = Running(effort="low")
    with pytest.raises(UnknownRankError):
        job.announce(7, 1.2)
    with pytest.raises(UnknownRankError):
        withdraw_straggler(job.services, "job", 7)
    with pytest.raises(UnknownJobError):
        list_stragglers(job.services, "nobody")


# ------------------------------------------------------------------ detected


def test_a_straggler_that_comes_and_goes_is_found_and_planned_for_and_forgotten() -> None:
    job = Running(adaptation="frontier", effort="low")
    assert job.newest.report is StepReport.CLOCKS
    before = job.plan
    job.run(30)
    assert job.newest.version == 1
    job.run(8, slow(1, 1.2))
    assert job.newest.version == 2
    [view] = list_stragglers(job.services, "job")
    assert (view.rank, view.source, view.reason, view.is_in_force) == (1, "detected", "slow", True)
    assert view.slowdown == pytest.approx(1.2)
    job.acknowledged()
    job.run(30, slow(1, 1.2))
    assert job.newest.version == 2
    job.run(8)
    assert job.newest.version == 3
    assert job.plan == before
    assert list_stragglers(job.services, "job") == ()


def test_what_a_detected_one_is_planned_with_is_told_by_the_reason_that_the_ranks_saw() -> None:
    job = Running(adaptation="frontier", effort="low")
    job.run(12, slow(0, 1.3), num_thermally_capped=1)
    assert [view.reason for view in list_stragglers(job.services, "job")] == ["thermal"]


def test_nothing_is_found_before_a_plan_has_held_for_some_steps() -> None:
    job = Running(adaptation="frontier", effort="low")
    job.run(MIN_STEPS, slow(1, 1.5))
    assert job.newest.version == 1
    job.run(1, slow(1, 1.5))
    assert job.newest.version == 2
    job.acknowledged()
    job.run(MIN_STEPS)
    assert job.newest.version == 2
    job.run(1)
    assert job.newest.version == 3


def test_a_job_that_adapts_to_announcements_only_is_not_watched() -> None:
    job = Running(adaptation="announced", effort="low")
    job.run(20, slow(1, 1.5))
    assert job.newest.version == 1


def test_of_announced_and_detected_the_slower_one_is_in_force() -> None:
    job = Running(adaptation="frontier", effort="low")
    job.announce(1, 1.5)
    job.settle()
    job.run(15, slow(1, 1.2))
    both = list_stragglers(job.services, "job")
    assert [(one.source, one.is_in_force) for one in both] == [
        ("announced", True),
        ("detected", False),
    ]
    assert job.newest.version == 2, "found to be slow, but not slower than announced"
    withdraw_straggler(job.services, "job", 1)
    job.settle()
    assert [pace.slowdown for pace in job.control.in_force.rank_paces] == pytest.approx([1.2])


def test_found_to_be_nearly_as_slow_as_announced_it_stays_planned_as_it_is_when_withdrawn() -> None:
    job = Running(adaptation="frontier", effort="low")
    job.announce(1, 1.2)
    job.settle()
    job.run(15, slow(1, 1.21))
    assert all(one.is_in_force for one in list_stragglers(job.services, "job"))
    withdraw_straggler(job.services, "job", 1)
    job.settle()
    assert job.newest.version == 2
    job.run(8)
    assert job.newest.version == 3
    assert job.control.in_force.rank_paces == ()


def test_a_stage_that_drifts_is_planned_with_what_it_takes_now() -> None:
    job = Running(num_pipelines=2, adaptation="frontier", effort="low")
    job.run(60, lambda rank: 1.04 if rank % 2 else 1.0)
    assert job.newest.version == 2
    drifts = [(pace.stage, pace.kind) for pace in job.control.in_force.stage_paces]
    assert drifts == [(1, "backward"), (1, "forward")]
    job.acknowledged()
    job.run(60, lambda rank: 1.04 if rank % 2 else 1.0)
    assert job.newest.version == 2


def test_another_profile_makes_all_that_was_found_against_the_old_one_forgotten() -> None:
    job = Running(num_pipelines=2, adaptation="frontier", effort="low")
    job.run(60, lambda rank: 1.04 if rank % 2 else 1.0)
    job.acknowledged()
    job.run(20, lambda rank: (1.04 if rank % 2 else 1.0) * (1.3 if rank == 0 else 1.0))
    assert job.control.in_force.rank_paces
    put_profile(job.services, "job", two_stages(1.5))
    assert (job.control.detected, job.control.in_force.rank_paces) == ((), ())
    assert job.control.in_force.stage_paces == ()


def test_while_a_comparison_runs_nothing_is_looked_for() -> None:
    job = Running(adaptation="frontier", effort="low")
    with job.services.store.writing() as writer:
        add_version(
            job.services,
            writer,
            "job",
            job.plan,
            report=StepReport.CLOCKS,
            baseline_cycle=(False, True),
        )
    job.acknowledged()
    job.run(20, slow(1, 1.5))
    assert job.newest.version == 2


def test_a_run_that_started_over_is_looked_at_although_older_steps_have_higher_numbers() -> None:
    job = Running(adaptation="frontier", effort="low")
    job.step = 5000
    job.run(3)
    job.step = 0
    job.announce(0, 1.1)
    job.settle()
    assert job.step < 100
    for _ in range(MIN_STEPS + 6):
        job.post(slow(1, 1.4))
    job.pacing = Pacing()
    job.settle()
    assert [one.rank for one in list_stragglers(job.services, "job")] == [0, 1]


# ------------------------------------------------------------------ by the time of day


def night(target: str = "least-energy") -> Timetable:
    return Timetable(
        windows=(TimetableWindow(from_time="22:00", until_time="06:00", target=target),)
    )


def test_a_timetables_target_holds_in_its_window_and_the_jobs_own_after_it() -> None:
    job = Running(effort="low")
    before = job.plan
    summary = put_timetable(job.services, "job", night())
    assert summary.target_in_force == "fastest"
    assert summary.next_change == job.now.replace(hour=22)
    assert timetabled(job.services, "job") == LONGEST_PAUSE_S
    job.pass_time(10 * 3600 - 60)
    assert timetabled(job.services, "job") == 60
    assert job.newest.version == 1
    job.pass_time(60)
    timetabled(job.services, "job")
    assert job.newest.version == 2
    assert job.plan.iteration_time_s > before.iteration_time_s
    assert get_timetable(job.services, "job").target_in_force == "least-energy"
    timetabled(job.services, "job")
    assert job.newest.version == 2
    job.pass_time(8 * 3600)
    timetabled(job.services, "job")
    assert job.plan == before


def test_a_timetable_that_is_taken_away_leaves_the_jobs_own_target() -> None:
    job = Running(effort="low")
    before = job.plan
    job.pass_time(11 * 3600)
    put_timetable(job.services, "job", night())
    timetabled(job.services, "job")
    assert job.newest.version == 2
    delete_timetable(job.services, "job")
    delete_timetable(job.services, "job")
    assert timetabled(job.services, "job") is None
    assert job.plan == before
    assert get_timetable(job.services, "job").timetable is None


def test_a_budget_that_no_plan_meets_is_said_and_the_next_change_still_comes() -> None:
    job = Running(effort="low")
    job.pass_time(17.75 * 3600)
    put_timetable(job.services, "job", night("power:1"))
    assert timetabled(job.services, "job") == LONGEST_PAUSE_S
    assert get_job(job.services, "job").job.state is JobState.PLANNING_FAILED
    job.pass_time(600)
    assert timetabled(job.services, "job") == 300
    job.pass_time(300)
    timetabled(job.services, "job")
    assert get_job(job.services, "job").job.state is JobState.PLANNED


def test_a_straggler_within_a_window_is_planned_with_the_windows_target() -> None:
    job = Running(effort="low")
    job.pass_time(11 * 3600)
    put_timetable(job.services, "job", night("slowdown:0.2"))
    timetabled(job.services, "job")
    job.announce(0, 1.5)
    job.settle()
    assert job.plan.target == "slowdown:0.2"
    assert job.plan.baseline_iteration_time_s == pytest.approx(1.95)


def test_a_target_that_the_policy_does_not_know_is_refused_with_its_window() -> None:
    job = Running(policy="envelope")
    with pytest.raises(InvalidFieldError, match="aims at fastest only") as error:
        put_timetable(job.services, "job", night())
    assert error.value.field == "windows[0].target"
    put_timetable(job.services, "job", night("fastest"))
