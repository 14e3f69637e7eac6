"""Use case behind the others: plan a job whose profile or specification has changed."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

from anyio import CapacityLimiter, to_thread

from flyball_pipeline.errors import PipelineError
from flyball_server.jobs.errors import (
    InvalidFieldError,
    PlanningFailedError,
)
from flyball_server.jobs.job_state import JobInput
from flyball_server.jobs.loop_state import JobLoopState, MadePlan, PlanningInputs
from flyball_server.jobs.records import JobRecord, PlanRecord
from flyball_server.jobs.registry.inspection import JobSummary, newest_plan, require_job, summarise
from flyball_server.jobs.replanning.plan_request import is_raised_by_waits, plan_request
from flyball_server.jobs.replanning.slowed_plan import (
    PlanningSnapshot,
    SlowedPlan,
    read_snapshot,
    slowed_plan,
)
from flyball_server.jobs.replanning.solve import OBSOLETE, SupersededError, is_same_work
from flyball_server.jobs.services import JobServices, Solve, planning_lock
from flyball_server.jobs.store.sql.job_reader import JobReader
from flyball_server.jobs.versions.plan_versions import add_version
from flyball_server.jobs.versions.rank_plans import check_parts_fit
from flyball_server.kit.single_flight import SingleFlight
from flyball_wire.closed_loop import MissedTarget
from flyball_wire.messages import Adaptation, JobSpec, JobState, MeasurementDetail

# Number of jobs that the reconcile loop plans concurrently; each solve occupies a thread.
NUM_SLOTS = 6
# Delay in s before a job that found no free slot is tried again.
SLOT_RETRY_S = 1.0


class PlanningSlots:
    """Limit of the plannings that reconcilers wait for; taking a slot does not block.

    Args:
        num_slots: number of concurrent plannings.
    """

    def __init__(self, num_slots: int = NUM_SLOTS) -> None:
        self._free = threading.Semaphore(num_slots)

    @contextmanager
    def taken(self) -> Generator[bool]:
        """Try to take a slot for the block; yield true if one was free."""
        is_free = self._free.acquire(blocking=False)
        try:
            yield is_free
        finally:
            if is_free:
                self._free.release()


# For callers that plan one job at a time.
PLENTY = PlanningSlots(1_000_000)


class SlottedReconciler:
    """Base of the reconcilers that plan.

    Args:
        slots: slots for the plannings that the reconcile loop waits for.
    """

    def __init__(self, slots: PlanningSlots = PLENTY) -> None:
        self._slots = slots


# Number of jobs that calls plan concurrently; each solve occupies a thread.
_MAX_JOBS = 64


class PlanCoalescer:
    """Request coalescing for planning after a change of inputs; runs on the event loop's thread.

    Of the calls that wait for the same planning only one occupies a thread.
    """

    def __init__(self, services: JobServices) -> None:
        self._services = services
        self._limiter = CapacityLimiter(_MAX_JOBS)
        self._planning = SingleFlight[tuple[str, JobInput], JobSummary]()

    async def planned(self, stored: JobSummary, asked_by: JobInput) -> JobSummary:
        """Return the job, planned from the inputs that the caller has stored or from later ones.

        Args:
            stored: job after the change.
            asked_by: changed input.

        Raises:
            PlanningFailedError, UnknownJobError, PlanningStoppedError: see `plan_if_needed`.
        """
        if is_planned(stored):
            return stored
        key = (stored.job.job_id, asked_by)
        # Work in flight may have read the job before the change; work started afterwards has not.
        await self._planning.wait_for_earlier(key)
        plan = partial(plan_if_needed, self._services, *key)
        return await self._planning.run(
            key, lambda: to_thread.run_sync(plan, limiter=self._limiter)
        )


# Predicted share of energy or time below which a new version is not worth distributing.
LEAST_GAIN = 0.001
# Limit per job; the oldest are dropped and solved again if needed.
MAX_MADE = 32


def kept_plan(
    reader: JobReader,
    job: JobRecord,
    loop_state: JobLoopState,
    planned: SlowedPlan,
    planned_inputs: PlanningInputs,
) -> PlanRecord | None:
    """Return the quick plan for the same inputs if the one that follows is no better.

    Args:
        reader: reader of the store.
        job: current record of the job.
        loop_state: current loop state of the job.
        planned: newly solved plan.
        planned_inputs: planning inputs of that plan.
    """
    before = loop_state.planned_inputs
    is_refined = (
        before.effort is not None
        and _wanted(before) == _wanted(planned_inputs)
        and job.changed_input == JobInput.CONTROL
        and job.inputs_revision == job.planned_revision + 1  # so nothing else has changed
    )
    first = newest_plan(reader, job.job_id) if is_refined else None
    return None if first is None or _is_better(planned, first) else first


def _wanted(inputs: PlanningInputs) -> object:
    slowdowns = {
        slowed.rank: slowed.slowdown for slowed in inputs.rank_slowdowns if slowed.slowdown != 1
    }
    return (
        inputs.target,
        slowdowns,
        inputs.stage_slowdowns,
        inputs.delays,
        inputs.step_work,
        inputs.gpus_at_once or 1,
        inputs.gpus_in_node or 1,
        inputs.changed is None,
    )


def _is_better(refined: SlowedPlan, first: PlanRecord) -> bool:
    """Return whether it needs less energy or time by LEAST_GAIN."""
    before, after = first.plan, refined.plan
    return before.is_probe or (
        after.predicted.energy_j < (1 - LEAST_GAIN) * before.predicted.energy_j
        or after.iteration_time_s < (1 - LEAST_GAIN) * before.iteration_time_s
    )


def with_planned(
    loop_state: JobLoopState, planned: SlowedPlan, planned_inputs: PlanningInputs, version: int
) -> JobLoopState:
    """Return the loop state after a version was stored for the planned inputs.

    If a quick plan was requested but the job's own effort made it, no refinement is needed.
    """
    made = loop_state.made
    if planned.has_own_effort:
        others = [one for one in made if one.digest != planned.digest]
        made = (*others, MadePlan(digest=planned.digest, version=version))[-MAX_MADE:]
        if loop_state.inputs == planned_inputs:
            loop_state = loop_state.evolve(inputs=replace(planned_inputs, effort=None))
        planned_inputs = replace(planned_inputs, effort=None)
    return loop_state.evolve(planned_inputs=planned_inputs, made=made)


@contextmanager
def observed_solve(services: JobServices, policy: str) -> Generator[None]:
    """Report the outcome of the block, which makes a plan, to `services.observe_solve`."""
    started_s = time.perf_counter()

    def observe(outcome: str) -> None:
        seconds = time.perf_counter() - started_s
        services.observe_solve(Solve(policy=policy, outcome=outcome, seconds=seconds))

    try:
        yield
    except OBSOLETE:
        observe("superseded")
        raise
    except Exception:
        observe("failed")
        raise
    observe("planned")


_LOG = logging.getLogger(__name__)


def plan_if_needed(services: JobServices, job_id: str, asked_by: JobInput | None) -> JobSummary:
    """Plan the job from its current inputs, unless its newest plan was made from them.

    Inputs that change during a solve stop it and are planned next, so the result is never older
    than the inputs that the caller has stored.

    Args:
        services: services of the use cases.
        job_id: ID of an existing job.
        asked_by: input that the caller has stored. A failure is reported to the caller that stored
            the input changed last, not to a rank that repeats an older one. None: the caller has
            stored none, and a change whose planning has failed is not tried again.

    Raises:
        PlanningFailedError: the planner refused; the job stores the problem.
        UnknownJobError: the job has been deleted.
        PlanningStoppedError: the planner shuts down.
    """
    with services.store.lock(planning_lock(job_id)):
        while True:
            summary = _plan_once(services, job_id, asked_by)
            if summary is not None:
                return summary


def is_planned(summary: JobSummary) -> bool:
    """Return whether the job's newest plan is from its current inputs (or both are none)."""
    return summary.job.planned_revision == summary.job.inputs_revision


