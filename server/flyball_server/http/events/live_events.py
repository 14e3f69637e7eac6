"""Live events of all jobs and of single jobs."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from anyio import to_thread

from flyball_server.http.events.event_stream import EventSource, EventStream, event
from flyball_server.http.overviews import EVERYTHING, Overviews, RenderedOverview
from flyball_server.http.problem_handlers import problem_of
from flyball_server.jobs.auth.access import Access
from flyball_server.jobs.bounds import MAX_COUNT
from flyball_server.jobs.errors import JobsError
from flyball_server.jobs.findings.announcements import current_stragglers
from flyball_server.jobs.registry import inspection
from flyball_server.jobs.services import JobServices
from flyball_server.jobs.timetables import timetable_status
from flyball_server.jobs.waiters import JobWaiters
from flyball_server.kit.checked_documents import adapter_of
from flyball_server.views.history import HistoryMemory, plan_summaries
from flyball_server.views.job_figures import SharedReading
from flyball_server.views.live_feed import Feed, Following
from flyball_server.views.stage_steps import StepWindow, WindowStep, older_steps, settled_step
from flyball_wire.closed_loop import ComparisonStatus, Straggler, TimetableStatus
from flyball_wire.messages import PlanVersion, Problem
from flyball_wire.online_profiling import ProfilingState, ProfilingStatus
from flyball_wire.read_models import JobOverview, PlanSummary, StagesOfStep

OVERVIEW, STEPS = "overview", "steps"
NOTES, TIMETABLE, HISTORY, STRAGGLERS = "notes", "timetable", "history", "stragglers"
PROFILING, COMPARISON = "profiling", "comparison"
_ORDER = (OVERVIEW, NOTES, TIMETABLE, HISTORY, STRAGGLERS, PROFILING, COMPARISON)
_LOG = logging.getLogger(__name__)
_GONE = event("gone", b"{}")
_FAULT = Problem(detail="The planner failed to read this; see its log")


@dataclass(frozen=True)
class JobEvents:
    """Events of a job's state.

    Attributes:
        events: rendered events by name.
        steps: newest steps, rising.
    """

    events: dict[str, bytes]
    steps: tuple[WindowStep, ...] = ()


@dataclass(kw_only=True)
class _Troubles:
    """Errors that were sent to a client, each once."""

    sent: str | None = None

    def news(self, *followed: Following[Any]) -> bytes | None:
        """Return an event of the current error; empty: it was sent; None: there is no error."""
        error = next(
            (following.error for following in followed if following.error is not None),
            None,
        )
        known, self.sent = self.sent, None if error is None else str(error)
        if error is None:
            return None
        if self.sent == known:
            return b""
        problem = problem_of(error) if isinstance(error, JobsError) else _FAULT
        return event("trouble", adapter_of(Problem).dump_json(problem))


class OverviewSource:
    """Events of all jobs that a caller may read.

    Args:
        followed: overview of all jobs.
        changed: event that `followed` sets.
        access: jobs that the caller may read.
    """

    def __init__(
        self, followed: Following[RenderedOverview], changed: asyncio.Event, access: Access
    ) -> None:
        self.changed = changed
        self.over = followed.over
        self._followed = followed
        self._access = access
        self._sent: bytes | None = None
        self._troubles = _Troubles()

    def news(self) -> bytes:
        """Return the overview if it has changed."""
        trouble = self._troubles.news(self._followed)
        if trouble is not None:
            self._sent = None  # sent again once the trouble is over
            return trouble
        state = self._followed.state
        overview = None if state is None else state.permitted(self._access)
        if overview is None or overview == self._sent:
            return b""
        self._sent = overview
        return event(OVERVIEW, overview)


@dataclass(kw_only=True)
class _SentSteps:
    """Position of a client in the stream of steps.

    Attributes:
        after_step: last step that the client has.
        revision: newest revision that was sent.
    """

    after_step: int
    revision: int = 0

    def news(self, steps: tuple[WindowStep, ...], older: tuple[WindowStep, ...] = ()) -> bytes:
        """Return an event of the new and changed steps; the first event begins with the older."""
        if self.revision == 0:
            first = steps[0].step if steps else MAX_COUNT
            begin = [step for step in older if step.step < first]
            new = [each for each in (*begin, *steps) if each.step > self.after_step]
        else:
            new = [each for each in steps if each.revision > self.revision]
        self.revision = max((each.revision for each in steps), default=self.revision)
        if not new:
            return b""
        settled = settled_step(steps)
        data = b"[" + b",".join(each.rendered for each in new) + b"]"
        return event(STEPS, data, event_id=None if settled < 0 else settled)


@dataclass(kw_only=True)
class JobSource:
    """Events of one job.

    Attributes:
        job: state that is read quickly.
        history: event of its plan versions, which may take long to read.
        changed: event that both set.
        after_step: last step that the client has.
        older: reading of the steps before the newest, which are sent with the first of these; None:
            the client wants none.
    """

    job: Following[JobEvents]
    history: Following[bytes]
    changed: asyncio.Event
    after_step: int
    older: asyncio.Task[tuple[WindowStep, ...]] | None = None
    _sent: dict[str, bytes] = field(default_factory=dict)
    _troubles: _Troubles = field(default_factory=_Troubles)
    _is_gone: bool = False

    def __post_init__(self) -> None:
        self._steps = _SentSteps(after_step=self.after_step)

    @property
    def over(self) -> asyncio.Event:
        """Event that is set when the job will not change any more."""
        return self.job.over

    def news(self) -> bytes:
        """Return events of all changes; of a deleted job `gone` alone."""
        followed: tuple[Following[Any], ...] = (self.job, self.history)
        if any(following.is_gone for following in followed):
            is_sent, self._is_gone = self._is_gone, True
            return b"" if is_sent else _GONE
        was_troubled = self._troubles.sent is not None
        trouble = self._troubles.news(*followed)
        if trouble is None and was_troubled:
            self._sent.pop(OVERVIEW, None)  # sent again: the trouble is over
        changes = b"" if self.job.error is not None else b"".join(self._changes())
        return (trouble or b"") + changes

    def _changes(self) -> Iterator[bytes]:
        state = self.job.state
        if state is None:
            return
        history = self.history.state
        events = state.events if history is None else {**state.events, HISTORY: history}
        for name in _ORDER:
            current = events.get(name)
            if current is not None and current != self._sent.get(name):
                self._sent[name] = current
                yield current
        if self.older is None:
            yield self._steps.news(state.steps)
        elif self.older.done():
            yield self._steps.news(state.steps, self.older.result())


class JobEventsReader:
    """Reader of the state of a job that is read quickly; one call at a time.

    Raises:
        UnknownJobError: there is no such job.
        StoreError: the store cannot be read.
    """

    def __init__(self, services: JobServices, reading: SharedReading, job_id: str) -> None:
        self._services = services
        self._reading = reading
        self._job_id = job_id
        self._window = StepWindow(adapter_of(StagesOfStep).dump_json)
        self._is_profiled = False

    def __call__(self) -> JobEvents:
        """Return the job's current events, all of one moment."""
        services, job_id = self._services, self._job_id
        with self._reading.snapshot(job_id) as now:
            job, loop_state = now.job, now.reader.find_loop_state(job_id)
            notes = inspection.notes(services, inspection.summarise(now.reader, job))
            profiling = inspection.profiling_status(now.reader, job)
            steps = self._window.read(now.reader, job)
        timetable = timetable_status(services, job, loop_state)
        stragglers = current_stragglers(loop_state, services.now().timestamp())
        events = {
            OVERVIEW: event(OVERVIEW, adapter_of(JobOverview).dump_json(now.overview)),
            NOTES: event(NOTES, adapter_of(tuple[str, ...]).dump_json(notes)),
            TIMETABLE: event(TIMETABLE, adapter_of(TimetableStatus).dump_json(timetable)),
            STRAGGLERS: event(STRAGGLERS, adapter_of(tuple[Straggler, ...]).dump_json(stragglers)),
            COMPARISON: event(COMPARISON, adapter_of(ComparisonStatus).dump_json(now.comparison)),
        }
        # State `off` is sent only after another state.
        self._is_profiled = self._is_profiled or profiling.state != ProfilingState.OFF
        if self._is_profiled:
            view = replace(profiling, points=())
            events[PROFILING] = event(PROFILING, adapter_of(ProfilingStatus).dump_json(view))
        return JobEvents(events, steps)


