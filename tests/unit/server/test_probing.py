"""The reaction that profiles a job in its training: one move after the other, over the store."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

import pytest
from tests.planner.one_rank import register_rank, store_posts, take_up
from tests.planner.samples import CountingPlanner, Services, job_spec, profile, rank_record
from tests.planner.use_cases import put_profile, register_job
from tests.unit.profiling.emulated_training import EmulatedTraining, Truth

from flyball_pipeline.instruction import InstructionKind
from flyball_profiles.gpu_conditions import GpuConditions
from flyball_profiles.stage_profile import EnergyScope, OperatingPoint, StageProfile
from flyball_server.jobs.conditions.reconciler import SETTLE_S, ConditionsReconciler
from flyball_server.jobs.errors import InvalidFieldError, RegistrationConflictError
from flyball_server.jobs.measurements.measurements import RankPost
from flyball_server.jobs.probing import PATIENCE, PATIENCE_STEPS, probed_versions
from flyball_server.jobs.reconcile.plans import PlanReconciler
from flyball_server.jobs.reconcile.probes import ProbeReconciler
from flyball_server.jobs.registry.inspection import (
    get_job,
    get_profiling,
    list_plans,
    notes,
)
from flyball_server.jobs.step_records import StepDetail, StepRecord
from flyball_server.jobs.versions import rank_plans
from flyball_server.planning.scheduling import ScheduleContext, schedule_for
from flyball_server.profiling.moves import Refused
from flyball_server.profiling.observations import ProbedVersion
from flyball_wire.measurements import MeasurementDetail
from flyball_wire.messages import JobState, Profiling

pytestmark = pytest.mark.slow

CLOCKS_MHZ = tuple(range(1400, 700, -100))
NUM_MICROBATCHES = 16
BLOCKING_POWER_W = 80.0
# What a job registers with that waits for a profile.
GIVEN = job_spec(num_microbatches=NUM_MICROBATCHES)


def truth_profile() -> StageProfile:
    """Two stages whose times grow with 1/f and whose power falls with f^2, both beside a rest."""
    points = {
        (stage, kind): tuple(
            OperatingPoint(
                frequency_mhz=mhz,
                time_s=scale * (0.3 + 0.7 * 1400 / mhz),
                energy_j=scale * (0.3 + 0.7 * 1400 / mhz) * (90 + 210 * (mhz / 1400) ** 2),
            )
            for mhz in CLOCKS_MHZ
        )
        for stage in (0, 1)
        for kind, scale in ((InstructionKind.FORWARD, 0.1), (InstructionKind.BACKWARD, 0.2))
    }
    return StageProfile(points=points, num_ranks_per_stage=(1, 1))


@dataclass(kw_only=True)
class ProbedJob:
    """A job of two ranks that do what their plans say, and the planner's reaction to it.

    Attributes:
        readings: of clocks in each step, as the records count them.
    """

    services: Services
    tells: bool = True
    silent_rank: int | None = None
    conditions: GpuConditions | None = None
    readings: Mapping[str, int] = field(default_factory=dict[str, int])
    step: int = 0
    _acknowledged: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        spec = replace(GIVEN, profiling=Profiling.ONLINE, blocking_power_w=None)
        register_job(self.services.jobs, "job", spec)
        true = truth_profile()
        schedule = schedule_for(
            "1f1b", ScheduleContext(profile=true, num_microbatches=NUM_MICROBATCHES)
        )
        truth = Truth(
            profile=true, schedule=schedule, blocking_power_w=(BLOCKING_POWER_W,) * 2, noise=0.0
        )
        self._training = EmulatedTraining(truth, seed=1)

    def register_ranks(self) -> None:
        for rank in (0, 1):
            register_rank(
                self.services.jobs,
                rank_record(
                    rank,
                    sm_clocks_mhz=CLOCKS_MHZ,
                    energy_scope=EnergyScope.MODULE,
                    conditions=self.conditions,
                ),
            )

    def change_conditions(self, conditions: GpuConditions, *ranks: int) -> float | None:
        """Ranks post that their GPUs' conditions are others; the planner answers."""
        with self.services.jobs.store.writing("job") as writer:
            writer.note_conditions("job", dict.fromkeys(ranks, conditions))
        return self.answer_conditions()

    def answer_conditions(self) -> float | None:
        wait_s = ConditionsReconciler()(self.services.jobs, "job")
        self.reconcile()
        return wait_s

    def notes(self) -> list[str]:
        found = notes(self.services.jobs, get_job(self.services.jobs, "job"))
        return [line for line in found if "profiled: " in line]

    def reconcile(self) -> None:
        assert ProbeReconciler()(self.services.jobs, "job") is None
        assert PlanReconciler()(self.services.jobs, "job") is None

    def pass_time(self, duration: timedelta) -> None:
        now = self.services.jobs.now() + duration
        self.services.jobs = replace(self.services.jobs, now=lambda: now)

    def state(self) -> JobState:
        return get_job(self.services.jobs, "job").job.state

    def problem(self) -> str | None:
        return get_job(self.services.jobs, "job").job.problem

    def run_newest_version(self, *, steps: int | None = None) -> None:
        """All ranks take up the newest version and train its cycle, at least 12 steps of it."""
        newest = list_plans(self.services.jobs, "job")[-1]
        assert newest.plan.is_probe
        if newest.version > self._acknowledged:
            self._acknowledged = newest.version
            self.step = take_up(
                self.services.jobs, (0, 1), version=newest.version, current_step=self.step
            )
        newest = list_plans(self.services.jobs, "job")[-1]
        assert newest.plan.is_probe
        [version] = probed_versions([newest])
        posts = [
            post
            for _ in range(steps or max(12, len(newest.plan.cycle_mhz)))
            for post in self._run(version)
        ]
        store_posts(self.services.jobs, posts)

    def _run(self, version: ProbedVersion) -> list[RankPost]:
        posts: list[RankPost] = []
        for measured in self._training.run_step(self.step, version):
            if measured.stage == self.silent_rank:
                continue
            record = StepRecord(
                job_id="job",
                rank=measured.stage,
                step=self.step,
                plan_version=version.version,
                time_s=measured.iteration_time_s,
                energy_j=measured.energy_j,
                **self.readings,
            )
            detail = StepDetail(
                job_id="job",
                rank=measured.stage,
                step=self.step,
                by_clock=tuple(
                    (str(of.kind), of.chunk, of.sm_clock_mhz, count, of.mean_s, of.variance_s2)
                    for of in measured.instructions
                    for count in [int(of.count)]
                ),
            )
            details = (detail,) if self.tells else ()
            posts.append(RankPost(rank=measured.stage, steps=(record,), details=details))
        self.step += 1
        return posts

    def profile_to_the_end(self) -> None:
        self.register_ranks()
        self.reconcile()
        for _ in range(20):
            if self.state() != JobState.PROFILING:
                return
            self.run_newest_version()
            self.reconcile()
        pytest.fail("profiling did not end")


