"""Changing what a running job is planned for, and planning it again."""

from __future__ import annotations

import logging
from collections.abc import Callable

from flyball_server.jobs.control import InForce, JobControl
from flyball_server.jobs.errors import PlanningFailedError
from flyball_server.jobs.job_state import JobInput
from flyball_server.jobs.records import JobRecord
from flyball_server.jobs.registry.inspection import require_job
from flyball_server.jobs.replanning.planning_turn import plan_if_needed
from flyball_server.jobs.services import JobServices

_LOG = logging.getLogger(__name__)

Change = Callable[[JobRecord, JobControl], JobControl]


def steer(services: JobServices, job_id: str, change: Change, why: str) -> bool:
    """Change a job's control; where that changes what is in force, plan the job again.

    A job without a profile is planned for it once that has come. Where no plan meets it the job
    says so, and the older plan holds.

    Args:
        services: the seams.
        job_id: a known job.
        change: from job and control as they stand to what the control is to be; called within
            the transaction.
        why: for the log.

    Returns:
        Whether what is in force has changed.

    Raises:
        UnknownJobError: no such job.
    """
    with services.store.writing(job_id) as writer:
        job = require_job(writer, job_id)
        before = writer.find_control(job_id)
        after = change(job, before)
        if after != before:
            writer.save_control(after)
        is_planned_anew = _is_other(before.in_force, after.in_force)
        if is_planned_anew and writer.has_profile(job_id):
            writer.save_job(job.with_change(JobInput.CONTROL))
    if not is_planned_anew:
        return False
    _LOG.info("job %s: %s", job_id, why)
    try:
        plan_if_needed(services, job_id, JobInput.CONTROL)
    except PlanningFailedError:
        services.wake(job_id)  # the planning has logged and stored it
    return True


def _is_other(before: InForce, after: InForce) -> bool:
    """Whether another plan is wanted; why and since when a rank is slow is no matter of plans."""
    return _planned(before) != _planned(after)


def _planned(in_force: InForce) -> object:
    return (
        in_force.target,
        in_force.effort,
        {pace.rank: pace.slowdown for pace in in_force.rank_paces if pace.slowdown != 1},
        in_force.stage_paces,
    )
