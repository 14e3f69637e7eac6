"""Moves between the states of a job, and the inputs that cause them."""

from __future__ import annotations

from enum import StrEnum
from types import MappingProxyType

from flyball_server.jobs.errors import IllegalMoveError
from flyball_wire.messages import JobState


class JobInput(StrEnum):
    """Input that a job is planned from; each has its own calls that change it."""

    REGISTRATION = "registration"
    PROFILE = "profile"
    TARGET = "target"


# Reconcilers ignore what such a job measures.
OVER = frozenset(state for state in JobState if state.is_over)
# The duration of its instructions is unknown so far.
UNPROFILED = frozenset({JobState.AWAITING_PROFILE, JobState.PROFILING})
_LIVING = frozenset(JobState) - OVER

ALLOWED_MOVES = MappingProxyType(
    {
        JobState.AWAITING_PROFILE: frozenset(
            {JobState.PROFILING, JobState.PLANNED, JobState.PLANNING_FAILED} | OVER
        ),
        # Measured online: finished, refused, or replaced by an uploaded profile. Back to awaiting:
        # the conditions of its GPUs have changed meanwhile.
        JobState.PROFILING: frozenset(
            {JobState.PLANNED, JobState.PLANNING_FAILED, JobState.AWAITING_PROFILE} | OVER
        ),
        # Planned again: a new version, from a new profile or target. Back to awaiting: measured
        # again, since the conditions of its GPUs have changed.
        JobState.PLANNED: frozenset(
            {JobState.PLANNED, JobState.PLANNING_FAILED, JobState.AWAITING_PROFILE} | OVER
        ),
        # Back to awaiting: registered again with another number of stages, its profile dropped.
        JobState.PLANNING_FAILED: frozenset(
            {JobState.PLANNED, JobState.PLANNING_FAILED, JobState.AWAITING_PROFILE} | OVER
        ),
        # A rank has registered again, or new planning inputs were stored.
        JobState.ENDED: _LIVING | {JobState.EXPIRED},
        JobState.EXPIRED: _LIVING,
    }
)


def check_move(old: JobState, new: JobState) -> None:
    """Check that the table allows this move.

    Raises:
        IllegalMoveError: the table has no such move.
    """
    if new not in ALLOWED_MOVES[old]:
        raise IllegalMoveError(old=old, new=new)
