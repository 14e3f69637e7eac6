"""Readiness: checks in bounded time, and a solver that is asked without waiting for solves."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import Any

import pytest

from flyball_server.http.edge_errors import NotReadyError
from flyball_server.http.readiness import Readiness, SolvingCheck, WritingCheck


class Held(Executor):
    """Solves nothing by itself: tests answer its futures."""

    def __init__(self) -> None:
        self.futures: list[Future[Any]] = []

    def submit(self, fn: Callable[..., Any], /, *args: object, **kwargs: object) -> Future[Any]:
        del fn, args, kwargs
        self.futures.append(Future())
        return self.futures[-1]


class Written:
    """A store that counts the writes that try it."""

    def __init__(self) -> None:
        self.found_full_s = float("-inf")
        self.num_tried = 0
        self.problem: Exception | None = None

    def check_writing(self) -> None:
        self.num_tried += 1
        if self.problem is not None:
            raise self.problem


def executor_shut_down() -> Executor:
    executor = ThreadPoolExecutor()
    executor.shutdown()
    return executor


def test_a_write_is_tried_now_and_then_however_often_it_is_asked_for() -> None:
    store, now_s = Written(), [0.0]
    check = WritingCheck(store, period_s=5.0, clock=lambda: now_s[0])
    for _ in range(100):
        check()
    assert store.num_tried == 1
    now_s[0], store.problem = 5.0, OSError("no space")
    for _ in range(100):
        with pytest.raises(OSError, match="no space"):
            check()
    assert store.num_tried == 2
    now_s[0], store.problem = 10.0, None
    check()


def test_a_store_in_which_a_call_found_no_room_is_full_for_a_while() -> None:
    store, now_s = Written(), [100.0]
    check = WritingCheck(store, full_s=10.0, clock=lambda: now_s[0])
    check()
    store.found_full_s = 101.0
    now_s[0] = 110.9
    with pytest.raises(RuntimeError, match="was full"):
        check()
    now_s[0] = 111.0
    check()


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
    with pytest.raises(RuntimeError, match="after shutdown"):
        SolvingCheck(executor_shut_down())()


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


def test_calls_while_it_is_not_ready_are_one_line_of_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    problems: list[Exception] = [OSError("no space")]

    def check() -> None:
        if problems:
            raise problems[0]

    async def call(times: int) -> None:
        for _ in range(times):
            await readiness.require()

    readiness = Readiness({"the job store": check})
    caplog.set_level("INFO")
    for _ in range(10):
        with pytest.raises(NotReadyError):
            asyncio.run(call(1))
    problems.clear()
    asyncio.run(call(10))
    assert caplog.messages == ["not ready: the job store: no space", "ready again"]
