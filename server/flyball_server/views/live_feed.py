"""Live feeds: each followed state is read repeatedly, once for all of its clients.

The feed sends no data itself: followers are notified of a change and read the current state then.
A slow follower misses the states in between, and costs no memory.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextvars import Context
from typing import Generic, TypeVar

import anyio
import anyio.to_thread

from flyball_server.jobs.errors import JobsError, StoreError, UnknownError
from flyball_server.jobs.waiters import JobWaiters

_LOG = logging.getLogger(__name__)

State = TypeVar("State")

# Polling interval without notifications, s.
PERIOD_S = 1.0
# Minimum time between two reads, however often the job is notified, s.
LEAST_PAUSE_S = 0.1
# Pause as a multiple of the last reading's duration: reading takes at most a fifth of the time.
_PAUSES_PER_READ = 4
# Limit of that pause, s: a state that takes more than 7.5 s is read for more of the time.
MOST_PAUSE_S = 30.0
_STOP_TIMEOUT_S = 5.0


class _Topic(Generic[State]):
    """Topic with its followers and the state of the last read."""

    def __init__(self, read: Callable[[], State]) -> None:
        self.read = read
        self.followers: set[asyncio.Event] = set()
        self.state: State | None = None
        self.error: Exception | None = None
        self.woken = asyncio.Event()
        self.left = asyncio.Event()
        self.over = asyncio.Event()

    def tell(self) -> None:
        """Notify all followers to read the current state."""
        for changed in self.followers:
            changed.set()

    def end(self) -> None:
        """End the reading."""
        self.over.set()
        self.left.set()
        self.woken.set()
        self.tell()


class Following(Generic[State]):
    """One follower of a topic; used on the event loop.

    Args:
        topic: followed topic.
        changed: event that is set on a possible change.
    """

    def __init__(self, topic: _Topic[State], changed: asyncio.Event) -> None:
        self._topic = topic
        self._changed = changed
        topic.followers.add(changed)
        topic.left.clear()

    @property
    def state(self) -> State | None:
        """Return the state of the last read; None: not read yet."""
        return self._topic.state

    @property
    def error(self) -> Exception | None:
        """Error of the last read; None: it succeeded."""
        return self._topic.error

    @property
    def is_gone(self) -> bool:
        """True if the followed job no longer exists."""
        return isinstance(self._topic.error, UnknownError)

    @property
    def over(self) -> asyncio.Event:
        """Event set when nothing new will follow: the topic is gone, or the planner shuts down."""
        return self._topic.over

    async def wait_for_read(self) -> None:
        """Wait until the state was read, a read has failed, or no read will follow."""
        while self.state is None and self.error is None and not self.over.is_set():
            self._changed.clear()
            await self._changed.wait()

    async def first(self) -> None:
        """Wait until the state was read, or no read will follow.

        Raises:
            JobsError: reading fails now; UnknownError: the topic does not exist.
            Exception: unexpected error of a read.
        """
        await self.wait_for_read()
        if self.error is not None:
            # One object is shared by all followers: each raise would lengthen its traceback.
            raise self.error.with_traceback(None)

    def stop(self) -> None:
        """Stop following; a topic without followers is not read."""
        self._topic.followers.discard(self._changed)
        if not self._topic.followers:
            self._topic.left.set()
            self._topic.woken.set()


class Feed(Generic[State]):
    """Followed topics of one kind; used on one event loop at a time.

    Args:
        waiters: source of notifications by key, and of the shutdown.
        reader_of: factory of a topic's read function by key, which is called on a thread, one call
            at a time. UnknownError means that the topic does not exist; other errors are passed
            on, and the read is repeated. Its result is compared with the previous one.
        num_concurrent_reads: number of concurrent reads of different topics.
        quiet_s: minimum time between this state and the next, s, at most MOST_PAUSE_S.
    """

    def __init__(
        self,
        waiters: JobWaiters,
        reader_of: Callable[[str], Callable[[], State]],
        *,
        num_concurrent_reads: int = 1,
        quiet_s: Callable[[State], float] = lambda _: 0.0,
    ) -> None:
        self._waiters = waiters
        self._reader_of = reader_of
        self._num_concurrent_reads = num_concurrent_reads
        self._quiet_s = quiet_s
        self._limiter: anyio.CapacityLimiter | None = None
        self._topics: dict[str, _Topic[State]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def num_followed(self) -> int:
        """Number of topics that are read."""
        return len(self._topics)

    def follow(self, key: str, changed: asyncio.Event) -> Following[State]:
        """Follow a topic from now on, until `stop`.

        Args:
            key: key of the topic.
            changed: event that is set on a possible change; may be shared by several topics of one
                follower.
        """
        topic = self._topics.get(key)
        if topic is None or topic.over.is_set():
            topic = self._topics[key] = _Topic(self._reader_of(key))
            # Not in the context of this call: the read serves others too.
            task = asyncio.create_task(self._poll(key, topic), context=Context())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return Following(topic, changed)

    async def stop(self) -> None:
        """Wait until nothing is read any more; to be called when the waiters are closed."""
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=_STOP_TIMEOUT_S)
            for task in late:
                task.cancel()

    async def _poll(self, key: str, topic: _Topic[State]) -> None:
        loop = asyncio.get_running_loop()

        def wake() -> None:
            if self._waiters.is_closed:
                topic.end()
            topic.woken.set()

        try:
            with self._waiters.watching(key, wake):
                while topic.followers and not topic.over.is_set() and not self._waiters.is_closed:
                    topic.woken.clear()
                    began_s = loop.time()
                    await self._read(key, topic)
                    await self._pause(topic, loop.time() - began_s)
        finally:
            if self._topics.get(key) is topic:
                del self._topics[key]
            topic.end()

    async def _read(self, key: str, topic: _Topic[State]) -> None:
        if self._limiter is None:
            self._limiter = anyio.CapacityLimiter(self._num_concurrent_reads)
        state, error = topic.state, None
        try:
            state = await anyio.to_thread.run_sync(topic.read, limiter=self._limiter)
        except Exception as failure:
            error = failure
        if state == topic.state and str(error) == str(topic.error):
            return
        _log_trouble(key, error)
        topic.state, topic.error = state, error
        if isinstance(error, UnknownError):
            topic.end()
        topic.tell()

    async def _pause(self, topic: _Topic[State], read_s: float) -> None:
        quiet_s = 0.0 if topic.state is None else self._quiet_s(topic.state)
        least_s = min(max(LEAST_PAUSE_S, _PAUSES_PER_READ * read_s, quiet_s), MOST_PAUSE_S)
        await _wait(topic.left, least_s)
        await _wait(topic.woken, PERIOD_S - least_s)


async def _wait(event: asyncio.Event, longest_s: float) -> None:
    if longest_s <= 0:
        return
    try:
        async with asyncio.timeout(longest_s):
            await event.wait()
    except TimeoutError:
        return


def _log_trouble(key: str, error: Exception | None) -> None:
    if error is None or isinstance(error, UnknownError):
        return
    if isinstance(error, StoreError):
        _LOG.warning("live events of %s: %s", key, error)
    elif not isinstance(error, JobsError):
        _LOG.error("live events of %s failed", key, exc_info=error)
