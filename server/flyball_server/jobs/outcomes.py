"""What becomes of each of several things that one transaction does for several ranks."""

from __future__ import annotations

from typing import TypeVar

from flyball_server.jobs.errors import JobsError

T = TypeVar("T")


def only(outcomes: tuple[T | JobsError, ...]) -> T:
    """The outcome of the one thing that was asked for.

    Raises:
        JobsError: as it came out.
    """
    (outcome,) = outcomes
    if isinstance(outcome, JobsError):
        raise outcome
    return outcome
