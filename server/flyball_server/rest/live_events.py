"""Live events of all jobs and of single ones: what is followed, and who follows it."""

from __future__ import annotations

import asyncio
import functools
from contextlib import ExitStack
from typing import Any

from flyball_server.jobs.access import Access
from flyball_server.jobs.history import HistoryMemory
from flyball_server.jobs.live_feed import Feed
from flyball_server.jobs.services import JobServices
from flyball_server.jobs.waiters import JobWaiters
from flyball_server.metrics.shared_reading import SharedReading
from flyball_server.rest.event_sources import (
    COMPARISON,
    HISTORY,
    JobNews,
    JobSource,
    OverviewSource,
)
from flyball_server.rest.event_stream import EventSource, EventStream
from flyball_server.rest.job_looks import ComparisonLook, HistoryLook, JobLook
from flyball_server.rest.overviews import Overviews, RenderedOverview

_EVERYTHING = "/overview"  # no job has this name
_JOBS_AT_ONCE = 2
# After so much silence a client is told that the stream is still there, s.
HEARTBEAT_S = 10.0


class LiveEvents:
    """Streams of events; each thing that is followed is looked at once for all who follow it.

    Used on one event loop at a time.

    Args:
        services: the seams.
        reading: reads jobs at a glance.
        overviews: renders all of them.
        histories: remembers plan versions.
        waiters: wake what is followed; streams count among those that wait.
    """

    def __init__(
        self,
        services: JobServices,
        *,
        reading: SharedReading,
        overviews: Overviews,
        histories: HistoryMemory,
        waiters: JobWaiters,
    ) -> None:
        self._waiters = waiters
        self._all: Feed[RenderedOverview] = Feed(waiters, lambda _: overviews.look)
        self._jobs: Feed[JobNews] = Feed(
            waiters, functools.partial(JobLook, services, reading), looks_at_once=_JOBS_AT_ONCE
        )
        # Each apart: its first look may take a minute.
        self._slow: dict[str, Feed[bytes]] = {
            HISTORY: Feed(waiters, functools.partial(HistoryLook, services, histories)),
            COMPARISON: Feed(waiters, functools.partial(ComparisonLook, services)),
        }
        self._feeds: tuple[Feed[Any], ...] = (self._all, self._jobs, *self._slow.values())

    @property
    def num_followed(self) -> int:
        """Things that are looked at now: none where nobody follows."""
        return sum(feed.num_followed for feed in self._feeds)

    async def of_all(self, access: Access, *, wait_s: float) -> EventStream:
        """Of all jobs that are open to a caller.

        Raises:
            StoreError: they cannot be read.
        """
        with ExitStack() as stack:
            self._hold(stack, wait_s)
            changed = asyncio.Event()
            followed = self._all.follow(_EVERYTHING, changed)
            stack.callback(followed.stop)
            await followed.first()
            source = OverviewSource(followed, changed, access)
            return _stream(source, stack, wait_s)

    async def of_job(
        self, job_id: str, *, after_step: int, last_event_id: int | None, wait_s: float
    ) -> EventStream:
        """Of one job.

        Args:
            job_id: its name.
            after_step: the client has the steps up to this one.
            last_event_id: that a stream before this has ended with; it goes before `after_step`.
            wait_s: how long, s; 0: what there is now.

        Raises:
            UnknownJobError: no such job.
            StoreError: it cannot be read.
        """
        with ExitStack() as stack:
            self._hold(stack, wait_s)
            changed = asyncio.Event()
            job = self._jobs.follow(job_id, changed)
            stack.callback(job.stop)
            await job.first()
            slow = {name: feed.follow(job_id, changed) for name, feed in self._slow.items()}
            for followed in slow.values():
                stack.callback(followed.stop)
                if wait_s == 0:
                    await followed.first()
            if last_event_id is not None:
                after_step = _resumed(last_event_id, job.state)
            source = JobSource(job=job, slow=slow, changed=changed, after_step=after_step)
            return _stream(source, stack, wait_s)

    async def stop(self) -> None:
        """Return when nothing is looked at any more; to be called when the waiters are closed."""
        for feed in self._feeds:
            await feed.stop()

    def _hold(self, stack: ExitStack, wait_s: float) -> None:
        if wait_s > 0:
            stack.enter_context(self._waiters.holding())


def _stream(source: EventSource, stack: ExitStack, wait_s: float) -> EventStream:
    return EventStream(source, wait_s=wait_s, heartbeat_s=HEARTBEAT_S, closing=stack.pop_all())


def _resumed(last_event_id: int, news: JobNews | None) -> int:
    """After which step to go on; -1: the one that the client names is another run's."""
    steps = () if news is None else news.steps
    return last_event_id if steps and last_event_id <= steps[-1].step else -1
