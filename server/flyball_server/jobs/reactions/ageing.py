"""Reaction: a job ends when its ranks have left, expires when nothing is heard of it for long."""

from __future__ import annotations

import logging
import time

from flyball_server.jobs.job_life import last_sign
from flyball_server.jobs.job_state import OVER, JobState
from flyball_server.jobs.records import JobRecord
from flyball_server.jobs.services import JobServices
from flyball_server.jobs.store import JobReader

_LOG = logging.getLogger(__name__)

# Thousands of ranks are read at each look.
SHORTEST_PERIOD_S = 2.0
LONGEST_PERIOD_S = 600.0


class Ageing:
    """Moves jobs to `ended` and `expired`, and deletes those that were over for long enough."""

    def __init__(self) -> None:
        # By job, when it was looked at last, monotonic s.
        self._looked_s: dict[str, float] = {}

    def __call__(self, services: JobServices, job_id: str) -> float | None:
        """End, expire or delete the job where it is time."""
        wait_s = self._looked_s.get(job_id, -SHORTEST_PERIOD_S) + SHORTEST_PERIOD_S
        wait_s -= time.monotonic()
        if wait_s > 0:
            return wait_s
        self._looked_s[job_id] = time.monotonic()
        with services.store.reading() as reader:
            job = reader.find_job(job_id)
            move = None if job is None else _due(services, reader, job)
        if job is None:
            self._looked_s.pop(job_id, None)
            return None
        if move is not None:
            _make(services, job_id)
        return LONGEST_PERIOD_S


def _due(services: JobServices, reader: JobReader, job: JobRecord) -> JobState | str | None:
    """The state that the job is due for; `deleted`; None: it stays as it is."""
    ranks = reader.list_ranks(job.job_id)
    silence = services.now() - last_sign(job, ranks)
    life = services.life
    if job.state in OVER and 0 < life.job_retention_s < silence.total_seconds():
        return "deleted"
    is_expired = 0 < life.job_expiry_s < silence.total_seconds()
    if is_expired and job.state is not JobState.EXPIRED:
        return JobState.EXPIRED
    have_left = [rank.has_left for rank in ranks]
    if job.state not in OVER and have_left and all(have_left):
        return JobState.ENDED
    return None


def _make(services: JobServices, job_id: str) -> None:
    """Make the move that is due, if it still is now that nothing can change."""
    with services.store.writing(job_id) as writer:
        job = writer.find_job(job_id)
        move = None if job is None else _due(services, writer, job)
        if job is None or move is None:
            return
        if isinstance(move, JobState):
            writer.save_job(job.moved(move, problem=job.problem))
            newest = writer.newest_step(job_id)
            # Nobody will look at them again.
            writer.drop_step_details(job_id, 0 if newest is None else newest + 1)
        else:
            writer.delete_job(job_id)
    _LOG.info("job %s: %s", job_id, move)
    services.wake(job_id)
