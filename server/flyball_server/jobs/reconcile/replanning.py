"""The reaction that finishes what was begun: a change that is stored and was not planned yet.

A planner that is killed, or whose store fails, between the two leaves it so; whoever asked for
the change may not ask again.
"""

from __future__ import annotations

import logging

from flyball_server.jobs.errors import PlanningFailedError
from flyball_server.jobs.reconcile.triggers import is_unplanned
from flyball_server.jobs.registry.inspection import require_job
from flyball_server.jobs.replanning.plan_job import plan_if_needed
from flyball_server.jobs.replanning.planning_slots import LOOK_AGAIN_S, PLENTY, PlanningSlots
from flyball_server.jobs.services import JobServices, planning_lock

_LOG = logging.getLogger(__name__)


def replanning(services: JobServices, job_id: str, slots: PlanningSlots = PLENTY) -> float | None:
    """Plan a job whose inputs have changed since it was planned, unless that has failed."""
    with services.store.reading() as reader:
        job = require_job(reader, job_id)
        if not is_unplanned(job) or not reader.has_profile(job_id):
            return None
    with services.store.lock(planning_lock(job_id), waits=False) as is_free:
        if not is_free:
            return LOOK_AGAIN_S  # a request plans it
    with slots.taken() as is_free:
        if not is_free:
            return LOOK_AGAIN_S
        try:
            plan_if_needed(services, job_id, job.changed_input)
        except PlanningFailedError as error:
            _LOG.warning("job %s: not planned: %s", job_id, error.message)
            services.notify_pollers(job_id)
    return None