def _plan_once(services: JobServices, job_id: str, asked_by: JobInput | None) -> JobSummary | None:
    """Try to plan once; None if the inputs have changed meanwhile."""
    with services.store.reading() as reader:
        snapshot = read_snapshot(reader, job_id)
        job, profile = snapshot.job, snapshot.profile
        is_current = job.planned_revision == job.inputs_revision
        has_failed = job.state == JobState.PLANNING_FAILED and (
            job.problem is not None if asked_by is None else job.changed_input is not asked_by
        )
        if profile is None or is_current or has_failed:
            return summarise(reader, job)
    started_s = time.perf_counter()
    loop_state = snapshot.loop_state
    try:
        request = plan_request(job.spec, profile, services.gpu_window, loop_state)
        with observed_solve(services, request.options.policy):
            planned = slowed_plan(services, snapshot, request)
        check_parts_fit(planned.plan)
    except SupersededError:
        _LOG.info("job %s: its inputs have changed; it is planned again from the new ones", job_id)
        return None
    except (PipelineError, InvalidFieldError) as error:
        problem = error.message if isinstance(error, PipelineError) else error.problem
        failure = PlanningFailedError(error.field, problem)
        if _store_failure(services, job, failure):
            raise failure from error
        return None
    solve_s = time.perf_counter() - started_s
    missed = missed_target(request.options.target, planned)
    return _store_plan(services, snapshot, planned, missed=missed, solve_s=solve_s)


