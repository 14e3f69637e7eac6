"""A new run of a job under its name, with other values: the old one is kept under another."""

from __future__ import annotations

import logging

from flyball_server.jobs.control import JobControl
from flyball_server.jobs.job_state import OVER, JobInput, JobState
from flyball_server.jobs.lifecycle.job_life import is_gone
from flyball_server.jobs.records import RUN_SIGN, JobRecord
from flyball_server.jobs.registry.inspection import require_job
from flyball_server.jobs.services import JobServices
from flyball_server.jobs.store.contract import JobReader, JobWriter

_LOG = logging.getLogger(__name__)
# Of one job; a job whose launcher restarts it for ever must not fill the database.
MAX_KEPT_RUNS = 16
# Of a job's name, so that a number still fits behind it.
_KEPT_CHARACTERS = 112


def can_begin_anew(services: JobServices, reader: JobReader, job: JobRecord) -> bool:
    """Whether the job has had ranks, and all of them are gone."""
    ranks = reader.list_ranks(job.job_id)
    now = services.now()
    return bool(ranks) and all(is_gone(rank, now, services.life) for rank in ranks)


def new_run(services: JobServices, writer: JobWriter, job: JobRecord, wanted: JobRecord) -> None:
    """Keep the job as it was under a name of its own, and begin it again under its name.

    A profile of as many stages is taken over, and the job planned from it; so is its timetable.
    Of the runs that are kept the oldest goes, where there are `MAX_KEPT_RUNS`.

    Args:
        services: the seams.
        writer: of this job; nobody can register the names of kept runs, so none other has them.
        job: as it stands.
        wanted: the same with the specification and the launch of the new run.
    """
    profile = writer.find_profile(job.job_id)
    timetable = writer.find_control(job.job_id).timetable
    kept_as = _keep(writer, job)
    begun = JobRecord(
        job_id=job.job_id,
        registered=wanted.registered,
        in_force=wanted.in_force,
        created_at=services.now(),
        run=wanted.run,
        restart_count=wanted.restart_count,
    )
    writer.save_job(begun)
    if timetable is not None:
        writer.save_control(JobControl(job_id=job.job_id, timetable=timetable))
    if profile is not None and profile.num_stages == begun.in_force.num_stages:
        writer.save_profile(job.job_id, profile)
        writer.save_job(begun.with_change(JobInput.PROFILE))
    _LOG.info("job %s: a new run begins; the one before is kept as %s", job.job_id, kept_as)


def _keep(writer: JobWriter, job: JobRecord) -> str:
    """Let the job go by the name of a kept run; which that is."""
    stem = job.job_id[:_KEPT_CHARACTERS] + RUN_SIGN
    names = (other.job_id for other in writer.list_jobs())
    numbers = sorted(int(name.removeprefix(stem)) for name in names if name.startswith(stem))
    for number in numbers[: max(len(numbers) + 1 - MAX_KEPT_RUNS, 0)]:
        writer.delete_job(f"{stem}{number}")
    kept_as = f"{stem}{numbers[-1] + 1 if numbers else 1}"
    writer.rename_job(job.job_id, kept_as)
    writer.save_ranks(rank.evolve(has_left=True) for rank in writer.list_ranks(kept_as))
    kept = require_job(writer, kept_as)
    if kept.state not in OVER:
        writer.save_job(kept.moved(JobState.ENDED, problem=kept.problem))
    return kept_as
