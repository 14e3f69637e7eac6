"""Whose measured steps change what the planner does by itself.

Each reaction that looks at steps is gated by one of these, so a job for which none holds need not
be looked at whenever its ranks post: most jobs, and posts are most of what a planner is called for.
"""

from __future__ import annotations

from flyball_server.jobs.control import Comparison, JobControl
from flyball_server.jobs.job_state import OVER, JobState
from flyball_server.jobs.records import ADAPT_FRONTIER, ADAPT_RECONFIGURE, JobRecord

_UNPROFILED = frozenset({JobState.AWAITING_PROFILE, JobState.PROFILING})


def do_steps_matter(job: JobRecord, control: JobControl) -> bool:
    """Whether a reaction may do otherwise for a step that was just stored."""
    return (
        # Its ranks train on after all.
        job.state in OVER
        or is_probed(job)
        or adapts_frontier(job)
        or is_reconfigured(job)
        or open_comparison(control) is not None
    )


def is_probed(job: JobRecord) -> bool:
    """Whether its profile is being measured in its own training."""
    return job.in_force.is_profiled_online and job.state in _UNPROFILED


def adapts_frontier(job: JobRecord) -> bool:
    """Whether stragglers and drift are looked for in what its ranks measure."""
    return job.in_force.adaptation == ADAPT_FRONTIER


def is_reconfigured(job: JobRecord) -> bool:
    """Whether measured waits raise its clocks."""
    return job.in_force.adaptation == ADAPT_RECONFIGURE


def open_comparison(control: JobControl) -> Comparison | None:
    """The comparison with the highest clocks that is wanted or running; None: none is."""
    newest = control.comparison
    return None if newest is None or newest.is_done else newest
