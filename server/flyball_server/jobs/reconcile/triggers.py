"""Where posts of a job's ranks, most of what a planner is called for, are a reason to look at it.

Reactions are gated by these, so that a job for which none holds need not be looked at for its
steps: nothing is decided by them, and nothing is left undone. What is, as by a planner that was
killed, is found at the next post, by whichever planner takes it.
"""

from __future__ import annotations

from flyball_server.jobs.job_state import OVER, UNPROFILED, JobState
from flyball_server.jobs.loop_state import Comparison, JobLoopState
from flyball_server.jobs.records import ADAPT_FRONTIER, ADAPT_RECONFIGURE, JobRecord
from flyball_server.jobs.store.contract import JobReader


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
