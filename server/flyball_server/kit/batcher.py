"""Request batching: concurrent calls about one subject share one transaction."""

from __future__ import annotations

import asyncio
import functools
from collections import deque
from collections.abc import Callable, Sequence
from contextvars import Context
from typing import Generic, TypeVar

import anyio
import anyio.to_thread

Item = TypeVar("Item")
Outcome = TypeVar("Outcome")
Work = Callable[[Sequence[Item]], Sequence[Outcome | Exception]]
_Waiting = deque[tuple[Item, "asyncio.Future[Outcome]"]]

MAX_BATCH_SIZE = 256
# Batches of different jobs that run concurrently; each holds a connection of the store.
NUM_THREADS = 4


class Batcher(Generic[Item, Outcome]):
    """Run the items of one key in batches, one batch after the other.

    Items that arrive while a batch runs form the next batch: a thousand concurrent posts take a few
    transactions, and a single post does not wait. Use it from one event loop at a time.

    Args:
        work: takes a key and some of its items, on a thread, and returns their outcomes in
            order; one that is an exception is raised for its item. Any exception that it raises
            makes it run again with fewer items, so that only the item at fault fails.
        shared_error: exceptions of the work that are the whole batch's: raised for each item.
        max_batch_size: most items of a batch.
    """

    def __init__(
        self,
        work: Callable[[str, Sequence[Item]], Sequence[Outcome | Exception]],
        *,
        shared_error: type[Exception],
        max_batch_size: int = MAX_BATCH_SIZE,
    ) -> None:
        self._work = work
        self._shared_error = shared_error
        self._max_batch_size = max_batch_size
        self._waiting: dict[str, _Waiting[Item, Outcome]] = {}
        self._workers: set[asyncio.Task[None]] = set()
        self._limiter: anyio.CapacityLimiter | None = None

    async def submit(self, key: str, item: Item) -> Outcome:
        """Return the item's outcome.

        Raises:
            Exception: the outcome of the item, or of its whole batch.
        """
        future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        waiting = self._waiting.get(key)
        if waiting is not None:
            waiting.append((item, future))
        else:
            self._waiting[key] = deque([(item, future)])
            # A context of its own: the batch has items of other calls too.
            worker = asyncio.create_task(self._run_batches(key), context=Context())
            self._workers.add(worker)
            worker.add_done_callback(self._workers.discard)
        return await future

    async def _run_batches(self, key: str) -> None:
        # Items that arrive in this cycle of the event loop join the first batch.
        await asyncio.sleep(0)
        waiting = self._waiting[key]
        try:
            while waiting:
                size = min(len(waiting), self._max_batch_size)
                await self._run_batch(key, [waiting.popleft() for _ in range(size)])
        finally:
            del self._waiting[key]
            for _, future in waiting:  # only where this worker was cancelled
                future.cancel()

    async def _run_batch(self, key: str, batch: list[tuple[Item, asyncio.Future[Outcome]]]) -> None:
        items = [item for item, _ in batch]
        if self._limiter is None:
            self._limiter = anyio.CapacityLimiter(NUM_THREADS)
        try:
            outcomes = await anyio.to_thread.run_sync(
                self._run_isolated,
                functools.partial(self._work, key),
                items,
                limiter=self._limiter,
            )
        except Exception as error:
            for _, future in batch:
                _set_exception(future, error)
        except BaseException:
            for _, future in batch:
                future.cancel()
            raise
        else:
            for (_, future), outcome in zip(batch, outcomes, strict=True):
                if isinstance(outcome, Exception):
                    _set_exception(future, outcome)
                elif not future.done():
                    future.set_result(outcome)

    def _run_isolated(
        self, work: Work[Item, Outcome], items: Sequence[Item]
    ) -> list[Outcome | Exception]:
        """Run the work on all items; after a failure on halves, so that only the cause fails."""
        try:
            return list(work(items))
        except self._shared_error:
            raise
        except Exception as error:
            if len(items) <= 1:
                return [error for _ in items]
            half = len(items) // 2
            return [
                *self._run_isolated(work, items[:half]),
                *self._run_isolated(work, items[half:]),
            ]


def _set_exception(future: asyncio.Future[Outcome], error: Exception) -> None:
    # A caller that disconnected has cancelled it.
    if not future.done():
        future.set_exception(error)
