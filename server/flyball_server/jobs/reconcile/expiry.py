"""Reconciler that ends a job when its ranks have left and expires it after a long silence."""

from __future__ import annotations

import logging
import time
from datetime import datetime
from typing import Literal

from flyball_server.jobs.job_state import OVER
from flyball_server.jobs.lifecycle.job_life import is_gone, last_sign, living_state
from flyball_server.jobs.measurements.step_reading import add_all
from flyball_server.jobs.records import JobRecord
from flyball_server.jobs.services import JobServices
from flyball_server.jobs.store.sql.job_reader import JobReader
from flyball_wire.messages import JobState

_LOG = logging.getLogger(__name__)

# Limits in s of the period between reads, since a job may have thousands of ranks.
SHORTEST_PERIOD_S = 5.0
LONGEST_PERIOD_S = 600.0


class ExpiryReconciler:
    """Reconciler that ends and expires jobs, and deletes those that were over for long enough."""

    def __init__(self) -> None:
        # Calls of ranks while no planner was running are not recorded.
        self._began: datetime | None = None
        # By job, time of the last check, monotonic s.
        self._checked_s: dict[str, float] = {}

    def runs_after_posts(self, reader: JobReader, job: JobRecord) -> bool:
        """Return whether it counts as over, and its ranks train on after all."""
        del reader
        return job.state in OVER

    def __call__(self, services: JobServices, job_id: str) -> float | None:
        """End, expire or delete the job when it is due."""
        wait_s = self._checked_s.get(job_id, -SHORTEST_PERIOD_S) + SHORTEST_PERIOD_S
        wait_s -= time.monotonic()
        if wait_s > 0:
            return wait_s
        self._checked_s[job_id] = time.monotonic()
        began = self._began = self._began or services.now()
        with services.store.reading() as reader:
            job = reader.find_job(job_id)
            move = None if job is None else _due(services, reader, job, began)
        if job is None:
            self._checked_s.pop(job_id, None)
            return None
        if move is not None:
            _make(services, job_id, began)
        return LONGEST_PERIOD_S


def _due(
    services: JobServices, reader: JobReader, job: JobRecord, began: datetime
) -> JobState | Literal["deleted"] | None:
    """Return the state that the job is due for, or `deleted`; None: no change.

    `began`: start time of this planner.
    """
    ranks, now, life = reader.list_ranks(job.job_id), services.now(), services.life
    silence_s = (now - max(last_sign(job, ranks), began)).total_seconds()
    is_expired = 0 < life.job_expiry_s < silence_s
    have_left = bool(ranks) and all(rank.has_left for rank in ranks)
    if job.state in OVER and any(not is_gone(rank, now, life) for rank in ranks):
        return living_state(reader, job)
    kept_s = life.job_retention_s
    if job.state == JobState.EXPIRED:
        kept_s += life.job_expiry_s
    if job.state in OVER and life.job_retention_s > 0 and kept_s < silence_s:
        return "deleted"
    if is_expired and job.state != JobState.EXPIRED:
        return JobState.EXPIRED
    return JobState.ENDED if have_left and job.state not in OVER else None


def _make(services: JobServices, job_id: str, began: datetime) -> None:
    """Make the due move if it is still due inside the writing transaction."""
    with services.store.writing(job_id) as writer:
        job = writer.find_job(job_id)
        move = None if job is None else _due(services, writer, job, began)
        if job is None or move is None:
            return
        if isinstance(move, JobState):
            writer.save_job(job.moved(move, problem=job.problem))
            if move in OVER:
                newest = writer.newest_step(job_id)
                end_step = 0 if newest is None else newest + 1
                # Steps are compared by their work, which is in the details; then nothing reads
                # them again.
                add_all(writer, job, end_step)
                writer.drop_step_details(job_id, end_step)
        else:
            writer.delete_job(job_id)
    _LOG.info("job %s: %s", job_id, move)
    services.notify_pollers(job_id)
