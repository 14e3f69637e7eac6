"""The contract of a reaction: what the planner does by itself when something has changed."""

from __future__ import annotations

from typing import Protocol

from flyball_server.jobs.services import JobServices


class Reconciler(Protocol):
    """Reconciler of one job: does what its loop asks for, such as a next version, or nothing.

    - It is called on the threads of the reconcile loop, never in a request: after something about
      the job was stored (`JobServices.enqueue_reconcile`), when the time that it named has come,
      and for every job when the planner starts and every minute. Any number of calls without a
      change in between do nothing. For one job it is called once at a time, among all planners on
      the store; for several jobs at once.
    - After posts of measured steps it is called only where `triggers` knows a reason to: one
      that has something to do then is gated by a condition there.
    - All that it knows it reads from the store, so that a planner that was restarted goes on.
    - Errors of the tree in `jobs.errors` may escape: they are logged, and the job is looked at
      again after its next change, within the minute; after those of the store in a few seconds.
    """

    def __call__(self, services: JobServices, job_id: str) -> float | None:
        """Look at the job.

        Returns:
            In how many seconds to look again at the latest, although nothing may have changed;
            None: only after a change.
        """
        ...
