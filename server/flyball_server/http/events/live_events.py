"""Live events of all jobs and of single ones: what is followed, and who follows it."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from typing import Any

from flyball_server.http.events.event_sources import (
    COMPARISON,
    HISTORY,
    JobNews,
    JobSource,
    OverviewSource,
)
from flyball_server.http.events.event_stream import EventSource, EventStream
from flyball_server.http.events.followed_jobs import ComparisonLook, HistoryLook, JobLook
from flyball_server.http.overviews import EVERYTHING, Overviews, RenderedOverview
from flyball_server.jobs.auth.access import Access
from flyball_server.jobs.services import JobServices
from flyball_server.jobs.waiters import JobWaiters
from flyball_server.views.history import HistoryMemory
from flyball_server.views.live_feed import Feed
from flyball_server.views.shared_reading import SharedReading

_JOBS_AT_ONCE, _SLOW_AT_ONCE = 2, 4
# Of all jobs no client is sent more than this, B/s: where there are thousands they come less often.
# They come every MOST_PAUSE_S all the same: where they are more than 30 MiB it is more.
OVERVIEW_BYTES_A_SECOND = 2**20
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
        waiters: wake what is followed; streams count among those that wait, those of no time apart.
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
        self._all: Feed[RenderedOverview] = Feed(
            waiters,
            lambda _: overviews.look,
            quiet_s=lambda overview: len(overview.whole) / OVERVIEW_BYTES_A_SECOND,
        )
        self._jobs: Feed[JobNews] = Feed(
            waiters, functools.partial(JobLook, services, reading), looks_at_once=_JOBS_AT_ONCE
        )
        # Each apart: its first look may take a minute.
        self._slow: dict[str, Feed[bytes]] = {
            name: Feed(waiters, look, looks_at_once=_SLOW_AT_ONCE)
            for name, look in (
                (HISTORY, functools.partial(HistoryLook, services, histories)),
                (COMPARISON, functools.partial(ComparisonLook, services)),
            )
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
            stack.enter_context(self._waiters.holding(at_once=wait_s == 0))
            changed = asyncio.Event()
            followed = self._all.follow(EVERYTHING, changed)
            stack.callback(followed.stop)
            await followed.first()
            source = OverviewSource(followed, changed, access)
            return _stream(source, stack, wait_s=wait_s)

    async def of_job(self, job_id: str, *, after_step: int, wait_s: float) -> EventStream:
        """Of one job.

        Args:
            job_id: its name.
            after_step: the client has the steps up to this one.
            wait_s: how long, s; 0: what there is now, all of it.

        Raises:
            UnknownJobError: no such job.
            StoreError: it cannot be read.
        """
        with ExitStack() as stack:
            stack.enter_context(self._waiters.holding(at_once=wait_s == 0))
            changed = asyncio.Event()
            job = self._jobs.follow(job_id, changed)
            stack.callback(job.stop)
            await job.first()
            slow = {name: feed.follow(job_id, changed) for name, feed in self._slow.items()}
            for followed in slow.values():
                stack.callback(followed.stop)

            async def all_looked_at() -> None:
                for followed in slow.values():
                    await followed.looked()

            source = JobSource(job=job, slow=slow, changed=changed, after_step=after_step)
            ready = all_looked_at if wait_s == 0 else None
            return _stream(source, stack, wait_s=wait_s, ready=ready)

    async def stop(self) -> None:
        """Return when nothing is looked at any more; to be called when the waiters are closed."""
        for feed in self._feeds:
            await feed.stop()


def _stream(
    source: EventSource,
    stack: ExitStack,
    *,
    wait_s: float,
    ready: Callable[[], Awaitable[None]] | None = None,
) -> EventStream:
    return EventStream(
        source, wait_s=wait_s, heartbeat_s=HEARTBEAT_S, closing=stack.pop_all(), ready=ready
    )