@pytest.fixture
def planner() -> CountingPlanner:
    return CountingPlanner()


@pytest.fixture
def waiting_job(planner: CountingPlanner) -> ProbedJob:
    return ProbedJob(services=Services(planner))


@pytest.fixture
def job(waiting_job: ProbedJob) -> ProbedJob:
    """The job with its ranks, whose first version is there."""
    waiting_job.register_ranks()
    waiting_job.reconcile()
    return waiting_job


def test_a_profile_is_found_and_planned_from(
    waiting_job: ProbedJob, planner: CountingPlanner
) -> None:
    job = waiting_job
    register_rank(job.services.jobs, rank_record(0, sm_clocks_mhz=CLOCKS_MHZ))
    job.reconcile()
    assert job.state() == JobState.AWAITING_PROFILE, "not before all ranks are there"
    assert get_profiling(job.services.jobs, "job").state == "waiting"
    job.register_ranks()
    job.reconcile()
    assert job.state() == JobState.PROFILING
    (first,) = list_plans(job.services.jobs, "job")
    assert first.measurement_detail == MeasurementDetail.CLOCKS
    assert_all_at_the_highest(job)
    with pytest.raises(RegistrationConflictError):
        register_job(job.services.jobs, "job", GIVEN)
    job.profile_to_the_end()
    assert job.state() == JobState.PLANNED
    (request,) = planner.requests
    assert request.profile.energy_scope == EnergyScope.MODULE
    true = truth_profile()
    for (stage, kind), points in request.profile.points.items():
        for point in points:
            expected = true.at(stage, kind, point.frequency_mhz)
            assert point.time_s == pytest.approx(expected.time_s, rel=0.01)
            assert point.energy_j == pytest.approx(expected.energy_j, rel=0.03)
    assert request.blocking_power_w == pytest.approx((BLOCKING_POWER_W,) * 2, rel=0.1)
    summary = get_profiling(job.services.jobs, "job")
    assert summary.state == "finished"
    assert summary.largest_slowdown is not None
    assert summary.largest_slowdown <= 0.1


