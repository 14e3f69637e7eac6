"""Changes that were stored and not planned, and plannings that come too late."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.planner.one_rank import register_rank
from tests.planner.samples import CountingPlanner, Services, job_spec, profile, rank_record
from tests.planner.use_cases import change_target, put_profile, register_job

from flyball_server.jobs.errors import PlanningFailedError
from flyball_server.jobs.job_state import JobState
from flyball_server.jobs.loop_state import JobLoopState
from flyball_server.jobs.reconcile.plans import ReplanReconciler
from flyball_server.jobs.records import JobRecord
from flyball_server.jobs.registry import inputs
from flyball_server.jobs.registry.inspection import JobSummary, get_job, require_job
from flyball_server.jobs.registry.registration import leave_rank
from flyball_server.jobs.replanning.plan_job import LOOK_AGAIN_S, PlanningSlots
from flyball_server.jobs.replanning.update_and_replan import update_and_replan
from flyball_server.jobs.services import JobServices
from flyball_server.jobs.versions.plan_versions import add_version
from flyball_server.planning.errors import PlanningError
from flyball_server.planning.plan import FrequencyPlan
from flyball_server.planning.planner import PlanRequest
from flyball_wire.plan_options import TargetChange


class PickyPlanner(CountingPlanner):
    """Refuses every target but `fastest`."""

    def __call__(self, request: PlanRequest) -> FrequencyPlan:
        plan = super().__call__(request)
        if request.options.target != "fastest":
            raise PlanningError("only fastest is met", field="target")
        return plan


@pytest.fixture
def planner() -> PickyPlanner:
    return PickyPlanner()


@pytest.fixture
def services(planner: PickyPlanner) -> JobServices:
    """A job that cannot be planned for its target."""
    made = Services(planner).jobs
    register_job(made, "job", job_spec(target="power:1"))
    with pytest.raises(PlanningFailedError):
        put_profile(made, "job", profile())
    planner.requests.clear()
    return made


def change_and_die(services: JobServices, target: str) -> JobSummary:
    """The planner stores the target, and ends before it plans."""
    return inputs.change_target(services, "job", TargetChange(target=target))


# ------------------------------------------------------------------ jobs that could not be planned


def test_a_job_that_failed_is_planned_from_a_change_that_nobody_has_planned(
    services: JobServices,
) -> None:
    changed = change_and_die(services, "fastest").job
    assert (changed.state, changed.problem) == (JobState.PLANNING_FAILED, None)
    assert ReplanReconciler()(services, "job") is None
    summary = get_job(services, "job")
    assert (summary.job.state, summary.newest_version) == (JobState.PLANNED, 1)


def test_a_change_that_fails_too_is_tried_once_and_told_to_who_made_it(
    services: JobServices, planner: PickyPlanner
) -> None:
    change_and_die(services, "power:2")
    for _ in range(3):
        ReplanReconciler()(services, "job")
    assert len(planner.requests) == 1
    assert get_job(services, "job").job.problem == "target: only fastest is met"
    assert register_job(services, "job", job_spec(target="power:1"))[0].newest_version is None
    with pytest.raises(PlanningFailedError, match="only fastest is met"):
        change_target(services, "job", TargetChange(target="power:2"))


def test_a_job_that_failed_and_ended_is_planned_from_the_change_when_it_comes_back(
    services: JobServices,
) -> None:
    register_rank(services, rank_record(0))
    leave_rank(services, "job", 0)
    with services.store.writing("job") as writer:
        failed = require_job(writer, "job")
        writer.save_job(failed.moved(JobState.ENDED, problem=failed.problem))
    change_and_die(services, "fastest")
    ReplanReconciler()(services, "job")
    assert get_job(services, "job").newest_version is None
    register_rank(services, rank_record(0))
    ReplanReconciler()(services, "job")
    summary = get_job(services, "job")
    assert (summary.job.state, summary.newest_version) == (JobState.PLANNED, 1)


def test_a_job_whose_profiling_was_refused_keeps_its_problem_with_another_target(
    services: JobServices,
) -> None:
    with services.store.writing("job") as writer:
        writer.delete_profile("job")
    assert change_and_die(services, "fastest").job.problem == "target: only fastest is met"


def test_where_no_slot_is_free_a_job_is_looked_at_again(services: JobServices) -> None:
    change_and_die(services, "fastest")
    slots = PlanningSlots(1)
    with slots.taken():
        assert ReplanReconciler(slots)(services, "job") == LOOK_AGAIN_S
        assert get_job(services, "job").newest_version is None
    assert ReplanReconciler(slots)(services, "job") is None
    assert get_job(services, "job").newest_version == 1


def test_a_change_that_finds_no_slot_is_stored_and_planned_later(services: JobServices) -> None:
    enqueued: list[str] = []
    waiting = replace(services, enqueue_reconcile=enqueued.append)

    def wanted_fastest(_: JobRecord, loop_state: JobLoopState) -> JobLoopState:
        return loop_state.evolve(in_force=replace(loop_state.in_force, target="fastest"))

    slots = PlanningSlots(1)
    with slots.taken():
        assert update_and_replan(waiting, "job", wanted_fastest, "wanted so", slots)
    assert enqueued == ["job"]
    assert get_job(services, "job").newest_version is None
    assert ReplanReconciler()(services, "job") is None
    assert get_job(services, "job").newest_version == 1


# ------------------------------------------------------------------ plannings that come too late


@pytest.mark.parametrize("is_refused", [False, True])
def test_a_job_that_another_planner_has_planned_meanwhile_gets_no_second_version(
    *, is_refused: bool
) -> None:
    """As where a planner loses the database for a while, and its turn with it."""

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
