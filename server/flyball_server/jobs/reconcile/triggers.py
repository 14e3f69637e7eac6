"""Triggers: the posts of a job's ranks after which its reconcilers run.

Reactions are gated by these, so that a job for which none holds need not be looked at for its
steps: nothing is decided by them, and nothing is left undone. What is, as by a planner that was
killed, is found at the next post, by whichever planner takes it.
"""

from __future__ import annotations

from typing import Protocol

from flyball_server.jobs.job_state import OVER, UNPROFILED, JobState
from flyball_server.jobs.loop_state import Comparison, JobLoopState
from flyball_server.jobs.records import ADAPT_FRONTIER, ADAPT_RECONFIGURE, JobRecord
from flyball_server.jobs.services import JobServices
from flyball_server.jobs.store.contract import JobReader


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


def are_posts_looked_at(reader: JobReader, job: JobRecord) -> bool:
    """Return whether a reaction may have something to do after a post of the job's ranks."""
    return (
        # Its ranks train on after all.
        job.state in OVER
        or may_be_left_probing(job)
        or is_unplanned(job)
        or is_probed(job)
        or adapts_frontier(job)
        or is_reconfigured(job)
        or open_comparison(reader.find_loop_state(job.job_id)) is not None
    )


def is_unplanned(job: JobRecord) -> bool:
    """Return whether a change is stored that nobody has planned; not where that has failed.

    One that failed, and whose inputs have changed since, has no problem any more.
    """
    has_failed = job.state is JobState.PLANNING_FAILED and job.problem is not None
    return job.planned_revision != job.inputs_revision and not has_failed and job.state not in OVER


def may_be_left_probing(job: JobRecord) -> bool:
    """Return whether its ranks may still run the clocks of a profiling that came to nothing."""
    return job.state is JobState.PLANNING_FAILED


def is_probed(job: JobRecord) -> bool:
    """Return whether its profile is being measured in its own training."""
    return job.in_force.is_profiled_online and job.state in UNPROFILED


def adapts_frontier(job: JobRecord) -> bool:
    """Return whether stragglers and drift are looked for in what its ranks measure."""
    return job.in_force.adaptation == ADAPT_FRONTIER


def is_reconfigured(job: JobRecord) -> bool:
    """Return whether measured waits raise its clocks."""
    return job.in_force.adaptation == ADAPT_RECONFIGURE


def open_comparison(loop_state: JobLoopState) -> Comparison | None:
    """The comparison with the highest clocks that is wanted or running; None: none is."""
    newest = loop_state.comparison
    return None if newest is None or newest.is_done else newest