def test_a_profile_that_somebody_puts_meanwhile_ends_it(job: ProbedJob) -> None:
    job.run_newest_version()
    with pytest.raises(InvalidFieldError, match="blocking_power_w"):
        # Nobody has measured what a GPU draws while it waits.
        put_profile(job.services.jobs, "job", profile())
    job.reconcile()
    job.reconcile()
    assert [plan.measurement_detail for plan in list_plans(job.services.jobs, "job")] == [
        MeasurementDetail.CLOCKS,
        MeasurementDetail.TOTALS,
    ]
    assert_all_at_the_highest(job)
    assert get_profiling(job.services.jobs, "job").state == "off"


def test_a_new_run_gets_no_older_profile(job: ProbedJob, monkeypatch: pytest.MonkeyPatch) -> None:
    job.run_newest_version()

    def begun_before(*parts: object) -> object:
        with job.services.jobs.store.writing("job") as writer:
            old = writer.require_job("job")
            writer.save_job(old.evolve(created_at=old.created_at + timedelta(seconds=1)))
        return Refused(problem="no")

    monkeypatch.setattr(sys.modules[ProbeReconciler.__module__], "_next_move", begun_before)
    job.reconcile()
    assert job.state() == JobState.PROFILING
    assert get_profiling(job.services.jobs, "job").state == "probing"


def test_a_stored_profile_is_planned_by_a_restart(job: ProbedJob, planner: CountingPlanner) -> None:
    while job.state() == JobState.PROFILING and planner.requests == []:
        job.run_newest_version()
        assert ProbeReconciler()(job.services.jobs, "job") is None
        with job.services.jobs.store.reading() as reader:
            if reader.find_profile("job") is not None:
                break
    # As if it had been killed here, and started again.
    assert planner.requests == []
    job.reconcile()
    assert job.state() == JobState.PLANNED


def test_a_rank_that_falls_silent_ends_it(job: ProbedJob) -> None:
    job.silent_rank = 1
    job.run_newest_version(steps=12 + PATIENCE_STEPS)
    # Steps may be so short that the others ran all of these between two posts of this rank.
    job.pass_time(PATIENCE - timedelta(seconds=1))
    job.reconcile()
    assert job.state() == JobState.PROFILING
    job.pass_time(timedelta(seconds=1))
    job.reconcile()
    assert "rank 1 reported no step while others ran" in (job.problem() or "")
    job.reconcile()
    assert_all_at_the_highest(job)


@pytest.mark.parametrize(
    ("readings", "state"),
    [
        ({"num_clock_misses": 2, "num_power_capped": 1, "num_thermally_capped": 1}, "planned"),
        ({"num_clock_misses": 2, "num_power_capped": 1}, JobState.PLANNING_FAILED),
    ],
)
def test_steps_whose_clocks_power_or_heat_held_down_are_measured_as_they_are(
    waiting_job: ProbedJob, readings: dict[str, int], state: str
) -> None:
    waiting_job.readings = readings
    waiting_job.profile_to_the_end()
    assert waiting_job.state() == state


H100 = GpuConditions(power_limit_w=700.0, ecc=True)
CAPPED = replace(H100, power_limit_w=330.0)


@pytest.fixture
def conditioned(waiting_job: ProbedJob) -> ProbedJob:
    """The job on GPUs whose conditions are known, at its second version."""
    waiting_job.conditions = H100
    waiting_job.register_ranks()
    waiting_job.reconcile()
    waiting_job.run_newest_version()
    waiting_job.reconcile()
    return waiting_job


def details_of(job: ProbedJob) -> list[MeasurementDetail]:
    return [plan.measurement_detail for plan in list_plans(job.services.jobs, "job")]


def test_a_job_whose_gpus_change_while_it_is_measured_is_measured_anew(
    conditioned: ProbedJob, planner: CountingPlanner
) -> None:
    job = conditioned
    assert job.answer_conditions() is None
    assert job.state() == JobState.PROFILING
    assert job.change_conditions(CAPPED, 0) == SETTLE_S
    assert job.state() == JobState.AWAITING_PROFILE
    assert get_profiling(job.services.jobs, "job").state == "waiting"
    probed, highest = MeasurementDetail.CLOCKS, MeasurementDetail.TOTALS
    assert details_of(job) == [probed, probed, highest]
    assert_all_at_the_highest(job)
    until = "the highest clocks are kept until the job has been measured again"
    assert job.notes() == [f"rank 0: power limit 330 W (profiled: 700 W); {until}"]
    job.run_newest_version()
    assert job.change_conditions(CAPPED, 1) == SETTLE_S, "rank 1 has read it later"
    assert details_of(job) == [probed, probed, highest], "nothing is probed before it has held"
    job.pass_time(timedelta(seconds=SETTLE_S))
    assert job.answer_conditions() is None
    assert details_of(job) == [probed, probed, highest, probed]
    assert_all_at_the_highest(job)
    assert job.notes() == []
    job.conditions = CAPPED
    job.profile_to_the_end()
    assert job.state() == JobState.PLANNED
    (request,) = planner.requests
    assert request.profile.conditions == (CAPPED, CAPPED)


