"""Points at which a solve can be cancelled; they change no result.

The caller of a solve sets the check for a block: a thread cannot be ended from outside.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar

Check = Callable[[], None]
"""Called often, so it must be quick; what it raises ends the solve."""


def _goes_on() -> None:
    """Default check: the solve goes on."""


_CHECK: ContextVar[Check] = ContextVar("flyball_cancellation", default=_goes_on)


@contextmanager
def cancelled_by(check: Check) -> Generator[None]:
    """Cancel solves in this block with the exception that the check raises."""
    token = _CHECK.set(check)
    try:
        yield
    finally:
        _CHECK.reset(token)


def cancellation_point() -> None:
    """Raise where the solve was cancelled: for loops, some ten times a second.

    There is one before each of several orders is built, before and after a network is, before
    each relaxed problem, in each step of the interior point, and after each stretch of pivots and
    of annealing moves. Not interruptible: building pipelines and networks (half a second for tens
    of thousands of instructions), and HiGHS, which runs only where another solver fails.

    Raises:
        Exception: as raised by the check of `cancelled_by`; not to be caught within the solve.
    """
    _CHECK.get()()