def _store_plan(
    services: JobServices,
    snapshot: PlanningSnapshot,
    planned: SlowedPlan,
    *,
    missed: MissedTarget | None,
    solve_s: float,
) -> JobSummary | None:
    job, planned_inputs = snapshot.job, snapshot.loop_state.inputs
    with services.store.writing(job.job_id) as writer:
        now = require_job(writer, job.job_id)
        if not is_same_work(job, now):
            return None
        if now.planned_revision == now.inputs_revision:
            # The lock was lost, and another planner has held it meanwhile.
            return summarise(writer, now)
        loop_state = writer.find_loop_state(job.job_id)
        record = kept_plan(writer, now, loop_state, planned, planned_inputs)
        is_kept = record is not None
        if record is None:
            detail = _measurement_detail(job.spec, planned_inputs)
            record = add_version(
                services,
                writer,
                job.job_id,
                planned.plan,
                solve_s=solve_s,
                measurement_detail=detail,
            )
            now = now.moved(JobState.PLANNED)
        now = now.evolve(planned_revision=job.inputs_revision)
        writer.save_job(now)
        after = with_planned(loop_state, planned, planned_inputs, record.version)
        after = after.evolve(missed=missed)
        if after != loop_state:
            writer.save_loop_state(after)
        summary = summarise(writer, now)
    services.notify_pollers(job.job_id)
    services.enqueue_reconcile(job.job_id)
    if is_kept:
        _LOG.info(
            "job %s: plan %d stays; no other plan is better by enough", job.job_id, record.version
        )
    else:
        _log_version(record, planned)
    if missed is not None and missed != loop_state.missed:
        _LOG.warning("job %s: %s", job.job_id, missed.text)
    return summary


def missed_target(target: str, planned: SlowedPlan) -> MissedTarget | None:
    """Return the target if the plan is the nearest one instead; None: it meets the target."""
    nearest = planned.plan.target
    return None if nearest == target else MissedTarget(target=target, nearest=nearest)


def _log_version(record: PlanRecord, planned: SlowedPlan) -> None:
    about_version = {"version": record.version}
    if planned.made_as is not None:
        _LOG.info(
            "job %s: plan %d is the same as plan %d",
            record.job_id,
            record.version,
            planned.made_as,
            extra=about_version,
        )
        return
    how = "" if planned.has_own_effort else ", at once; a better one may follow"
    _LOG.info(
        "job %s: plan %d made in %.3f s%s",
        record.job_id,
        record.version,
        record.solve_s,
        how,
        extra=about_version,
    )


def _measurement_detail(spec: JobSpec, planned_inputs: PlanningInputs) -> MeasurementDetail:
    """Return the detail of measurements that the job's adaptation requires."""
    if spec.adaptation == Adaptation.FRONTIER or planned_inputs.step_work is not None:
        return MeasurementDetail.CLOCKS
    if is_raised_by_waits(spec, planned_inputs):
        return MeasurementDetail.INSTRUCTIONS
    return MeasurementDetail.TOTALS


def _store_failure(services: JobServices, job: JobRecord, failure: PlanningFailedError) -> bool:
    """Store the failure unless its inputs have changed or were planned; return whether stored."""
    with services.store.writing(job.job_id) as writer:
        now = require_job(writer, job.job_id)
        if not is_same_work(job, now) or now.planned_revision == now.inputs_revision:
            return False
        writer.save_job(now.moved(JobState.PLANNING_FAILED, problem=failure.message))
    _LOG.warning("job %s: planning failed: %s", job.job_id, failure.message)
    return True
