"""Process that an object belongs to: the one that made it, not a forked child with a copy of it."""

from __future__ import annotations

import atexit
import os
import sys
import weakref
from collections.abc import Callable
from functools import cache

from flyball_client.governor.process_watch import ProcessIdentity


class OwnProcess:
    """The process that made an object, by its number and start time.

    Args:
        forget: Bound method that is called in each forked child, where it makes the object's
            copy harmless; held weakly.
    """

    def __init__(self, forget: Callable[[], None]) -> None:
        self._pid = os.getpid()
        self._start_ticks = _start_ticks()
        self._forget = weakref.WeakMethod(forget)
        _known().add(self)

    def is_current(self) -> bool:
        """Return whether this is that process; also False after a fork that Python did not make."""
        if os.getpid() != self._pid:
            return False
        # In another PID namespace a child may have the same number.
        start_ticks = _start_ticks()
        return start_ticks is None or self._start_ticks in {None, start_ticks}

    def forget(self) -> None:
        """Forget the object in a forked child."""
        forget = self._forget()
        if forget is not None:
            forget()


@cache
def _known() -> weakref.WeakSet[OwnProcess]:
    """Return all of this process; the first call registers what is done after a fork."""
    known: weakref.WeakSet[OwnProcess] = weakref.WeakSet()

    def forget_all() -> None:
        for own in tuple(known):
            own.forget()

    os.register_at_fork(after_in_child=forget_all)
    return known


def _start_ticks() -> int | None:
    """Return the start time of this process; None: /proc cannot be read."""
    try:
        return ProcessIdentity.own().start_ticks
    except OSError:
        return None


def call_at_normal_end(callback: Callable[[], None]) -> Callable[[], None]:
    """Have a function called when the interpreter ends normally; return what cancels it.

    Normally: the script ends, by an exception or `sys.exit` too; not after `os._exit` or a signal.
    """
    atexit.register(callback)
    util = sys.modules.get("multiprocessing.util")
    if util is None:
        return lambda: atexit.unregister(callback)
    # A forked process of multiprocessing runs its finalizers, and no function of atexit.
    finalizer = util.Finalize(None, callback, exitpriority=0)

    def cancel() -> None:
        atexit.unregister(callback)
        finalizer.cancel()

    return cancel
