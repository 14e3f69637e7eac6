"""The states of a job and the one table of moves between them."""

from __future__ import annotations

from enum import StrEnum
from types import MappingProxyType

from flyball_server.jobs.errors import IllegalMoveError


class JobState(StrEnum):
    """What a job waits for."""

    AWAITING_PROFILE = "awaiting-profile"
    PROFILING = "profiling"
    PLANNED = "planned"
    PLANNING_FAILED = "planning-failed"


class JobInput(StrEnum):
    """What a job is planned from; each has its own calls that change it."""

    REGISTRATION = "registration"
    PROFILE = "profile"
    TARGET = "target"
    CONTROL = "control"


ALLOWED_MOVES = MappingProxyType(
    {
        JobState.AWAITING_PROFILE: frozenset(
            {JobState.PROFILING, JobState.PLANNED, JobState.PLANNING_FAILED}
        ),
        # Measured online: finished, refused, or somebody has put a profile.
        JobState.PROFILING: frozenset({JobState.PLANNED, JobState.PLANNING_FAILED}),
        # Planned again: a new version, from a new profile or target.
        JobState.PLANNED: frozenset({JobState.PLANNED, JobState.PLANNING_FAILED}),
        # Back to awaiting: registered anew with another number of stages, its profile dropped.
        JobState.PLANNING_FAILED: frozenset(
            {JobState.PLANNED, JobState.PLANNING_FAILED, JobState.AWAITING_PROFILE}
        ),
    }
)


def check_move(old: JobState, new: JobState) -> None:
    """Let only the table's moves pass.

    Raises:
        IllegalMoveError: the table has no such move.
    """
    if new not in ALLOWED_MOVES[old]:
        raise IllegalMoveError(old=old, new=new)