def test_a_limit_that_is_restored_while_it_is_waited_for_begins_the_measurement_anew(
    conditioned: ProbedJob,
) -> None:
    job = conditioned
    job.change_conditions(CAPPED, 0, 1)
    job.run_newest_version()
    assert job.change_conditions(H100, 0, 1) is None
    assert job.state() == JobState.PROFILING
    assert job.notes() == []
    assert_all_at_the_highest(job)
    assert details_of(job)[-1] == MeasurementDetail.CLOCKS
    assert job.answer_conditions() is None
    assert get_profiling(job.services.jobs, "job").num_steps == 0


@pytest.mark.parametrize(
    "change",
    [{"memory_clock_mhz": 1593}, {"ecc": False}, {"power_profile": "max-q"}],
)
def test_what_is_first_read_under_load_is_compared_from_then_on(
    conditioned: ProbedJob, change: dict[str, Any]
) -> None:
    job = conditioned
    loaded = replace(H100, memory_clock_mhz=2619, power_profile="none")
    assert job.change_conditions(loaded, 0, 1) is None
    assert job.state() == JobState.PROFILING
    assert job.change_conditions(replace(loaded, driver="590.1"), 0, 1) is None
    assert job.state() == JobState.PROFILING, "noted only"
    assert job.change_conditions(replace(loaded, **change), 1) == SETTLE_S
    assert job.state() == JobState.AWAITING_PROFILE


def test_a_run_that_starts_over_is_measured_from_the_highest_clocks_again(
    waiting_job: ProbedJob,
) -> None:
    waiting_job.step = 500
    waiting_job.register_ranks()
    waiting_job.reconcile()
    waiting_job.run_newest_version()
    waiting_job.reconcile()
    waiting_job.step = 0
    waiting_job.register_ranks()
    waiting_job.run_newest_version()
    waiting_job.reconcile()
    assert_all_at_the_highest(waiting_job)
    assert waiting_job.state() == JobState.PROFILING


def test_probes_that_no_rank_would_take_end_profiling(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_plans, "MAX_PART_BYTES", 4200)
    job = ProbedJob(services=Services(CountingPlanner()))
    job.register_ranks()
    job.reconcile()
    assert job.state() == JobState.PLANNING_FAILED
    assert (job.problem() or "").startswith("profiling: num_microbatches: the plan of stage 0 has")
    assert list_plans(job.services.jobs, "job") == ()


def assert_all_at_the_highest(job: ProbedJob) -> None:
    last = list_plans(job.services.jobs, "job")[-1]
    assert last.plan.is_probe
    assert {mhz for row in last.plan.cycle_mhz for stage in row for mhz in stage} == {1400}


def test_ranks_that_tell_nothing_of_their_clocks_are_refused_and_run_at_the_highest_again() -> None:
    job = ProbedJob(services=Services(CountingPlanner()), tells=False)
    job.profile_to_the_end()
    assert job.state() == JobState.PLANNING_FAILED
    assert (job.problem() or "").startswith("profiling: ")
    assert list_plans(job.services.jobs, "job")[-1].measurement_detail == MeasurementDetail.TOTALS
    assert_all_at_the_highest(job)
    refused = get_profiling(job.services.jobs, "job")
    assert refused.state == "refused"
    assert refused.num_steps >= 12
    # The job can be registered to wait for a profile, but not to try again.
    again = replace(GIVEN, profiling=Profiling.ONLINE, profiling_slowdown=0.5)
    with pytest.raises(RegistrationConflictError):
        register_job(job.services.jobs, "job", again)
    register_job(job.services.jobs, "job", GIVEN)
    assert job.state() == JobState.AWAITING_PROFILE
    put_profile(job.services.jobs, "job", profile())
    assert job.state() == JobState.PLANNED
    assert get_profiling(job.services.jobs, "job").state == "off"


def test_gpus_that_name_no_clocks_are_refused_before_anything_runs(waiting_job: ProbedJob) -> None:
    for rank in (0, 1):
        register_rank(waiting_job.services.jobs, rank_record(rank))
    waiting_job.reconcile()
    assert "stage 0 have no SM clock" in (waiting_job.problem() or "")
    assert list_plans(waiting_job.services.jobs, "job") == ()
