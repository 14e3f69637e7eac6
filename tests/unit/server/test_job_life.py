"""The life of a job: ranks that come, go and come back, restarts, ends."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from unittest.mock import patch

import pytest
from tests.planner.one_rank import acknowledge, register_rank, store_measurements
from tests.planner.samples import (
    MOMENT,
    CountingPlanner,
    job_services,
    job_spec,
    profile,
    rank_record,
    step_record,
)
from tests.planner.use_cases import change_target, put_profile, register_job

from flyball_server.jobs.errors import (
    JobHeldError,
    JobIsRunningError,
    OtherStartError,
    PlaceTakenError,
    RegistrationConflictError,
    UnknownJobError,
)
from flyball_server.jobs.lifecycle.job_life import LifeTimes, no_clocks_notes
from flyball_server.jobs.measurements.measurements import list_steps
from flyball_server.jobs.reconcile.expiry import ExpiryReconciler
from flyball_server.jobs.reconcile.plans import PlanReconciler
from flyball_server.jobs.records import RankRecord
from flyball_server.jobs.registry import registration
from flyball_server.jobs.registry.inspection import get_job, list_jobs, notes
from flyball_server.jobs.registry.launch import Launch
from flyball_server.jobs.registry.registration import (
    KnownRank,
    delete_job,
    leave_rank,
    register_together,
)
from flyball_server.jobs.services import JobServices
from flyball_server.jobs.step_records import StepDetail
from flyball_server.jobs.store.sql.job_writer import JobWriter
from flyball_server.jobs.timetables import get_timetable, put_timetable
from flyball_wire.closed_loop import Timetable, TimetableWindow
from flyball_wire.messages import JobSpec, JobState
from flyball_wire.plan_options import Policy, TargetChange

LIFE = LifeTimes(rank_silence_s=90, job_expiry_s=3600, job_retention_s=7200)
FIRST = Launch(start_id="a1", run="42", restart_count=0)
AGAIN = Launch(start_id="a2", run="42", restart_count=1)


@dataclass
class Life:
    """One planner on a clock that stands until it is set."""

    now: datetime = MOMENT
    services: JobServices = field(init=False)

    def __post_init__(self) -> None:
        self.services = job_services(planner=CountingPlanner(), now=lambda: self.now, life=LIFE)

    def register(self, spec: JobSpec | None = None, launch: Launch = FIRST) -> bool:
        return register_job(self.services, "job", spec or job_spec(), launch)[1]

    def join(self, rank: int, launch: Launch = FIRST, **changes: object) -> RankRecord:
        record = rank_record(rank).evolve(start=launch.start_id, **changes)
        return register_rank(self.services, record)

    def plan(self) -> None:
        put_profile(self.services, "job", profile())

    def pass_time(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)

    def age(self) -> None:
        """As a planner that has heard the ranks from the beginning."""
        expiry = ExpiryReconciler()
        expiry._began = MOMENT
        expiry(self.services, "job")

    def call(self, rank: int) -> None:
        """As with a heartbeat."""
        with self.services.store.writing("job") as writer:
            writer.touch_ranks("job", (rank,), self.now)

    def state(self, job_id: str = "job") -> JobState:
        return get_job(self.services, job_id).job.state

    def notes(self) -> tuple[str, ...]:
        return notes(self.services, get_job(self.services, "job"))


@pytest.fixture
def life() -> Life:
    """A planned job of two ranks, both there."""
    made = Life()
    made.register()
    made.plan()
    made.join(0)
    made.join(1)
    return made


# ------------------------------------------------------------------ ranks that are not there


def test_ranks_that_never_register_are_named_and_hold_nothing_up_but_the_plan() -> None:
    life = Life()
    life.register()
    life.plan()
    life.age()
    assert life.state() == JobState.PLANNED
    life.join(1)
    assert life.notes() == ("waits for rank 0 to register",)
    acknowledged = acknowledge(life.services, "job", 1, version=1, current_step=3)
    assert acknowledged.first_step is None


def test_a_rank_that_dies_is_told_of_and_the_version_in_force_stays(life: Life) -> None:
    for rank in (0, 1):
        acknowledge(life.services, "job", rank, version=1, current_step=3)
    life.pass_time(60)
    life.call(0)
    life.pass_time(40)
    change_target(life.services, "job", TargetChange(policy=Policy.UNIFORM))
    acknowledge(life.services, "job", 0, version=2, current_step=9)
    summary = get_job(life.services, "job")
    assert (summary.newest_version, summary.active_version) == (2, 1)
    assert life.notes() == (
        "version 2 waits for rank 1 to acknowledge it",
        "rank 1 has been silent for 90 s: a new version waits until it registers again",
    )
    life.pass_time(91)
    waits, silence = life.notes()
    assert waits == "version 2 waits for rank 1 to acknowledge it"
    assert "no rank has called since 2026-" in silence
    assert "`flyball doctor --planner-only`" in silence
    assert "it expires" in silence
    life.call(0)
    life.join(1)
    acknowledge(life.services, "job", 1, version=2, current_step=9)
    assert get_job(life.services, "job").active_version == 2
    assert life.notes() == ()


def test_of_many_reasons_to_set_no_clocks_three_are_named() -> None:
    whys = ["a", "a", "b", None, "c", "d", "e"]
    ranks = [rank_record(rank, no_clocks=why) for rank, why in enumerate(whys)]
    assert no_clocks_notes([*ranks, rank_record(7, no_clocks="a", has_left=True)]) == [
        "ranks 0 and 1 set no clocks: a",
        "rank 2 sets no clocks: b",
        "rank 4 sets no clocks: c",
        "ranks 5 and 6 set no clocks either, for other reasons",
    ]


# ------------------------------------------------------------------ a rank that registers twice


def test_a_rank_may_move_after_it_died(life: Life, caplog: pytest.LogCaptureFixture) -> None:
    acknowledge(life.services, "job", 1, version=1, current_step=3)
    with caplog.at_level(logging.WARNING):
        life.join(1)
        life.pass_time(91)
        life.join(1, host="node-2")
    (_, rank) = get_job(life.services, "job").ranks
    assert (rank.host, rank.acknowledged_version) == ("node-2", None)
    assert caplog.messages == []


def test_the_later_of_two_processes_holds(life: Life, caplog: pytest.LogCaptureFixture) -> None:
    ranks = [rank_record(1, host=host, start=FIRST.start_id) for host in ("node-2", "node-3")]
    with caplog.at_level(logging.WARNING):
        register_together(life.services, "job", ranks)
    told = "job job: rank 1 registers from {}, but called from {} recently; the newest is valid"
    assert caplog.messages == [told.format("node-2", "node-1"), told.format("node-3", "node-2")]
    assert get_job(life.services, "job").ranks[1].host == "node-3"


# ------------------------------------------------------------------ ends


def test_a_job_ends_when_its_last_rank_leaves(life: Life) -> None:
    leave_rank(life.services, "job", 0)
    life.age()
    assert life.state() == JobState.PLANNED
    assert life.notes()[-1] == "rank 0 ended before the others"
    leave_rank(life.services, "job", 1)
    leave_rank(life.services, "job", 1)
    assert life.notes() == ("version 1 waits for ranks 0 and 1 to acknowledge it",)
    life.age()
    assert life.state() == JobState.ENDED
    assert life.notes() == ()
    delete_job(life.services, "job")


@pytest.mark.parametrize("way", ["ended", "expired"])
def test_a_job_that_is_over_comes_back_with_a_rank_of_it(life: Life, way: str) -> None:
    if way == "ended":
        leave_rank(life.services, "job", 0)
        leave_rank(life.services, "job", 1)
    else:
        life.pass_time(3601)
    life.age()
    assert life.state() == way
    life.join(0)
    life.age()
    assert life.state() == JobState.PLANNED
    assert get_job(life.services, "job").newest_version == 1


@pytest.mark.parametrize("launch", [Launch(), FIRST])
def test_a_late_departure_of_an_earlier_process_and_a_late_acknowledgement_change_nothing(
    launch: Launch,
) -> None:
    life = Life()
    life.register(launch=launch)
    life.plan()
    life.join(0, launch)
    life.join(1, launch)
    # Of an earlier process where nothing tells them apart, else of this one.
    leave_rank(life.services, "job", 1)
    acknowledge(life.services, "job", 1, version=1, current_step=3)
    has_left = launch is FIRST
    assert [rank.has_left for rank in get_job(life.services, "job").ranks] == [False, has_left]


@pytest.mark.parametrize("problem", [None, "target: no"])
def test_a_job_without_a_plan_comes_back_as_it_was(problem: str | None) -> None:
    life = Life()
    life.register()
    before = get_job(life.services, "job").job
    if problem is not None:
        before = before.moved(JobState.PLANNING_FAILED, problem=problem)
        with life.services.store.writing("job") as writer:
            writer.save_job(before)
    life.pass_time(3601)
    life.age()
    assert life.state() == JobState.EXPIRED
    life.join(0)
    assert (life.state(), get_job(life.services, "job").job.problem) == (before.state, problem)


def test_a_call_of_a_rank_keeps_its_job_from_expiring_and_brings_it_back(life: Life) -> None:
    detail = StepDetail(job_id="job", rank=0, step=5, instructions=())
    store_measurements(life.services, "job", 0, [step_record(5)], [detail])
    life.pass_time(3000)
    life.call(1)
    life.pass_time(3000)
    life.age()
    assert life.state() == JobState.PLANNED
    with life.services.store.reading() as reader:
        assert reader.list_step_details("job", 0) == (detail,)
    life.pass_time(601)
    life.age()
    assert life.state() == JobState.EXPIRED
    with life.services.store.reading() as reader:
        assert reader.list_step_details("job", 0) == ()
    assert [step.step for step in list_steps(life.services, "job", limit=9)] == [5]
    life.call(1)
    life.age()
    assert life.state() == JobState.PLANNED


def test_what_ranks_said_while_no_planner_was_there_is_not_held_against_them(life: Life) -> None:
    life.pass_time(1e6)
    started = ExpiryReconciler()
    started(life.services, "job")
    assert life.state() == JobState.PLANNED
    life.pass_time(3601)
    started._checked_s.clear()
    started(replace(life.services, life=LifeTimes(job_expiry_s=0)), "job")
    assert life.state() == JobState.PLANNED, "where jobs never expire"
    started._checked_s.clear()
    started(life.services, "job")
    assert life.state() == JobState.EXPIRED


def test_nobody_plans_for_a_job_that_is_over_and_after_a_while_it_is_deleted(life: Life) -> None:
    life.pass_time(3601)
    life.age()
    job = get_job(life.services, "job").job
    with life.services.store.writing("job") as writer:
        writer.save_job(job.evolve(inputs_revision=job.inputs_revision + 1))
    assert PlanReconciler()(life.services, "job") is None
    assert get_job(life.services, "job").newest_version == 1
    life.pass_time(7100)
    life.age()
    assert life.state() == JobState.EXPIRED
    life.pass_time(100)
    life.age()
    with pytest.raises(UnknownJobError):
        life.state()
    life.age()  # of one that is not there


# ------------------------------------------------------------------ deletion


def test_a_job_whose_ranks_are_there_is_not_deleted(life: Life) -> None:
    with pytest.raises(JobIsRunningError, match="end its training first"):
        delete_job(life.services, "job")
    leave_rank(life.services, "job", 0)
    life.pass_time(91)
    delete_job(life.services, "job")
    with pytest.raises(UnknownJobError):
        delete_job(life.services, "job")


# ------------------------------------------------------------------ places

_FOUR = job_spec(num_ranks=4)
THREE = job_spec(num_stages=3, num_ranks=3)


def test_two_ranks_that_claim_one_place_are_refused_and_named() -> None:
    life = Life()
    life.register(_FOUR)
    life.join(0)
    life.join(2, stage=0, dp_rank=1)
    wanted = "Ranks 0 and 3 of job job both claim stage 0, dp_rank 0, tp_rank 0, cp_rank 0; give"
    with pytest.raises(PlaceTakenError, match=wanted):
        life.join(3, stage=0)
    # Each differs from all others in one.
    life.join(3, stage=0, tp_rank=1)
    life.join(3, stage=0, cp_rank=1)
    life.join(3, stage=0, dp_rank=2)
    life.join(3, stage=1)
    life.join(0)  # the same rank again, as after a crash


def test_the_place_of_a_rank_that_left_or_is_silent_is_free() -> None:
    life = Life()
    life.register(_FOUR)
    life.join(0)
    leave_rank(life.services, "job", 0)
    life.join(2, stage=0)
    with pytest.raises(PlaceTakenError):
        life.join(0)
    life.pass_time(91)
    life.join(0)


def test_of_ranks_that_register_together_the_first_has_the_place_also_when_they_restart() -> None:
    life = Life()
    life.register(_FOUR)

    def join_at(*stages: int) -> list[type]:
        """Ranks 0, 1 and so on at these stages, together."""
        ranks = [
            rank_record(rank, stage=stage, start=FIRST.start_id)
            for rank, stage in enumerate(stages)
        ]
        outcomes = register_together(life.services, "job", ranks)
        return [type(outcome) for outcome in outcomes]

    assert join_at(0, 0, 0) == [KnownRank, PlaceTakenError, PlaceTakenError]
    assert join_at(0, 1) == join_at(1, 0) == [KnownRank, KnownRank]
    life.register(_FOUR, AGAIN)
    for rank in (0, 1):
        life.join(rank, AGAIN)
    with pytest.raises(PlaceTakenError):
        life.join(0, AGAIN, stage=1)


# ------------------------------------------------------------------ restarts


def test_a_job_that_restarts_keeps_its_plan_and_an_older_start_is_refused(life: Life) -> None:
    assert not life.register(launch=AGAIN)
    assert life.join(0, launch=AGAIN).acknowledged_version is None
    summary = get_job(life.services, "job")
    assert (summary.newest_version, summary.job.restart_count) == (1, 1)
    with pytest.raises(JobHeldError):
        life.register(launch=FIRST)
    for older in (FIRST, Launch()):
        with pytest.raises(OtherStartError):
            life.join(0, launch=older)


def test_a_registration_right_after_a_refusal_ends_it(life: Life) -> None:
    store = life.services.store
    writing, was_registered = store.writing, threading.Event()

    @contextmanager
    def followed(job_id: str) -> Iterator[JobWriter]:
        with writing(job_id) as writer:
            yield writer
        if not was_registered.is_set():
            was_registered.set()
            life.register(launch=AGAIN)

    with patch.object(store, "writing", followed), pytest.raises(OtherStartError):
        life.join(0, launch=AGAIN)
    life.join(0, launch=AGAIN)
    assert get_job(life.services, "job").findings.refused is None


def test_the_same_start_may_run_other_microbatches_and_is_planned_for_them(life: Life) -> None:
    acknowledge(life.services, "job", 0, version=1, current_step=3)
    acknowledge(life.services, "job", 1, version=1, current_step=3)
    ramped = replace(job_spec(), num_microbatches=8)
    other = replace(FIRST, start_id="b1")
    with pytest.raises(JobHeldError):
        life.register(ramped, other)
    with pytest.raises(RegistrationConflictError, match="another num_microbatches"):
        life.register(ramped, Launch())
    with pytest.raises(RegistrationConflictError):
        life.register(replace(ramped, num_stages=3, num_ranks=3), FIRST)
    change_target(life.services, "job", TargetChange(target="slowdown:10%"))
    assert not life.register(ramped, FIRST)
    summary = get_job(life.services, "job")
    assert (summary.job.state, summary.newest_version) == (JobState.PLANNED, 3)
    # What was changed since the registration stays.
    assert summary.job.spec == replace(ramped, target="slowdown:10%")
    assert summary.job.registered == ramped
    assert [rank.has_left for rank in summary.ranks] == [False, False]
    (note,) = [each for each in life.notes() if "microbatches" in each]
    assert note.startswith("runs 8 microbatches a step, ")
    for rank in (0, 1):
        acknowledge(life.services, "job", rank, version=3, current_step=9)
    assert not [each for each in life.notes() if "microbatches" in each]
    assert not life.register(job_spec(), FIRST)
    assert get_job(life.services, "job").newest_version == 4


def test_an_elastic_restart_with_other_stages_begins_a_new_run_at_once(life: Life) -> None:
    store_measurements(life.services, "job", 1, [step_record(5, 1)])
    windows = (TimetableWindow(from_time="22:00", until_time="06:00", target="least-energy"),)
    put_timetable(life.services, "job", Timetable(windows=windows))
    assert life.register(THREE, AGAIN)
    summary = get_job(life.services, "job")
    assert summary.job.spec.num_stages == 3
    assert (summary.job.state, summary.ranks) == (JobState.AWAITING_PROFILE, ())
    assert get_timetable(life.services, "job").timetable == Timetable(windows=windows)
    assert life.join(2, launch=AGAIN).rank == 2
    kept = get_job(life.services, "job@1")
    assert (kept.job.state, kept.newest_version) == (JobState.ENDED, 1)
    assert [step.step for step in list_steps(life.services, "job@1", limit=9)] == [5]
    # Its ranks have left, however lately they called.
    assert [rank.has_left for rank in kept.ranks] == [True, True]
    ExpiryReconciler()(life.services, "job@1")
    assert life.state("job@1") == JobState.ENDED


def test_other_values_wait_until_the_ranks_of_another_start_are_gone(life: Life) -> None:
    other = Launch(start_id="b1", run="43", restart_count=0, host="node-7")
    with pytest.raises(JobHeldError, match="on node-1; end them"):
        life.register(THREE, other)
    of_job = "refused a registration from node-7: job job has ranks of"
    assert life.notes()[0].startswith(of_job)
    # Those of the new start are no sign of life of the old one.
    with pytest.raises(OtherStartError):
        life.join(0, launch=other)
    assert life.notes()[0].startswith(of_job), "a refusal of its rank says less"
    life.pass_time(60)
    leave_rank(life.services, "job", 1)
    with pytest.raises(JobHeldError):
        life.register(THREE, other)
    life.pass_time(31)
    assert life.register(THREE, other)
    assert get_job(life.services, "job").job.run == "43"
    assert not any("refused" in note for note in life.notes())


def test_the_oldest_kept_run_is_deleted_and_the_newest_has_the_profile(
    life: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registration, "MAX_KEPT_RUNS", 2)
    for count in (1, 2, 3):
        launch = Launch(start_id=f"c{count}", run="42", restart_count=count)
        life.register(job_spec(num_microbatches=2 + count), launch)
        life.join(0, launch=launch)
    names = [summary.job.job_id for summary in list_jobs(life.services)]
    assert sorted(names) == ["job", "job@2", "job@3"]
    summary = get_job(life.services, "job")  # of as many stages
    assert (summary.job.state, summary.newest_version) == (JobState.PLANNED, 1)
