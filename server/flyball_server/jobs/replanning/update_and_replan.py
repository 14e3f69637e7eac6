"""Change of a running job's planning inputs, followed by planning."""

from __future__ import annotations

import logging
from collections.abc import Callable

from flyball_server.jobs.errors import PlanningFailedError
from flyball_server.jobs.job_state import JobInput
from flyball_server.jobs.loop_state import JobLoopState, PlanningInputs
from flyball_server.jobs.records import JobRecord
from flyball_server.jobs.registry.inspection import require_job
from flyball_server.jobs.replanning.plan_job import PLENTY, PlanningSlots, plan_if_needed
from flyball_server.jobs.services import JobServices

_LOG = logging.getLogger(__name__)

Change = Callable[[JobRecord, JobLoopState], JobLoopState]


def update_and_replan(
    services: JobServices,
    job_id: str,
    change: Change,
    why: str,
    slots: PlanningSlots = PLENTY,
) -> bool:
    """Change a job's loop state and plan the job again if that changes its planning inputs.

    A job without a profile is planned once it has one. If no plan meets the inputs, the job stores
    the problem, and the older plan holds. If no slot is free, the change is stored, and
    `ReplanReconciler` plans it.

    Args:
        services: services of the use cases.
        job_id: ID of an existing job.
        change: function from job and loop state to the new loop state; called within the
            transaction.
        why: reason for the log.
        slots: slots for the plannings that the reconcile loop waits for.

    Returns:
        True if the planning inputs have changed.

    Raises:
        UnknownJobError: the job does not exist.
    """
    with services.store.writing(job_id) as writer:
        job = require_job(writer, job_id)
        before = writer.find_loop_state(job_id)
        after = change(job, before)
        if after != before:
            writer.save_loop_state(after)
        is_planned_anew = _is_other(before.inputs, after.inputs)
        if is_planned_anew and writer.has_profile(job_id):
            writer.save_job(job.with_change(JobInput.CONTROL))
    if not is_planned_anew:
        return False
    _LOG.info("job %s: %s", job_id, why)
    with slots.taken() as is_free:
        if not is_free:
            services.enqueue_reconcile(job_id)
            return True
        try:
            plan_if_needed(services, job_id, JobInput.CONTROL)
        except PlanningFailedError:
            services.notify_pollers(job_id)  # the planning has logged and stored it
    return True


def _is_other(before: PlanningInputs, after: PlanningInputs) -> bool:
    """Return whether the inputs of the plan differ; reason and start of a slowdown do not count."""
    return _planned(before) != _planned(after)


def _planned(inputs: PlanningInputs) -> object:
    return (
        inputs.target,
        inputs.effort,
        {slowed.rank: slowed.slowdown for slowed in inputs.rank_slowdowns if slowed.slowdown != 1},
        inputs.stage_slowdowns,
        inputs.delays,
        inputs.step_work,
        # One GPU is as none known of.
        inputs.gpus_at_once or 1,
        inputs.gpus_in_node or 1,
        inputs.changed is None,
    )
