"""The reaction to what ranks measured: stragglers that are found, and drift."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest
from tests.planner.one_rank import store_measurements
from tests.planner.running import Running, slow, two_stages
from tests.planner.samples import step_record
from tests.planner.use_cases import put_profile

from flyball_server.jobs.findings.announcements import list_stragglers, withdraw_straggler
from flyball_server.jobs.findings.noting import Change, note_findings
from flyball_server.jobs.findings.stragglers import MIN_STEPS, StragglerReconciler
from flyball_server.jobs.loop_state import Comparison
from flyball_server.jobs.planning_inputs import PlanningInputs
from flyball_server.jobs.registry.inspection import get_job
from flyball_server.jobs.services import JobServices
from flyball_server.jobs.versions.plan_versions import add_again
from flyball_server.planning.errors import PlanningError
from flyball_wire.measurements import MeasurementDetail
from flyball_wire.messages import JobState

pytestmark = pytest.mark.slow


@pytest.fixture
def job() -> Running:
    return Running(adaptation="frontier", effort="low")


def test_a_straggler_that_comes_and_goes_is_found_and_planned_for_and_forgotten(
    job: Running,
) -> None:
    assert job.newest.measurement_detail == MeasurementDetail.CLOCKS
    before = job.plan
    job.run(MIN_STEPS, slow(1, 1.2))
    assert job.newest.version == 1, "not before a plan has held for some steps"
    job.run(1, slow(1, 1.2))
    assert job.newest.version == 2
    [view] = list_stragglers(job.services, "job")
    assert (view.rank, view.source, view.reason, view.is_planned) == (1, "detected", "slow", True)
    assert view.slowdown == pytest.approx(1.2)
    job.acknowledged()
    job.run(30, slow(1, 1.2))
    assert job.newest.version == 2
    job.run(8)
    assert job.newest.version == 3
    assert job.plan == before
    assert list_stragglers(job.services, "job") == ()


@pytest.mark.parametrize(("num_power_capped", "is_found"), [(0, False), (2, False), (3, True)])
def test_a_rank_whose_clock_no_limit_explains_is_no_straggler(
    job: Running, num_power_capped: int, *, is_found: bool
) -> None:
    """Of three readings below the clock that was set, power explains so many."""
    job.run(2 * MIN_STEPS, slow(1, 1.2), num_clock_misses=3, num_power_capped=num_power_capped)
    assert bool(list_stragglers(job.services, "job")) == is_found


@pytest.mark.parametrize("is_compared", [False, True])
def test_a_job_that_adapts_to_announcements_only_or_is_compared_is_not_watched(
    *, is_compared: bool
) -> None:
    job = Running(adaptation="frontier" if is_compared else "announced", effort="low")
    if is_compared:
        with job.services.store.writing("job") as writer:
            add_again(job.services, writer, job.newest.evolve(baseline_cycle=(False, True)))
            findings = writer.find_loop_state("job")
            comparison = Comparison(num_pairs=50, version=2)
            writer.save_loop_state(findings.evolve(comparison=comparison))
        job.acknowledged()
    version = job.newest.version
    job.run(20, slow(1, 1.5))
    assert job.newest.version == version


def test_steps_are_found_after_a_gap_and_beside_one_with_an_absurd_number(job: Running) -> None:
    absurd = step_record(2**53 - 1, 0, plan_version=1)
    store_measurements(job.services, "job", 0, [absurd])
    job.run(3)
    job.step += 3000
    job.run(8, slow(1, 1.4))
    assert [one.rank for one in list_stragglers(job.services, "job")] == [1]


@pytest.mark.parametrize(
    ("announced", "measured", "is_planned", "withdrawn"),
    # Found to be less slow than announced; to be nearly as slow, for which no plan is made anew.
    [(1.5, 1.2, False, 1.2), (1.2, 1.21, True, 1.2)],
)
def test_of_announced_and_detected_the_slower_one_is_in_force(
    job: Running, announced: float, measured: float, withdrawn: float, *, is_planned: bool
) -> None:
    job.announce(1, announced)
    job.settle()
    job.run(15, slow(1, measured))
    both = list_stragglers(job.services, "job")
    assert [(one.source, one.is_planned) for one in both] == [
        ("announced", True),
        ("detected", is_planned),
    ]
    assert job.newest.version == 2
    withdraw_straggler(job.services, "job", 1)
    job.settle()
    assert job.newest.version == (2 if is_planned else 3)
    [slowed] = job.loop_state.planned_inputs.rank_slowdowns
    assert slowed.slowdown == pytest.approx(withdrawn)
    job.run(MIN_STEPS + 8)
    assert job.loop_state.planned_inputs.rank_slowdowns == ()


def test_a_stage_that_drifts_is_planned_with_what_it_takes_now_until_another_profile_comes() -> (
    None
):
    job = Running(num_pipelines=2, adaptation="frontier", effort="low")
    job.run_unseen(50, lambda rank: 1.04 if rank % 2 else 1.0)
    assert job.newest.version == 2
    drifts = [(slowed.stage, slowed.kind) for slowed in job.loop_state.drifts]
    assert drifts == [(1, "backward"), (1, "forward")]
    job.acknowledged()
    job.run_unseen(20, lambda rank: 1.04 if rank % 2 else 1.0)
    assert job.newest.version == 2
    job.run_unseen(20, lambda rank: (1.04 if rank % 2 else 1.0) * (1.3 if rank == 0 else 1.0))
    assert job.loop_state.planned_inputs.rank_slowdowns
    put_profile(job.services, "job", two_stages(1.5))
    assert (job.loop_state.detected, job.loop_state.drifts) == ((), ())
    assert job.loop_state.planned_inputs == PlanningInputs()


@pytest.mark.parametrize("is_restarted", [True, False])
def test_a_run_that_starts_over_is_watched_from_its_first_step(is_restarted: bool) -> None:
    job = Running(adaptation="frontier", effort="low")
    job.step = 5000
    job.run(3)
    job.step = 0
    job.announce(0, 1.1)
    job.settle()
    assert job.step < 100
    if is_restarted:
        for _ in range(MIN_STEPS + 6):
            job.post(slow(1, 1.4))
        job.pacing = StragglerReconciler()
        job.settle()
    else:
        job.run(MIN_STEPS + 6, slow(1, 1.4))
    assert [one.rank for one in list_stragglers(job.services, "job")] == [0, 1]


def test_after_a_planning_that_failed_the_plan_that_holds_is_watched(
    job: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: object) -> None:
        raise PlanningError("no plan today", field="planning")

    monkeypatch.setattr("flyball_server.jobs.reconcile.plans.make_slowed_plan", failing)
    job.run(MIN_STEPS + 6, slow(1, 1.3))
    assert get_job(job.services, "job").job.state == JobState.PLANNING_FAILED
    assert [one.rank for one in list_stragglers(job.services, "job")] == [1]
    job.run(8)
    assert list_stragglers(job.services, "job") == ()
    assert get_job(job.services, "job").job.state == JobState.PLANNED


def test_a_slowdown_beyond_all_bounds_is_planned_with_the_bound(job: Running) -> None:
    for _ in range(2):
        job.run(MIN_STEPS + 6, slow(1, 1000.0))
        assert get_job(job.services, "job").job.state == JobState.PLANNED
        assert job.newest.version == 2
        job.acknowledged()
    assert [one.slowdown for one in list_stragglers(job.services, "job")] == [100.0]
    drifting = Running(num_pipelines=2, adaptation="frontier", effort="low")
    drifting.run_unseen(50, lambda rank: 0.001 if rank % 2 else 1.0)
    assert {slowed.slowdown for slowed in drifting.loop_state.drifts} == {0.01}
    assert get_job(drifting.services, "job").job.state == JobState.PLANNED


def put_another_profile(services: JobServices) -> None:
    put_profile(services, "job", two_stages(1.5))


def begin_anew(services: JobServices) -> None:
    """As a new run under the job's name, with as many changes of its inputs."""
    with services.store.writing("job") as writer:
        job = writer.require_job("job")
        writer.save_job(job.evolve(created_at=job.created_at + timedelta(seconds=1)))


@pytest.mark.parametrize("meanwhile", [put_another_profile, begin_anew])
def test_a_finding_holds_for_no_other_profile_and_no_other_run(
    monkeypatch: pytest.MonkeyPatch, meanwhile: Callable[[JobServices], None]
) -> None:
    job = Running(adaptation="frontier", effort="low")

    def overtaken(services: JobServices, job_id: str, change: Change, why: str) -> None:
        meanwhile(services)
        note_findings(services, job_id, change, why)

    job.run(MIN_STEPS, slow(1, 1.4))
    monkeypatch.setattr("flyball_server.jobs.findings.stragglers.note_findings", overtaken)
    job.run(1, slow(1, 1.4))
    assert (job.loop_state.detected, job.loop_state.planned_inputs) == ((), PlanningInputs())
