"""Futures of solves: one that can be stopped while it runs, and why it has no result."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

ResultT = TypeVar("ResultT")


class SolveStoppedError(Exception):
    """Whoever asked for the solve has cancelled it, or the executor was shut down."""


class SolverLostError(Exception):
    """What solved ended in the middle of it; the text says how, as far as that is known."""


class SolverAwayError(SolverLostError):
    """What was to solve cannot be reached, or not be started."""


def no_thread_error(cause: RuntimeError) -> SolverAwayError:
    """What a solve fails with where the process has no more threads."""
    return SolverAwayError(f"no thread for it could be started ({cause})")


class StoppableFuture(Future[ResultT], Generic[ResultT]):
    """A future of which `cancel` also ends what runs.

    A solve that is cancelled before it runs ends as any future does; one that runs ends with
    SolveStoppedError, a moment later.

    Args:
        stop: ends what runs; called at most once for each `cancel`, from any thread.
    """

    def __init__(self, stop: Callable[[StoppableFuture[ResultT]], None]) -> None:
        super().__init__()
        self._stop = stop

    def cancel(self) -> bool:
        """Stop the solve; False: it is done already."""
        if super().cancel():
            return True
        if self.done():
            return False
        self._stop(self)
        return True
