"""Where a solve can be ended early: it asks now and then, and changes no result by that.

Whoever starts a solve says within which block, and by what: a thread cannot be ended from outside.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar

Check = Callable[[], None]
"""Called often, so it must be quick; what it raises ends the solve."""


def _goes_on() -> None:
    """Nobody has said by what this solve could be ended."""


_CHECK: ContextVar[Check] = ContextVar("flyball_cancellation", default=_goes_on)


@contextmanager
def cancelled_by(check: Check) -> Generator[None]:
    """Let what is solved in this block end with what the check raises, where it raises."""
    token = _CHECK.set(check)
    try:
        yield
    finally:
        _CHECK.reset(token)


def cancellation_point() -> None:
    """Of a solver's loop, once each tenth of a second or more often.

    Raises:
        Exception: whatever the check of `cancelled_by` raises; nobody is to catch it.
    """
    _CHECK.get()()
