"""Use case: forget a job."""

from __future__ import annotations

from flyball_server.jobs.errors import JobIsRunningError
from flyball_server.jobs.job_state import OVER
from flyball_server.jobs.lifecycle.job_life import is_gone
from flyball_server.jobs.registry.inspection import require_job
from flyball_server.jobs.services import JobServices


def delete_job(services: JobServices, job_id: str) -> None:
    """Forget a job and all that belongs to it, for good.

    Raises:
        UnknownJobError: no such job.
        JobIsRunningError: it has ranks that are still there.
    """
    now = services.now()
    with services.store.writing(job_id) as writer:
        job = require_job(writer, job_id)
        if job.state not in OVER and not all(
            is_gone(rank, now, services.life) for rank in writer.list_ranks(job_id)
        ):
            raise JobIsRunningError(job_id=job_id)
        writer.delete_job(job_id)
    services.wake(job_id)
