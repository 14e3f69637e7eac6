"""Reconciler that prunes old measurements of single ranks."""

from __future__ import annotations

import time

from flyball_server.jobs.measurements.pruning import prune_some
from flyball_server.jobs.services import JobServices

# Period between two passes over a job, s.
PERIOD_S = 30.0
# Time limit of a pass, for the job's other reconcilers, and the pause after it if it was reached.
BUDGET_S = 0.5
BUSY_PAUSE_S = 1.0
# Pause between two transactions, for posts, s.
PAUSE_S = 0.03


class PruningReconciler:
    """Reconciler that prunes a job's steps, in short transactions with pauses between them."""

    order = 70
    runs_after_posts = None  # what has to be pruned is known long before

    def __init__(self) -> None:
        # By job, time of the next pass, monotonic s.
        self._due_s: dict[str, float] = {}

    def __call__(self, services: JobServices, job_id: str) -> float | None:
        """Prune the job's steps for a while; return the time until the next pass."""
        if not services.life.step_retention_s:
            return None
        now_s = time.monotonic()
        if self._due_s.get(job_id, now_s) > now_s:
            return self._due_s[job_id] - now_s
        with services.store.reading() as reader:
            job = reader.find_job(job_id)
        if job is None:
            self._due_s.pop(job_id, None)
            return None
        is_left = True
        while is_left and time.monotonic() < now_s + BUDGET_S:
            is_left = prune_some(services, job_id)
            if is_left:
                time.sleep(PAUSE_S)
        pause_s = BUSY_PAUSE_S if is_left else PERIOD_S
        self._due_s[job_id] = time.monotonic() + pause_s
        return pause_s
