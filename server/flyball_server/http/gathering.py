"""Calls that come at once are worked on at once: what gathers while one group is worked on is next.

A thousand ranks that post in the same moment cost a few transactions, not a thousand; a rank
that is alone waits for nobody.
"""

from __future__ import annotations

import asyncio
import functools
from collections import deque
from collections.abc import Callable, Sequence
from contextvars import Context
from typing import Generic, TypeVar

import anyio
import anyio.to_thread

from flyball_server.jobs.errors import JobsError
from flyball_server.jobs.outcomes import each_for_itself

Item = TypeVar("Item")
Outcome = TypeVar("Outcome")
_Waiting = deque[tuple[Item, "asyncio.Future[Outcome]"]]

MOST_AT_ONCE = 256
# Groups of different jobs that are worked on at once; each holds a connection of the store.
NUM_THREADS = 4


class Gathering(Generic[Item, Outcome]):
    """Has items of one key worked on in groups, one group after the other.

    What an item is worked on with was read after the item came. May be used from one event loop
    at a time.

    Args:
        work: takes a key and some of its items, on a thread; the outcomes in their order. A
            JobsError that it raises is raised for each of them; for another one it is given
            fewer of them, so that it is raised for those alone that lead to it.
        most_at_once: items of a group.
    """

    def __init__(
        self,
        work: Callable[[str, Sequence[Item]], Sequence[Outcome | JobsError]],
        *,
        most_at_once: int = MOST_AT_ONCE,
    ) -> None:
        self._work = work
        self._most_at_once = most_at_once
        self._waiting: dict[str, _Waiting[Item, Outcome]] = {}
        self._workers: set[asyncio.Task[None]] = set()
        self._limiter: anyio.CapacityLimiter | None = None

    async def ask(self, key: str, item: Item) -> Outcome:
        """The outcome of this item.

        Raises:
            JobsError: that is its outcome, or the group's.
            Exception: what its work has raised.
        """
        future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        waiting = self._waiting.get(key)
        if waiting is not None:
            waiting.append((item, future))
        else:
            self._waiting[key] = deque([(item, future)])
            # Not in the context of this call: the group is that of others too.
            worker = asyncio.create_task(self._work_off(key), context=Context())
            self._workers.add(worker)
            worker.add_done_callback(self._workers.discard)
        return await future

    async def _work_off(self, key: str) -> None:
        # Whatever has come in this turn of the loop belongs to the first group already.
        await asyncio.sleep(0)
        waiting = self._waiting[key]
        try:
            while waiting:
                group = [waiting.popleft() for _ in range(min(len(waiting), self._most_at_once))]
                await self._work_on(key, group)
        finally:
            del self._waiting[key]
            for _, future in waiting:  # only where this worker was cancelled
                future.cancel()

    async def _work_on(self, key: str, group: list[tuple[Item, asyncio.Future[Outcome]]]) -> None:
        items = [item for item, _ in group]
        if self._limiter is None:
            self._limiter = anyio.CapacityLimiter(NUM_THREADS)
        try:
            outcomes = await anyio.to_thread.run_sync(
                functools.partial(each_for_itself, functools.partial(self._work, key), items),
                limiter=self._limiter,
            )
        except Exception as error:
            for _, future in group:
                _raise_in(future, error)
        except BaseException:
            for _, future in group:
                future.cancel()
            raise
        else:
            for (_, future), outcome in zip(group, outcomes, strict=True):
                if isinstance(outcome, Exception):
                    _raise_in(future, outcome)
                elif not future.done():
                    future.set_result(outcome)


def _raise_in(future: asyncio.Future[Outcome], error: Exception) -> None:
    # Who has gone away has cancelled it.
    if not future.done():
        future.set_exception(error)
