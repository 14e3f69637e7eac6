"""Use cases of clients that report the start of a training and nothing after it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from flyball_server.jobs.errors import JobIsRunningError
from flyball_server.jobs.lifecycle.job_life import is_gone
from flyball_server.jobs.registry.inspection import JobSummary, require_rank
from flyball_server.jobs.registry.registration import register_job
from flyball_server.jobs.services import JobServices
from flyball_server.jobs.store.sql.job_reader import JobReader
from flyball_wire.messages import JobSpec


def start_job(
    services: JobServices,
    job_id: str,
    specified: Callable[[JobSpec | None], JobSpec],
    *,
    client: str,
) -> JobSummary:
    """Register a job for a start of its training; the reconcile loop plans it.

    Ranks of an earlier start have left: they do not report it.

    Args:
        services: services of the use cases.
        job_id: ID of the job, registered or new.
        specified: function from the registered specification (None: a new job) to that of this
            start; what it raises is raised, and nothing has changed then.
        client: `client_version` of the ranks of such clients.

    Raises:
        JobIsRunningError: ranks of another client train the job.
        InvalidFieldError, RegistrationConflictError, TooManyJobsError: as `register_job`.
    """
    with services.store.writing(job_id) as writer:
        spec = specified(_registered(writer, job_id))
        ranks, now = writer.list_ranks(job_id), services.now()
        if any(
            rank.client_version != client and not is_gone(rank, now, services.life)
            for rank in ranks
        ):
            raise JobIsRunningError(job_id=job_id)
        writer.save_ranks(rank.evolve(has_left=True, acknowledged_version=None) for rank in ranks)
    stored, _ = register_job(services, job_id, spec)
    services.enqueue_reconcile(job_id)
    return stored


def _registered(reader: JobReader, job_id: str) -> JobSpec | None:
    """Return the job's specification, with the blocking power of its online profiling."""
    job = reader.find_job(job_id)
    if job is None:
        return None
    if job.spec.blocking_power_w is not None:
        return job.spec
    profiling = reader.find_loop_state(job_id).profiling
    power_w = None if profiling is None else profiling.blocking_power_w
    return replace(job.spec, blocking_power_w=power_w)


@dataclass(frozen=True, kw_only=True)
class ClaimedSteps:
    """Steps of a rank that does not number them.

    Attributes:
        plan_version: version that the rank holds; None: none.
    """

    first_step: int
    plan_version: int | None


def claim_steps(services: JobServices, job_id: str, rank: int, num_steps: int) -> ClaimedSteps:
    """Number the next steps of a rank, from 0 at its registration.

    Raises:
        UnknownJobError: the job does not exist.
        UnknownRankError: the rank does not exist in the job.
    """
    with services.store.writing(job_id) as writer:
        record = require_rank(writer, job_id, rank)
        first_step = record.current_step or 0
        writer.save_ranks([record.evolve(current_step=first_step + num_steps)])
    return ClaimedSteps(first_step=first_step, plan_version=record.acknowledged_version)
