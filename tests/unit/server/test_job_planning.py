"""Use cases up to a plan: registering, profiles, targets, and when a new version is made."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from tests.planner.one_rank import register_rank
from tests.planner.samples import (
    CountingPlanner,
    Services,
    frequency_plan,
    job_spec,
    profile,
    rank_record,
)
from tests.planner.use_cases import change_target, put_profile, register_job

from flyball_server.jobs.errors import (
    InvalidFieldError,
    PlanningFailedError,
    RegistrationConflictError,
    UnknownJobError,
)
from flyball_server.jobs.loop_state import JobLoopState
from flyball_server.jobs.reconcile.plans import ReplanReconciler
from flyball_server.jobs.records import JobRecord
from flyball_server.jobs.registry import inputs
from flyball_server.jobs.registry.inspection import (
    JobSummary,
    get_job,
    get_plan,
    list_plans,
    require_job,
)
from flyball_server.jobs.registry.registration import leave_rank
from flyball_server.jobs.replanning.plan_job import SLOT_RETRY_S, PlanningSlots
from flyball_server.jobs.replanning.update_and_replan import update_and_replan
from flyball_server.jobs.services import JobServices
from flyball_server.jobs.versions.plan_versions import add_version
from flyball_server.planning.errors import PlanningError
from flyball_server.planning.plan import FrequencyPlan
from flyball_server.planning.planner import PlanRequest
from flyball_wire.messages import JobState
from flyball_wire.plan_options import Policy, TargetChange


class PickyPlanner(CountingPlanner):
    """Refuses every target but `fastest`."""

    def __call__(self, request: PlanRequest) -> FrequencyPlan:
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


def test_a_profile_makes_the_first_version(services: Services, planner: CountingPlanner) -> None:
    summary = put_profile(services.jobs, "job", profile())
    assert summary.job.state == JobState.PLANNED
    assert summary.newest_version == 1
    assert services.woken == ["job"]
    assert planner.requests[0].profile == profile()
    assert planner.requests[0].options.policy == "frontier"
    assert get_plan(services.jobs, "job", 1).plan == frequency_plan()


def test_another_profile_makes_a_version(services: Services, planner: CountingPlanner) -> None:
    put_profile(services.jobs, "job", profile())
    assert put_profile(services.jobs, "job", profile()).newest_version == 1
    assert len(planner.requests) == 1
    assert put_profile(services.jobs, "job", profile(forward_energy_j=31)).newest_version == 2
    assert [plan.version for plan in list_plans(services.jobs, "job")] == [1, 2]


def test_another_target_makes_a_version(services: Services, planner: CountingPlanner) -> None:
    put_profile(services.jobs, "job", profile())
    update = TargetChange(policy=Policy.UNIFORM, target="least-energy")
    assert change_target(services.jobs, "job", update).newest_version == 2
    assert change_target(services.jobs, "job", update).newest_version == 2
    assert change_target(services.jobs, "job", TargetChange()).newest_version == 2
    assert (planner.requests[1].options.policy, planner.requests[1].options.target) == (
        "uniform",
        "least-energy",
    )


def test_a_target_may_come_before_a_profile(services: Services, planner: CountingPlanner) -> None:
    summary = change_target(services.jobs, "job", TargetChange(target="least-energy"))
    assert summary.job.state == JobState.AWAITING_PROFILE
    put_profile(services.jobs, "job", profile())
    assert [request.options.target for request in planner.requests] == ["least-energy"]


def test_a_restarted_rank_keeps_the_changed_target(services: Services) -> None:
    put_profile(services.jobs, "job", profile())
    change_target(services.jobs, "job", TargetChange(policy=Policy.UNIFORM))
    summary, is_new = register_job(services.jobs, "job", job_spec())
    assert not is_new
    assert summary.job.spec.policy == "uniform"
    assert summary.newest_version == 2


def test_other_values_are_taken_until_something_is_planned(services: Services) -> None:
    summary, is_new = register_job(services.jobs, "job", job_spec(num_microbatches=8))
    assert not is_new
    assert summary.job.spec.num_microbatches == 8
    put_profile(services.jobs, "job", profile())
    with pytest.raises(RegistrationConflictError, match="num_microbatches"):
        register_job(services.jobs, "job", job_spec(num_microbatches=9))
    assert get_job(services.jobs, "job").job.spec.num_microbatches == 8


def test_other_values_must_fit_the_ranks_that_are_there(services: Services) -> None:
    register_rank(services.jobs, rank_record(1))
    with pytest.raises(RegistrationConflictError, match="num_ranks"):
        register_job(services.jobs, "job", job_spec(num_stages=1, num_ranks=1))
    with pytest.raises(RegistrationConflictError, match="num_stages"):
        register_job(services.jobs, "job", job_spec(num_stages=1, num_ranks=2))


def test_a_profile_of_another_number_of_stages_is_refused_and_not_kept(services: Services) -> None:
    with pytest.raises(InvalidFieldError, match="profile: has 3 stages, but the job has 2"):
        put_profile(services.jobs, "job", profile(3))
    assert get_job(services.jobs, "job").job.state == JobState.AWAITING_PROFILE


def test_an_unknown_schedule_is_refused_before_there_is_a_profile(services: Services) -> None:
    with pytest.raises(InvalidFieldError, match="schedule: unknown 'nonsense'; known: "):
        register_job(services.jobs, "other", job_spec(schedule="nonsense"))
    with pytest.raises(UnknownJobError):
        get_job(services.jobs, "other")


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


ONE = (("forward", 0), ("backward", 0))


@pytest.mark.parametrize(
    ("changes", "field", "said"),
    [
        (
            {"schedule": "explicit"},
            "order",
            "must be given with schedule explicit, and with no other",
        ),
        (
            {"schedule": "explicit", "order": (V, V), "virtual_stages": ((3, 0), (1, 2))},
            "order",
            "the order deadlocks",
        ),
        (
            {"schedule": "explicit", "order": (ONE, (("sideways", 0),))},
            "order[1][0]",
            "unknown instruction 'sideways'",
        ),
        ({"schedule": "1f1b", "checkpoint": "always"}, "checkpoint", "is for schedule torchgpipe"),
    ],
    ids=["none given", "deadlocking", "no instruction", "checkpoint elsewhere"],
)
def test_an_order_that_cannot_run_is_refused_before_there_is_a_profile(
    services: Services, changes: dict[str, object], field: str, said: str
) -> None:
    spec = job_spec(num_microbatches=1, **changes)
    with pytest.raises(InvalidFieldError) as caught:
        register_job(services.jobs, "other", spec)
    assert caught.value.field == field
    assert said in str(caught.value)
    with pytest.raises(UnknownJobError):
        get_job(services.jobs, "other")


def test_the_gpu_table_gives_what_a_job_omits(services: Services, planner: CountingPlanner) -> None:
    window = services.jobs.gpu_window("v100")
    register_job(services.jobs, "given", job_spec(gpu="v100", blocking_power_w=(1.0,)))
    put_profile(services.jobs, "given", profile())
    assert planner.requests[0].blocking_power_w == (1.0,)
    assert planner.requests[0].reconfigure_granularity_mhz == window.reconfigure_granularity_mhz
    with pytest.raises(InvalidFieldError, match="gpu: unknown GPU 'abacus'; known: "):
        register_job(services.jobs, "other", job_spec(gpu="abacus"))


def test_a_target_that_cannot_be_met_fails_the_call_that_put_it_and_the_old_plan_holds() -> None:
    services = Services(PickyPlanner())
    register_job(services.jobs, "job", job_spec())
    put_profile(services.jobs, "job", profile())
    for _ in range(2):
        with pytest.raises(PlanningFailedError, match="target: only fastest is met") as caught:
            change_target(services.jobs, "job", TargetChange(target="power:1"))
        assert caught.value.field == "target"
    summary = get_job(services.jobs, "job")
    assert summary.job.state == JobState.PLANNING_FAILED
    assert summary.job.problem == "target: only fastest is met"
    assert summary.newest_version == 1
    # Ranks that repeat their calls do not fail.
    assert register_job(services.jobs, "job", job_spec())[0].newest_version == 1
    assert put_profile(services.jobs, "job", profile()).newest_version == 1


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
    ],
    ids=["another target", "other values"],
)
def test_a_failure_is_mended(failed: JobServices, mend: Callable[[JobServices], object]) -> None:
    mend(failed)
    summary = get_job(failed, "job")
    assert (summary.job.state, summary.job.problem) == (JobState.PLANNED, None)
    assert summary.newest_version == 1


def test_another_number_of_stages_drops_the_profile_that_failed(failed: JobServices) -> None:
    summary, _ = register_job(failed, "job", job_spec(num_stages=3, num_ranks=3))
    assert summary.job.state == JobState.AWAITING_PROFILE
    assert put_profile(failed, "job", profile(3)).newest_version == 1


def test_a_planner_that_breaks_leaves_the_job_to_be_planned_by_a_retry() -> None:
    class Broken(CountingPlanner):
        def __call__(self, request: PlanRequest) -> FrequencyPlan:
            if not self.requests:
                self.requests.append(request)
                raise ZeroDivisionError
            return super().__call__(request)

    services = Services(Broken())
    register_job(services.jobs, "job", job_spec())
    with pytest.raises(ZeroDivisionError):
        put_profile(services.jobs, "job", profile())
    assert put_profile(services.jobs, "job", profile()).newest_version == 1


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
        " put the profile or the target again when that is over"
    )
    put_profile(services.jobs, "job", profile())
    assert get_job(services.jobs, "job").job.state == JobState.PLANNED


def test_a_target_that_changes_while_the_planner_works_is_planned_next() -> None:
    working, go_on = threading.Event(), threading.Event()

    class Slow(CountingPlanner):
        def __call__(self, request: PlanRequest) -> FrequencyPlan:
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


def test_a_rank_must_be_one_of_the_jobs(services: Services) -> None:
    with pytest.raises(InvalidFieldError, match="rank: must be 0 to 1, not 2"):
        register_rank(services.jobs, rank_record(2, stage=0))
    with pytest.raises(InvalidFieldError, match="stage: must be 0 to 1, not 2"):
        register_rank(services.jobs, rank_record(0, stage=2))


@pytest.mark.parametrize("field", ["dp_rank", "tp_rank", "cp_rank"])
def test_a_place_that_the_jobs_ranks_cannot_have_is_refused(services: Services, field: str) -> None:
    # Two stages of 4 ranks in all: one stage may have up to 3.
    register_job(services.jobs, "job", job_spec(num_ranks=4))
    register_rank(services.jobs, rank_record(1).evolve(**{field: 2}))
    with pytest.raises(InvalidFieldError, match=f"{field}: must be 0 to 2, not 3"):
        register_rank(services.jobs, rank_record(1).evolve(**{field: 3}))


def change_and_die(failed: JobServices, target: str) -> JobSummary:
    """The picky stores the target, and ends before it plans."""
    return inputs.change_target(failed, "job", TargetChange(target=target))


# ------------------------------------------------------------------ jobs that could not be planned


def test_a_failed_job_is_planned_from_an_unplanned_change(failed: JobServices) -> None:
    changed = change_and_die(failed, "fastest").job
    assert (changed.state, changed.problem) == (JobState.PLANNING_FAILED, None)
    assert ReplanReconciler()(failed, "job") is None
    summary = get_job(failed, "job")
    assert (summary.job.state, summary.newest_version) == (JobState.PLANNED, 1)


def test_a_change_that_fails_is_planned_once(failed: JobServices, picky: PickyPlanner) -> None:
    change_and_die(failed, "power:2")
    for _ in range(3):
        ReplanReconciler()(failed, "job")
    assert len(picky.requests) == 1
    assert get_job(failed, "job").job.problem == "target: only fastest is met"
    assert register_job(failed, "job", job_spec(target="power:1"))[0].newest_version is None
    with pytest.raises(PlanningFailedError, match="only fastest is met"):
        change_target(failed, "job", TargetChange(target="power:2"))


def test_a_failed_job_that_ended_is_planned_when_it_comes_back(failed: JobServices) -> None:
    register_rank(failed, rank_record(0))
    leave_rank(failed, "job", 0)
    with failed.store.writing("job") as writer:
        job = require_job(writer, "job")
        writer.save_job(job.moved(JobState.ENDED, problem=job.problem))
    change_and_die(failed, "fastest")
    ReplanReconciler()(failed, "job")
    assert get_job(failed, "job").newest_version is None
    register_rank(failed, rank_record(0))
    ReplanReconciler()(failed, "job")
    summary = get_job(failed, "job")
    assert (summary.job.state, summary.newest_version) == (JobState.PLANNED, 1)


def test_a_job_without_a_profile_keeps_its_problem(failed: JobServices) -> None:
    with failed.store.writing("job") as writer:
        writer.delete_profile("job")
    assert change_and_die(failed, "fastest").job.problem == "target: only fastest is met"


def test_where_no_slot_is_free_a_job_is_looked_at_again(failed: JobServices) -> None:
    change_and_die(failed, "fastest")
    slots = PlanningSlots(1)
    with slots.taken():
        assert ReplanReconciler(slots)(failed, "job") == SLOT_RETRY_S
        assert get_job(failed, "job").newest_version is None
    assert ReplanReconciler(slots)(failed, "job") is None
    assert get_job(failed, "job").newest_version == 1


def test_a_change_that_finds_no_slot_is_stored_and_planned_later(failed: JobServices) -> None:
    enqueued: list[str] = []
    waiting = replace(failed, enqueue_reconcile=enqueued.append)

    def wanted_fastest(_: JobRecord, loop_state: JobLoopState) -> JobLoopState:
        return loop_state.evolve(inputs=replace(loop_state.inputs, target="fastest"))

    slots = PlanningSlots(1)
    with slots.taken():
        assert update_and_replan(waiting, "job", wanted_fastest, "wanted so", slots)
    assert enqueued == ["job"]
    assert get_job(failed, "job").newest_version is None
    assert ReplanReconciler()(failed, "job") is None
    assert get_job(failed, "job").newest_version == 1


# ------------------------------------------------------------------ plannings that come too late


@pytest.mark.parametrize("is_refused", [False, True])
def test_a_late_planning_adds_no_second_version(*, is_refused: bool) -> None:
    """As where a picky loses the database for a while, and its turn with it."""

    class Slow(CountingPlanner):
        def __call__(self, request: PlanRequest) -> FrequencyPlan:
            plan = super().__call__(request)
            with late.store.writing("job") as writer:
                add_version(late, writer, "job", plan)
                job = require_job(writer, "job")
                planned = job.moved(JobState.PLANNED)
                writer.save_job(planned.evolve(planned_revision=job.inputs_revision))
            if is_refused:
                raise PlanningError("took too long", field="planning")
            return plan

    late = Services(Slow()).jobs
    register_job(late, "job", job_spec())
    summary = put_profile(late, "job", profile())
    assert (summary.job.state, summary.newest_version) == (JobState.PLANNED, 1)
    assert get_job(late, "job").newest_version == 1
