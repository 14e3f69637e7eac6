"""Solving in the thread that asks, one after the other for each caller."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
ResultT = TypeVar("ResultT")


class ThreadOfTheCaller(Executor):
    """Runs what is submitted at once, so that the future is done when `submit` returns.

    It starts no process; a solve cannot be stopped, and takes the time of all that the planner
    does meanwhile.
    """

    def submit(
        self, fn: Callable[P, ResultT], /, *args: P.args, **kwargs: P.kwargs
    ) -> Future[ResultT]:
        """A future that has the function's result, or its exception."""
        future: Future[ResultT] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future
