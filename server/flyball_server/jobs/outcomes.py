"""What becomes of each of several things that are done together for several ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from flyball_server.jobs.errors import JobsError

Item = TypeVar("Item")
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


def each_for_itself(
    work: Callable[[Sequence[Item]], Sequence[T | JobsError]], items: Sequence[Item]
) -> list[T | Exception]:
    """What comes of the items; one that nobody has foreseen to fail fails alone.

    Args:
        work: takes some of the items, in one transaction of its own; the outcomes in their order.
        items: done together, and where that fails by halves.

    Raises:
        JobsError: the work's, which is about all items.
    """
    try:
        return list(work(items))
    except JobsError:
        raise
    except Exception as error:
        if len(items) <= 1:
            return [error for _ in items]
        half = len(items) // 2
        return [*each_for_itself(work, items[:half]), *each_for_itself(work, items[half:])]