class HistoryReader:
    """Reader of a job's plan versions; they are rendered again after a change."""

    def __init__(self, services: JobServices, memory: HistoryMemory, job_id: str) -> None:
        self._services = services
        self._memory = memory
        self._job_id = job_id
        self._known: tuple[datetime, tuple[PlanVersion, ...]] | None = None
        self._event = b""

    def __call__(self) -> bytes:
        """Return the history as an event."""
        with self._services.store.reading() as reader:
            job = reader.require_job(self._job_id)
            current = (job.created_at, reader.list_versions(self._job_id))
        if current != self._known:
            found = plan_summaries(self._services, self._job_id, self._memory)
            self._event = event(HISTORY, adapter_of(tuple[PlanSummary, ...]).dump_json(found))
            self._known = current
        return self._event


_JOBS_AT_ONCE, _HISTORIES_AT_ONCE = 2, 4
# Limit on the rate of overviews of all jobs to one client, B/s: of thousands of jobs they are sent
# less often, but at least every MOST_PAUSE_S.
OVERVIEW_BYTES_A_SECOND = 2**20
# Longest silence before a comment line is sent, s.
HEARTBEAT_S = 10.0


class LiveEvents:
    """Streams of events; each state is read once for all clients that follow it.

    Used on one event loop at a time.

    Args:
        services: services of the use cases.
        reading: shared reading of jobs' figures.
        overviews: renderer of the overview.
        histories: cache of plan summaries.
        waiters: source of notifications; streams count as waiting calls.
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
        self._services = services
        self._waiters = waiters
        self._all: Feed[RenderedOverview] = Feed(
            waiters,
            lambda _: overviews.read,
            quiet_s=lambda overview: len(overview.whole) / OVERVIEW_BYTES_A_SECOND,
        )
        self._jobs: Feed[JobEvents] = Feed(
            waiters,
            functools.partial(JobEventsReader, services, reading),
            num_concurrent_reads=_JOBS_AT_ONCE,
        )
        # A feed of its own: the first reading may take a minute.
        self._histories: Feed[bytes] = Feed(
            waiters,
            functools.partial(HistoryReader, services, histories),
            num_concurrent_reads=_HISTORIES_AT_ONCE,
        )
        self._feeds: tuple[Feed[Any], ...] = (self._all, self._jobs, self._histories)

    @property
    def num_followed(self) -> int:
        """Number of states that are read; 0 without clients."""
        return sum(feed.num_followed for feed in self._feeds)

    async def of_all(self, access: Access, *, wait_s: float) -> EventStream:
        """Return a stream of all jobs that a caller may read.

        Raises:
            StoreError: the store cannot be read.
        """
        with ExitStack() as stack:
            stack.enter_context(self._waiters.holding(at_once=wait_s == 0))
            changed = asyncio.Event()
            followed = self._all.follow(EVERYTHING, changed)
            stack.callback(followed.stop)
            await followed.first()
            source = OverviewSource(followed, changed, access)
            return _stream(source, stack, wait_s=wait_s)

    async def of_job(
        self, job_id: str, *, after_step: int, num_steps: int, wait_s: float
    ) -> EventStream:
        """Return a stream of one job.

        Args:
            job_id: name of the job.
            after_step: last step that the client has.
            num_steps: number of steps that the stream begins with; 0: the kept ones.
            wait_s: duration, s; 0: end after the current state.

        Raises:
            UnknownJobError: there is no such job.
            StoreError: the store cannot be read.
        """
        with ExitStack() as stack:
            stack.enter_context(self._waiters.holding(at_once=wait_s == 0))
            changed = asyncio.Event()
            job = self._jobs.follow(job_id, changed)
            stack.callback(job.stop)
            await job.first()
            history = self._histories.follow(job_id, changed)
            stack.callback(history.stop)

            older = None
            if num_steps > 0:
                older = asyncio.create_task(self._read_older(job_id, after_step, num_steps))
                older.add_done_callback(lambda _: changed.set())
                stack.callback(older.cancel)

            async def all_read() -> None:
                await history.wait_for_read()
                if older is not None:
                    await older

            source = JobSource(
                job=job, history=history, changed=changed, after_step=after_step, older=older
            )
            ready = all_read if wait_s == 0 else None
            return _stream(source, stack, wait_s=wait_s, ready=ready)

    async def _read_older(
        self, job_id: str, after_step: int, num_steps: int
    ) -> tuple[WindowStep, ...]:
        """Return the newest steps; none if they cannot be read."""
        try:
            return await to_thread.run_sync(
                functools.partial(
                    older_steps,
                    self._services,
                    job_id,
                    adapter_of(StagesOfStep).dump_json,
                    after_step=after_step,
                    num_steps=num_steps,
                )
            )
        except JobsError as error:
            _LOG.warning("older steps of %s: %s", job_id, error)
            return ()

    async def stop(self) -> None:
        """Stop all reading; called after the waiters are closed."""
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
