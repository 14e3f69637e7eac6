"""A new run of a job under its name, with other values: the old one is kept under another."""

from __future__ import annotations

import itertools
import logging

from flyball_server.jobs.inspection import require_job
from flyball_server.jobs.job_life import is_gone
from flyball_server.jobs.job_state import OVER, JobInput, JobState
from flyball_server.jobs.records import JobRecord
from flyball_server.jobs.services import JobServices
from flyball_server.jobs.store import JobReader, JobWriter

_LOG = logging.getLogger(__name__)
# Of a job's name, so that a number still fits behind it.
_KEPT_CHARACTERS = 112


def can_begin_anew(services: JobServices, reader: JobReader, job: JobRecord) -> bool:
    """Whether the job has had ranks, and all of them are gone."""
    ranks = reader.list_ranks(job.job_id)
    now = services.now()
    return bool(ranks) and all(is_gone(rank, now, services.life) for rank in ranks)


def new_run(services: JobServices, writer: JobWriter, job: JobRecord, wanted: JobRecord) -> None:
    """Keep the job as it was under a free name, and begin it again under its own.

    A profile of as many stages is taken over, and the job planned from it.

    Args:
        services: the seams.
        writer: of this job.
        job: as it stands.
        wanted: the same with the specification and the launch of the new run.
    """
    profile = writer.find_profile(job.job_id)
    kept_as = _free_name(writer, job.job_id)
    writer.rename_job(job.job_id, kept_as)
    kept = require_job(writer, kept_as)
    if kept.state not in OVER:
        writer.save_job(kept.moved(JobState.ENDED, problem=kept.problem))
    begun = JobRecord(
        job_id=job.job_id,
        registered=wanted.registered,
        in_force=wanted.in_force,
        created_at=services.now(),
        run=wanted.run,
        restart_count=wanted.restart_count,
    )
    writer.save_job(begun)
    if profile is not None and profile.num_stages == begun.in_force.num_stages:
        writer.save_profile(job.job_id, profile)
        writer.save_job(begun.with_change(JobInput.PROFILE))
    _LOG.info("job %s: a new run begins; the one before is kept as %s", job.job_id, kept_as)


def _free_name(reader: JobReader, job_id: str) -> str:
    stem = job_id[:_KEPT_CHARACTERS]
    names = (f"{stem}.{number}" for number in itertools.count(1))
    return next(name for name in names if reader.find_job(name) is None)
