"""What a job should run, from facts alone: requests and digests, and where a job stands."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.planner.running import two_stages
from tests.planner.samples import CountingPlanner, Services, job_record, job_spec, rank_record
from tests.planner.use_cases import put_profile, register_job

from flyball_profiles.gpu_windows import load_gpu_window
from flyball_server.jobs.loop_state import AnnouncedSlowdown, Attempt, JobLoopState
from flyball_server.jobs.planning_inputs import (
    MeasuredDelays,
    PlanningInputs,
    RankSlowdown,
    StageSlowdown,
)
from flyball_server.jobs.reconcile.plans import PlanReconciler
from flyball_server.jobs.records import JobRecord, NewestVersion
from flyball_server.jobs.registry.inspection import get_job, list_plans
from flyball_server.jobs.services import JobServices
from flyball_server.jobs.wanted import request
from flyball_server.jobs.wanted.wanted import Standing, Wanted, standing, wanted
from flyball_server.planning.errors import PlanningError
from flyball_server.planning.planner import PlanRequest
from flyball_wire.closed_loop import StragglerReason, Timetable, TimetableWindow
from flyball_wire.measurements import MeasurementDetail
from flyball_wire.messages import JobState
from flyball_wire.plans.plan import Plan

NOON = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
UNKNOWN = JobLoopState(job_id="job")
SLOW = RankSlowdown(rank=1, slowdown=1.2)
NIGHT = Timetable(
    windows=(TimetableWindow(from_time="22:00", until_time="06:00", target="least-energy"),)
)
# Two stages in two pipelines; ranks 1 and 3 are of stage 1.
RANKS = [rank_record(rank, stage=rank % 2, dp_rank=rank // 2) for rank in range(4)]


def wanted_of(
    findings: JobLoopState = UNKNOWN,
    *,
    now: datetime = NOON,
    profile: str | None = "profile",
    **spec: Any,  # noqa: ANN401 - as JobSpec has them
) -> Wanted:
    job = job_record(spec=job_spec(**({"effort": "low"} | spec)))
    return wanted(job, RANKS, findings, now, profile=profile, gpu_table=load_gpu_window)


def digest_of(findings: JobLoopState = UNKNOWN, **spec: Any) -> str:  # noqa: ANN401 - as above
    digest = wanted_of(findings, **spec).digest
    assert digest is not None
    return digest


# ------------------------------------------------------------------ what to solve


@pytest.mark.parametrize("profiling", ["none", "online"])
def test_without_a_profile_there_is_nothing_to_solve(profiling: str) -> None:
    found = wanted_of(profile=None, profiling=profiling)
    assert (found.plan, found.digest) == (None, None)
    assert standing(found, None, UNKNOWN, 0.0) == Standing(is_idle=True)


def test_measured_delays_fill_what_is_not_given() -> None:
    delays = MeasuredDelays(version=1, num_steps=9, tail_s=0.25, transfer_s=(0.5,), jitter=0.01)
    found = wanted_of(UNKNOWN.evolve(delays=delays), tail_ms=7.0).plan
    assert found is not None
    assert (found.options.tail_ms, found.options.transfer_ms, found.jitter) == (7.0, (500.0,), 0.01)
    assert found.options.target == "fastest"


def test_slowdowns_are_those_of_places_and_the_slowest_of_a_place_counts() -> None:
    findings = UNKNOWN.evolve(
        detected=(SLOW, RankSlowdown(rank=3, slowdown=1.1), RankSlowdown(rank=9, slowdown=5.0)),
        stragglers=(
            AnnouncedSlowdown(rank=1, slowdown=1.5, from_unix_s=NOON.timestamp() - 1),
            AnnouncedSlowdown(rank=0, slowdown=2.0, from_unix_s=NOON.timestamp() + 1),
        ),
        drifts=(StageSlowdown(stage=0, kind="forward", slowdown=0.9),),
    )
    found = wanted_of(findings).plan
    assert found is not None
    assert [(each.stage, each.dp_rank, each.kind, each.slowdown) for each in found.slowdowns] == [
        (1, 0, None, 1.5),
        (1, 1, None, 1.1),
        (0, None, "forward", 0.9),
    ]
    assert found.num_pipelines == 2
    healthy = wanted_of().plan
    assert healthy is not None
    assert (healthy.slowdowns, healthy.num_pipelines) == ((), 1)


def test_waits_decide_which_clocks_are_raised_unless_a_rank_is_slow() -> None:
    spec: dict[str, Any] = {"policy": "envelope", "adaptation": "reconfigure"}
    raised, slowed = wanted_of(**spec), wanted_of(UNKNOWN.evolve(detected=(SLOW,)), **spec)
    assert raised.plan is not None
    assert slowed.plan is not None
    assert raised.plan.measurement_detail == MeasurementDetail.INSTRUCTIONS
    assert raised.plan.options.reconfigure == "default"
    assert slowed.plan.options.reconfigure == "balanced"


def test_time_changes_targets_and_announced_slowdowns_and_says_when() -> None:
    begins = NOON + timedelta(hours=9, minutes=59)
    announced = AnnouncedSlowdown(
        rank=0, slowdown=2.0, from_unix_s=begins.timestamp(), until_unix_s=begins.timestamp() + 60
    )
    findings = UNKNOWN.evolve(timetable=NIGHT, stragglers=(announced,))
    found = [
        wanted_of(findings, now=now)
        for now in (NOON, begins - timedelta(seconds=5), begins, begins + timedelta(seconds=60))
    ]
    # At most ten minutes, should the system's clock be set.
    assert [each.changes_in_s for each in found] == [600, 5, 60, 600]
    plans = [each.plan for each in found if each.plan is not None]
    assert [(plan.options.target, len(plan.slowdowns)) for plan in plans] == [
        ("fastest", 0),
        ("fastest", 0),
        ("fastest", 1),
        ("least-energy", 0),
    ]
    assert wanted_of().changes_in_s is None


# ------------------------------------------------------------------ digests


def test_a_digest_changes_with_the_number_of_the_function_only() -> None:
    """If this fails, jobs that run are planned again after an upgrade: raise FUNCTION, or mend."""
    assert request.FUNCTION == 1
    assert digest_of() == GOLDEN


GOLDEN = "1-c1a63f39b308c3e604c88df703c677e5b6e4238f6d748523e92f6966cfedb6ad"


@pytest.mark.parametrize(
    ("findings", "spec"),
    [
        ({"gpus_at_once": 1, "gpus_in_node": 1}, {}),
        ({"tried_target": "fastest"}, {}),
        ({"timed_version": 7}, {}),
        ({"detected": (RankSlowdown(rank=1, slowdown=1.0),)}, {}),
        ({}, {"blocking_power_w": (70,)}),
        ({}, {"effort": "low", "reconfigure": None, "num_ranks": 4}),
    ],
)
def test_what_makes_no_other_request_has_the_same_digest(
    findings: dict[str, Any], spec: dict[str, Any]
) -> None:
    assert digest_of(UNKNOWN.evolve(**findings), **spec) == digest_of()


def test_equal_targets_and_slowdowns_are_equal_however_they_are_written() -> None:
    assert digest_of(target="slowdown:5%") == digest_of(target="slowdown:0.05")
    hot = replace(SLOW, reason=StragglerReason.THERMAL, since_unix_s=5.0)
    slow = [digest_of(UNKNOWN.evolve(detected=(each,))) for each in (SLOW, hot)]
    assert slow[0] == slow[1]


ONE = (("forward", 0), ("backward", 0))


def test_different_requests_have_different_digests() -> None:
    delays = MeasuredDelays(version=1, num_steps=9, tail_s=0.25)
    digests = [
        digest_of(),
        digest_of(profile="other"),
        digest_of(num_microbatches=3),
        digest_of(target="least-energy"),
        digest_of(effort="normal"),
        digest_of(adaptation="frontier"),
        digest_of(blocking_power_w=(71.0,)),
        digest_of(gpu="a100"),
        *(digest_of(schedule="explicit", order=(order,) * 2) for order in (ONE, (*ONE, *ONE))),
        digest_of(UNKNOWN.evolve(delays=delays)),
        digest_of(UNKNOWN.evolve(delays=replace(delays, jitter=0.01))),
        digest_of(UNKNOWN.evolve(gpus_at_once=2)),
        digest_of(UNKNOWN.evolve(detected=(SLOW,))),
        digest_of(UNKNOWN.evolve(detected=(replace(SLOW, slowdown=1.21),))),
        digest_of(UNKNOWN.evolve(detected=(replace(SLOW, rank=3),))),
        digest_of(UNKNOWN.evolve(drifts=(StageSlowdown(stage=1, kind="forward", slowdown=1.2),))),
    ]
    assert len(set(digests)) == len(digests)


# ------------------------------------------------------------------ where a job stands

DIGEST, OTHER = digest_of(), digest_of(target="least-energy")
RUNS_OTHER = NewestVersion(version=2, first_step=5, digest=OTHER)
REFUSED = Attempt(digest=DIGEST, version=2, field="target", problem="no", nearest="deadline:2")
LOST = Attempt(digest=DIGEST, version=2, field="planning", problem="lost", again_unix_s=50.0)
KNOWN = Attempt(digest=DIGEST, version=1)


@pytest.mark.parametrize(
    ("newest", "attempts", "expected"),
    [
        (None, (), Standing(is_due=True)),
        (RUNS_OTHER, (), Standing(is_due=True)),
        (replace(RUNS_OTHER, digest=DIGEST), (), Standing()),
        (RUNS_OTHER, (KNOWN,), Standing(reuse=KNOWN)),
        # The version for a request that only differs in effort stays.
        (RUNS_OTHER, (replace(KNOWN, version=2), Attempt(digest=OTHER, version=2)), Standing()),
        (RUNS_OTHER, (REFUSED,), Standing(failure=REFUSED)),
        (RUNS_OTHER, (LOST,), Standing(failure=LOST)),
        (RUNS_OTHER, (replace(LOST, again_unix_s=40.0),), Standing(is_due=True)),
        (replace(RUNS_OTHER, digest=f"2-{DIGEST}"), (), Standing(is_idle=True)),
    ],
)
def test_a_job_is_planned_or_failed_or_has_something_to_solve(
    newest: NewestVersion | None, attempts: tuple[Attempt, ...], expected: Standing
) -> None:
    assert standing(wanted_of(), newest, UNKNOWN.evolve(attempts=attempts), 40.0) == expected


def test_a_refused_target_may_be_missed_once_another_plan_runs() -> None:
    tried = UNKNOWN.evolve(attempts=(REFUSED,), tried_target="fastest")
    newer = replace(RUNS_OTHER, version=3)
    assert standing(wanted_of(tried), RUNS_OTHER, tried, 0.0) == Standing(failure=REFUSED)
    assert standing(wanted_of(tried), newer, tried, 0.0) == Standing(is_due=True)
    # It was put anew.
    put = tried.evolve(tried_target="least-energy")
    assert standing(wanted_of(put), newer, put, 0.0) == Standing(failure=REFUSED)


def test_a_request_that_cannot_be_made_is_a_failure_that_is_not_tried() -> None:
    found = wanted_of(blocking_power_w=None)
    stands = standing(found, RUNS_OTHER, UNKNOWN, 0.0)
    assert stands.failure is not None
    assert stands.failure.text.startswith("blocking_power_w: give it in W")
    assert stands.state == (JobState.PLANNING_FAILED, stands.failure.text)


@pytest.mark.parametrize(
    ("changes", "is_settled"),
    [
        ({"state": JobState.PLANNED}, True),
        ({"state": JobState.PLANNED, "problem": "no"}, False),
        ({"state": JobState.PLANNING_FAILED}, False),
        ({"state": JobState.ENDED}, True),
    ],
)
def test_a_planned_job_is_settled_once_its_state_says_so(
    changes: dict[str, Any], *, is_settled: bool
) -> None:
    job: JobRecord = job_record(**changes)
    assert Standing().is_settled(job) is is_settled


# ------------------------------------------------------------------ planners on one store


@pytest.fixture
def services() -> JobServices:
    made = Services(CountingPlanner()).jobs
    register_job(made, "job", job_spec())
    put_profile(made, "job", two_stages())
    return made


def versions(services: JobServices) -> int:
    return len(list_plans(services, "job"))


def test_planners_of_two_functions_do_not_replace_each_others_plans(
    services: JobServices, monkeypatch: pytest.MonkeyPatch
) -> None:
    for function in (1, 2, 1, 2, 1):
        monkeypatch.setattr(request, "FUNCTION", function)
        for _ in range(2):
            PlanReconciler()(services, "job")
    assert versions(services) == 2, "the newer one has planned it once, on purpose"
    assert get_job(services, "job").job.state == JobState.PLANNED


def test_a_request_that_a_newer_planner_has_refused_is_left_alone(
    services: JobServices, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: PlanRequest) -> Plan:
        raise PlanningError("no", field="target")

    monkeypatch.setattr(request, "FUNCTION", 2)
    newer = replace(services, planner=refuse)
    for planner, function in ((newer, 2), (services, 1), (newer, 2)):
        monkeypatch.setattr(request, "FUNCTION", function)
        PlanReconciler()(planner, "job")
        assert get_job(services, "job").job.problem == "target: no"
    assert versions(services) == 1


def test_planners_with_other_figures_of_a_gpu_do_not_replace_each_others_plans() -> None:
    services = Services(CountingPlanner()).jobs
    register_job(services, "job", job_spec(gpu="a100", blocking_power_w=None))
    put_profile(services, "job", two_stages())
    other = replace(services, gpu_window=lambda _: load_gpu_window("h100-sxm"))
    for planner in (other, services, other):
        PlanReconciler()(planner, "job")
    assert versions(services) == 1


def test_a_planner_that_starts_plans_nobody_again(services: JobServices) -> None:
    """Nor where it has lost its attempts, as an older planner may have written them."""
    for attempts in (False, True):
        if attempts:
            with services.store.writing("job") as writer:
                writer.save_loop_state(writer.find_loop_state("job").evolve(attempts=()))
        PlanReconciler()(services, "job")
    assert versions(services) == 1


def test_planning_inputs_are_those_of_the_version(services: JobServices) -> None:
    with services.store.writing("job") as writer:
        findings = writer.find_loop_state("job").evolve(gpus_at_once=2)
        writer.save_loop_state(findings)
    PlanReconciler()(services, "job")
    found = get_job(services, "job").findings
    assert found.planned_inputs == PlanningInputs(gpus_at_once=2)
    assert [each.version for each in found.attempts] == [1, 2]
