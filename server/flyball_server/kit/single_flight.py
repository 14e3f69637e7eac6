"""Request coalescing: the first of several equal calls does the work for all."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable
from functools import partial
from typing import Any, Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Result = TypeVar("Result")


class SingleFlight(Generic[Key, Result]):
    """Shared work in flight by its key. Use it from one event loop at a time.

    A cancelled caller leaves the work running for the others.
    """

    def __init__(self) -> None:
        self._tasks: dict[Key, asyncio.Task[Result]] = {}

    async def run(self, key: Key, work: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
        """Return the result of the work in flight for this key, or start it.

        Raises:
            Exception: raised by the work, to all of its callers.
        """
        task = self._tasks.get(key)
        if task is None:
            # In the context of this call, so that log lines of the work name it.
            task = asyncio.create_task(work())
            self._tasks[key] = task
            task.add_done_callback(partial(self._end, key))
        return await asyncio.shield(task)

    def _end(self, key: Key, task: asyncio.Task[Result]) -> None:
        del self._tasks[key]
        if not task.cancelled():
            task.exception()  # all callers may be gone; marks the exception as retrieved
