"""Readiness: checks in bounded time, and a solver that is asked without waiting for solves."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any

import pytest

from flyball_server.http.edge_errors import NotReadyError
from flyball_server.http.readiness import Readiness, SolvingCheck


class Held(Executor):
    """Solves nothing by itself: tests answer its futures."""

    def __init__(self) -> None:
        self.futures: list[Future[Any]] = []

    def submit(self, fn: Callable[..., Any], /, *args: object, **kwargs: object) -> Future[Any]:
        del fn, args, kwargs
        self.futures.append(Future())
        return self.futures[-1]


@pytest.mark.parametrize(("period_s", "is_answered"), [(0.0, False), (3600.0, True)])
def test_nothing_more_is_asked_before_an_answer_and_for_a_while_after_it(
    period_s: float, is_answered: bool
) -> None:
    executor = Held()
    check = SolvingCheck(executor, period_s=period_s)
    check()
    if is_answered:
        executor.futures[0].set_result(False)
    check()
    check()
    assert len(executor.futures) == 1


def test_a_bad_answer_makes_it_unusable_until_a_good_one() -> None:
    executor = Held()
    check = SolvingCheck(executor)
    check()
    executor.futures[0].set_exception(OSError("no process can be started"))
    for _ in range(2):
        with pytest.raises(OSError, match="no process"):
            check()
    assert len(executor.futures) == 2
    executor.futures[1].set_result(False)
    check()


def test_an_executor_that_takes_nothing_is_unusable() -> None:
    class Down(Held):
        def submit(self, fn: Callable[..., Any], /, *args: object, **kwargs: object) -> Future[Any]:
            raise RuntimeError("shut down")

    with pytest.raises(RuntimeError, match="shut down"):
        SolvingCheck(Down())()


def test_a_check_that_hangs_takes_one_thread_however_many_calls_arrive() -> None:
    released, threads = threading.Event(), list[str]()

    def hang() -> None:
        threads.append(threading.current_thread().name)
        released.wait(60)

    readiness = Readiness({"the job store": hang}, within_s=0.05)
    try:
        for _ in range(2):
            with pytest.raises(NotReadyError, match=r"store does not answer within 0\.05 s"):
                asyncio.run(readiness.require())
        assert threads == ["flyball-ready"]
    finally:
        released.set()
