"""Use cases up to a plan: registering, profiles, targets, and when a new version is made."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta

import pytest
from tests.planner.one_rank import register_rank
from tests.planner.sample_plans import frequency_plan
from tests.planner.samples import MOMENT, CountingPlanner, Services, job_spec, profile, rank_record
from tests.planner.use_cases import change_target, put_profile, register_job

from flyball_server.jobs.errors import (
    InvalidFieldError,
    PlannerFaultError,
    PlanningFailedError,
    RegistrationConflictError,
    UnknownJobError,
)
from flyball_server.jobs.reconcile.plans import LOST_PAUSE_S, PlanReconciler
from flyball_server.jobs.reconcile.solve import SLOT_RETRY_S
from flyball_server.jobs.registry import inputs
from flyball_server.jobs.registry.inspection import (
    JobSummary,
    get_job,
    get_plan,
    list_plans,
)
from flyball_server.jobs.registry.registration import leave_rank
from flyball_server.jobs.services import JobServices
from flyball_server.jobs.versions.plan_versions import add_version
from flyball_server.planning.errors import PlanningError
from flyball_server.planning.planner import PlanRequest
from flyball_wire.messages import JobState
from flyball_wire.plan_options import Policy, TargetChange
from flyball_wire.plans.plan import Plan


class PickyPlanner(CountingPlanner):
    """Refuses every target but `fastest`."""

    def __call__(self, request: PlanRequest) -> Plan:
        plan = super().__call__(request)
        if request.options.target != "fastest":
            raise PlanningError("only fastest is met", field="target")
        return plan


@pytest.fixture
def planner() -> CountingPlanner:
    return CountingPlanner()


@pytest.fixture
def services(planner: CountingPlanner) -> Services:
    made = Services(planner)
    register_job(made.jobs, "job", job_spec())
    return made


def test_a_profile_or_target_makes_a_version_unless_it_is_the_same(
    services: Services, planner: CountingPlanner
) -> None:
    early = change_target(services.jobs, "job", TargetChange(target="least-energy"))
    assert early.job.state == JobState.AWAITING_PROFILE
    with pytest.raises(InvalidFieldError, match="profile: has 3 stages, but the job has 2"):
        put_profile(services.jobs, "job", profile(3))
    assert get_job(services.jobs, "job").job.state == JobState.AWAITING_PROFILE
    summary = put_profile(services.jobs, "job", profile())
    assert (summary.job.state, summary.newest_version) == (JobState.PLANNED, 1)
    assert services.woken == ["job"]
    assert get_plan(services.jobs, "job", 1).plan == frequency_plan()
    assert put_profile(services.jobs, "job", profile()).newest_version == 1
    other = profile(forward_energy_j=31)
    assert put_profile(services.jobs, "job", other).newest_version == 2
    for update in (TargetChange(policy=Policy.UNIFORM, target="fastest"), TargetChange()):
        for _ in range(2):
            assert change_target(services.jobs, "job", update).newest_version == 3
    planned = [
        (each.profile, each.options.policy, each.options.target) for each in planner.requests
    ]
    assert planned == [
        (profile(), "frontier", "least-energy"),
        (other, "frontier", "least-energy"),
        (other, "uniform", "fastest"),
    ]
    assert [plan.version for plan in list_plans(services.jobs, "job")] == [1, 2, 3]
    # A rank that was restarted keeps the changed target.
    summary, is_new = register_job(services.jobs, "job", job_spec())
    assert (is_new, summary.job.spec.policy, summary.newest_version) == (False, "uniform", 3)


def test_other_values_that_fit_the_ranks_are_taken_until_something_is_planned(
    services: Services,
) -> None:
    summary, is_new = register_job(services.jobs, "job", job_spec(num_microbatches=8))
    assert not is_new
    assert summary.job.spec.num_microbatches == 8
    register_rank(services.jobs, rank_record(1))
    for num_ranks, field in ((1, "num_ranks"), (2, "num_stages")):
        with pytest.raises(RegistrationConflictError, match=field):
            register_job(services.jobs, "job", job_spec(num_stages=1, num_ranks=num_ranks))
    put_profile(services.jobs, "job", profile())
    with pytest.raises(RegistrationConflictError, match="num_microbatches"):
        register_job(services.jobs, "job", job_spec(num_microbatches=9))
    assert get_job(services.jobs, "job").job.spec.num_microbatches == 8


V = (("forward", 0), ("forward", 0, 1), ("backward", 0, 1), ("backward", 0))
V_PLACES = ((0, 3), (1, 2))


@pytest.mark.parametrize(
    "given",
    [
        {"schedule": "explicit", "order": (V, V), "virtual_stages": V_PLACES},
        {"schedule": "torchgpipe", "checkpoint": "always"},
    ],
)
def test_a_schedule_is_planned_as_it_was_registered(
    services: Services, planner: CountingPlanner, given: dict[str, object]
) -> None:
    register_job(services.jobs, "ordered", job_spec(num_microbatches=1, **given))
    put_profile(services.jobs, "ordered", profile())
    options = planner.requests[0].options
    assert {name: getattr(options, name) for name in given} == given


def test_a_job_that_cannot_be_planned_is_refused_before_there_is_a_profile(
    services: Services,
) -> None:
    with pytest.raises(InvalidFieldError, match="gpu: unknown GPU 'abacus'; known: "):
        register_job(services.jobs, "other", job_spec(gpu="abacus"))
    with pytest.raises(UnknownJobError):
        get_job(services.jobs, "other")


def test_the_gpu_table_gives_what_a_job_omits(services: Services, planner: CountingPlanner) -> None:
    window = services.jobs.gpu_window("v100")
    register_job(services.jobs, "given", job_spec(gpu="v100", blocking_power_w=(1.0,)))
    put_profile(services.jobs, "given", profile())
    assert planner.requests[0].blocking_power_w == (1.0,)
    assert planner.requests[0].reconfigure_granularity_mhz == window.reconfigure_granularity_mhz


@pytest.fixture
def picky() -> PickyPlanner:
    return PickyPlanner()


@pytest.fixture
def failed(picky: PickyPlanner) -> JobServices:
    """A job whose profile could not be planned for its target."""
    services = Services(picky).jobs
    register_job(services, "job", job_spec(target="power:1"))
    with pytest.raises(PlanningFailedError):
        put_profile(services, "job", profile())
    picky.requests.clear()
    return services


@pytest.mark.parametrize(
    "mend",
    [
        lambda jobs: change_target(jobs, "job", TargetChange(target="fastest")),
        lambda jobs: register_job(jobs, "job", job_spec()),
        lambda jobs: (
            register_job(jobs, "job", job_spec(num_stages=3, num_ranks=3)),
            put_profile(jobs, "job", profile(3)),
        ),
    ],
    ids=["another target", "other values", "other stages, which drop the profile"],
)
def test_a_failure_is_mended(failed: JobServices, mend: Callable[[JobServices], object]) -> None:
    mend(failed)
    summary = get_job(failed, "job")
    assert (summary.job.state, summary.job.problem) == (JobState.PLANNED, None)
    assert summary.newest_version == 1


def test_a_planner_that_breaks_is_tried_again_after_growing_pauses_or_when_asked() -> None:
    class Broken(CountingPlanner):
        def __call__(self, request: PlanRequest) -> Plan:
            plan = super().__call__(request)
            if len(self.requests) < 4:
                raise ZeroDivisionError
            return plan

    planner, now = Broken(), [MOMENT]
    jobs = replace(Services(planner).jobs, now=lambda: now[0])
    register_job(jobs, "job", job_spec())
    with pytest.raises(PlannerFaultError):
        put_profile(jobs, "job", profile())
    job = get_job(jobs, "job").job
    assert (job.state, job.problem) == (
        JobState.PLANNING_FAILED,
        "planning: unexpected error in the planner; see its log",
    )
    for num_requests, pause_s in enumerate((LOST_PAUSE_S, 2 * LOST_PAUSE_S), start=1):
        for _ in range(2):
            assert PlanReconciler()(jobs, "job") == pytest.approx(pause_s, rel=0.1)
        assert len(planner.requests) == num_requests
        now[0] += timedelta(seconds=pause_s)
        PlanReconciler()(jobs, "job")
    assert len(planner.requests) == 3
    assert put_profile(jobs, "job", profile()).newest_version == 1
    assert get_job(jobs, "job").job.state == JobState.PLANNED


def test_planning_needs_a_thread(services: Services, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as without_threads:
        without_threads.setattr(threading.Thread, "start", refuse)
        with pytest.raises(PlanningFailedError, match="no thread for it could be started"):
            put_profile(services.jobs, "job", profile())
    job = get_job(services.jobs, "job").job
    assert job.state == JobState.PLANNING_FAILED
    assert job.problem == (
        "planning: no thread for it could be started (can't start new thread);"
        " it is tried again, with growing pauses"
    )
    put_profile(services.jobs, "job", profile())
    assert get_job(services.jobs, "job").job.state == JobState.PLANNED


def test_a_target_that_changes_while_the_planner_works_is_planned_next() -> None:
    working, go_on = threading.Event(), threading.Event()

    class Slow(CountingPlanner):
        def __call__(self, request: PlanRequest) -> Plan:
            working.set()
            assert go_on.wait(30)
            return super().__call__(request)

    planner = Slow()
    services = Services(planner)
    register_job(services.jobs, "job", job_spec())
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(put_profile, services.jobs, "job", profile())
        assert working.wait(30)
        update = TargetChange(target="least-energy")
        second = threads.submit(change_target, services.jobs, "job", update)
        while get_job(services.jobs, "job").job.spec.target != "least-energy":
            assert not second.done()
        go_on.set()
        assert first.result(30).newest_version == second.result(30).newest_version == 1
    assert [request.options.target for request in planner.requests] == ["fastest", "least-energy"]


@pytest.mark.parametrize(
    ("field", "largest"),
    [("rank", 3), ("stage", 1), ("dp_rank", 2), ("tp_rank", 2), ("cp_rank", 2)],
)
def test_a_place_that_the_jobs_ranks_cannot_have_is_refused(
    services: Services, field: str, largest: int
) -> None:
    # Two stages of 4 ranks in all: one stage may have up to 3.
    register_job(services.jobs, "job", job_spec(num_ranks=4))
    register_rank(services.jobs, rank_record(1).evolve(**{field: largest}))
    said = f"{field}: must be 0 to {largest}, not {largest + 1}"
    with pytest.raises(InvalidFieldError, match=said):
        register_rank(services.jobs, rank_record(1).evolve(**{field: largest + 1}))


def change_and_die(failed: JobServices, target: str) -> JobSummary:
    """The planner stores the target, and ends before it plans."""
    return inputs.change_target(failed, "job", TargetChange(target=target))


def test_a_failed_job_is_planned_from_an_unplanned_change_once_a_slot_is_free(
    failed: JobServices,
) -> None:
    changed = change_and_die(failed, "fastest").job
    assert (changed.state, changed.problem) == (JobState.PLANNING_FAILED, None)
    slots = threading.Semaphore(1)
    with slots:
        assert PlanReconciler(slots)(failed, "job") == SLOT_RETRY_S
        assert get_job(failed, "job").newest_version is None
    assert PlanReconciler(slots)(failed, "job") is None
    summary = get_job(failed, "job")
    assert (summary.job.state, summary.newest_version) == (JobState.PLANNED, 1)
    assert slots.acquire(blocking=False)  # it was released


def test_a_change_that_fails_is_planned_once(failed: JobServices, picky: PickyPlanner) -> None:
    change_and_die(failed, "power:2")
    slots = threading.Semaphore(1)
    for _ in range(3):
        PlanReconciler(slots)(failed, "job")
    assert len(picky.requests) == 1
    assert slots.acquire(blocking=False)  # it was released
    assert get_job(failed, "job").job.problem == "target: only fastest is met"
    assert register_job(failed, "job", job_spec(target="power:1"))[0].newest_version is None
    with pytest.raises(PlanningFailedError, match="only fastest is met"):
        change_target(failed, "job", TargetChange(target="power:2"))
    with failed.store.writing("job") as writer:
        writer.delete_profile("job")
    # Without a profile it keeps its problem.
    assert change_and_die(failed, "fastest").job.problem == "target: only fastest is met"


def test_a_failed_job_that_ended_is_planned_when_it_comes_back(failed: JobServices) -> None:
    register_rank(failed, rank_record(0))
    leave_rank(failed, "job", 0)
    with failed.store.writing("job") as writer:
        job = writer.require_job("job")
        writer.save_job(job.moved(JobState.ENDED, problem=job.problem))
    change_and_die(failed, "fastest")
    PlanReconciler()(failed, "job")
    assert get_job(failed, "job").newest_version is None
    register_rank(failed, rank_record(0))
    PlanReconciler()(failed, "job")
    summary = get_job(failed, "job")
    assert (summary.job.state, summary.newest_version) == (JobState.PLANNED, 1)


# ------------------------------------------------------------------ plannings that come too late


@pytest.mark.parametrize("is_refused", [False, True])
def test_a_late_planning_adds_no_second_version(*, is_refused: bool) -> None:
    """As where a picky loses the database for a while, and its turn with it."""

    class Slow(CountingPlanner):
        def __call__(self, request: PlanRequest) -> Plan:
            plan = super().__call__(request)
            digest = get_job(late, "job").planning.wanted(late).digest
            with late.store.writing("job") as writer:
                add_version(late, writer, "job", plan, digest=digest)
            if is_refused:
                raise PlanningError("took too long", field="planning")
            return plan

    late = Services(Slow()).jobs
    register_job(late, "job", job_spec())
    summary = put_profile(late, "job", profile())
    assert (summary.job.state, summary.newest_version) == (JobState.PLANNED, 1)
    assert get_job(late, "job").newest_version == 1
