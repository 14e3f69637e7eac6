"""Live events of all jobs and of single ones: what is followed, and who follows it."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from flyball_server.http.events.event_stream import EventSource, EventStream, event
from flyball_server.http.mapping.jobs import profiling_view, rendered, straggler_view
from flyball_server.http.mapping.views import (
    comparison_view,
    job_overview,
    rendered_history,
    stages_of_step,
)
from flyball_server.http.overviews import EVERYTHING, Overviews, RenderedOverview
from flyball_server.http.problem_handlers import problem_of
from flyball_server.jobs.auth.access import Access
from flyball_server.jobs.errors import JobsError
from flyball_server.jobs.loop_state import Comparison
from flyball_server.jobs.measurements.step_reading import PairedSteps
from flyball_server.jobs.records import ActivationRecord, JobRecord
from flyball_server.jobs.registry.inspection import require_job
from flyball_server.jobs.savings.comparisons import ComparisonProgress, progress_of
from flyball_server.jobs.services import JobServices
from flyball_server.jobs.store.contract import JobReader
from flyball_server.jobs.stragglers.reports import list_stragglers
from flyball_server.jobs.waiters import JobWaiters
from flyball_server.views.history import HistoryMemory, plan_summaries
from flyball_server.views.job_figures import SharedReading
from flyball_server.views.live_feed import Feed, Following
from flyball_server.views.profiling import get_profiling
from flyball_server.views.stage_steps import StagesSummary, StepWindow, WindowStep, settled_step
from flyball_wire.closed_loop import ComparisonView, ProfilingView, StragglerView
from flyball_wire.messages import Problem
from flyball_wire.read_models import JobOverview, StagesOfStep

OVERVIEW, STEPS = "overview", "steps"
HISTORY, STRAGGLERS, PROFILING, COMPARISON = "history", "stragglers", "profiling", "comparison"
_ORDER = (OVERVIEW, HISTORY, STRAGGLERS, PROFILING, COMPARISON)
_GONE = event("gone", b"{}")
_FAILED = Problem(detail="The planner has failed at looking; its log says where")


@dataclass(frozen=True)
class JobNews:
    """A job as it was seen last.

    Attributes:
        events: by name, each as it is sent.
        steps: the newest, rising.
    """

    events: dict[str, bytes]
    steps: tuple[WindowStep, ...] = ()


@dataclass(kw_only=True)
class _Troubles:
    """Callback for readings that fail."""

    told: str | None = None

    def news(self, *followed: Following[Any]) -> bytes | None:
        """An event of it; empty: it is told already; None: there is no trouble."""
        errors = (each.error for each in followed)
        error = next((error for error in errors if error is not None), None)
        if error is None:
            self.told = None
            return None
        if self.told == str(error):
            return b""
        self.told = str(error)
        problem = problem_of(error) if isinstance(error, JobsError) else _FAILED
        return event("trouble", rendered(Problem, problem))


class OverviewSource:
    """Tells of all jobs that are open to a caller.

    Args:
        followed: all jobs.
        changed: that they are followed with.
        access: the caller's.
    """

    def __init__(
        self, followed: Following[RenderedOverview], changed: asyncio.Event, access: Access
    ) -> None:
        self.changed = changed
        self.over = followed.over
        self._followed = followed
        self._access = access
        self._told: bytes | None = None
        self._troubles = _Troubles()

    def news(self) -> bytes:
        """The overview, if it has changed."""
        trouble = self._troubles.news(self._followed)
        if trouble is not None:
            self._told = None  # to say that it is over
            return trouble
        state = self._followed.state
        seen = None if state is None else state.seen_by(self._access)
        if seen is None or seen == self._told:
            return b""
        self._told = seen
        return event(OVERVIEW, seen)


@dataclass(kw_only=True)
class _StepsTold:
    """Position of a client in the stream of steps.

    Attributes:
        after_step: it has these already.
        revision: of the newest change that it was told of.
    """

    after_step: int
    revision: int = 0

    def news(self, steps: tuple[WindowStep, ...]) -> bytes:
        """An event of those that are new or have changed."""
        if self.revision == 0:
            new = [each for each in steps if each.step > self.after_step]
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
    """Tells of one job.

    Attributes:
        job: what is quickly seen of it.
        slow: what may take long to be seen, each an event as it is sent.
        changed: that all of it is followed with.
        after_step: the client has the steps up to this one.
    """

    job: Following[JobNews]
    slow: dict[str, Following[bytes]]
    changed: asyncio.Event
    after_step: int
    _sent: dict[str, bytes] = field(default_factory=dict)
    _troubles: _Troubles = field(default_factory=_Troubles)
    _is_gone: bool = False

    def __post_init__(self) -> None:
        self._steps = _StepsTold(after_step=self.after_step)

    @property
    def over(self) -> asyncio.Event:
        """Set when nothing new will come of the job."""
        return self.job.over

    def news(self) -> bytes:
        """All that has changed; when the job is gone, that alone."""
        followed: tuple[Following[Any], ...] = (self.job, *self.slow.values())
        if any(each.is_gone for each in followed):
            is_told, self._is_gone = self._is_gone, True
            return b"" if is_told else _GONE
        was_troubled = self._troubles.told is not None
        trouble = self._troubles.news(*followed)
        if trouble is None and was_troubled:
            self._sent.pop(OVERVIEW, None)  # to say that it is over
        changes = b"" if self.job.error is not None else b"".join(self._news())
        return (trouble or b"") + changes

    def _news(self) -> Iterator[bytes]:
        state = self.job.state
        if state is None:
            return
        events = dict(state.events)
        for name, each in self.slow.items():
            if each.state is not None:
                events[name] = each.state
        for name in _ORDER:
            told = events.get(name)
            if told is not None and told != self._sent.get(name):
                self._sent[name] = told
                yield told
        yield self._steps.news(state.steps)


class JobLook:
    """Looks at what is quickly seen of a job; one call at a time.

    Raises:
        UnknownJobError: there is none of this name.
        StoreError: it cannot be read.
    """

    def __init__(self, services: JobServices, reading: SharedReading, job_id: str) -> None:
        self._services = services
        self._reading = reading
        self._job_id = job_id
        self._window = StepWindow(_rendered_step)
        self._is_profiled = False

    def __call__(self) -> JobNews:
        """The job as it stands."""
        overview = job_overview(self._reading.figures_of(self._job_id))
        stragglers = list_stragglers(self._services, self._job_id)
        views = tuple(straggler_view(summary) for summary in stragglers)
        events = {
            OVERVIEW: event(OVERVIEW, rendered(JobOverview, overview)),
            STRAGGLERS: event(STRAGGLERS, rendered(tuple[StragglerView, ...], views)),
        }
        profiling = get_profiling(self._services, self._job_id)
        # That it is off is told only of a job whose profiling was followed.
        self._is_profiled = self._is_profiled or profiling.state != "off"
        if self._is_profiled:
            view = replace(profiling_view(profiling), points=())
            events[PROFILING] = event(PROFILING, rendered(ProfilingView, view))
        return JobNews(events, self._window.look(self._services, self._job_id))


class HistoryLook:
    """Looks at the versions of a job's plan; they are rendered again when there is a change."""

    def __init__(self, services: JobServices, memory: HistoryMemory, job_id: str) -> None:
        self._services = services
        self._memory = memory
        self._job_id = job_id
        self._seen: tuple[datetime, tuple[ActivationRecord, ...]] | None = None
        self._event = b""

    def __call__(self) -> bytes:
        """The history as an event."""
        with self._services.store.reading() as reader:
            job = require_job(reader, self._job_id)
            seen = (job.created_at, reader.list_activations(self._job_id))
        if seen != self._seen:
            found = plan_summaries(self._services, self._job_id, self._memory)
            self._event = event(HISTORY, rendered_history(found))
            self._seen = seen
        return self._event


class ComparisonLook:
    """Looks at the newest comparison of a job; while it runs, each of its steps is read once."""

    def __init__(self, services: JobServices, job_id: str) -> None:
        self._services = services
        self._job_id = job_id
        self._seen: tuple[datetime, Comparison] | None = None
        self._counted: PairedSteps | None = None
        self._event = b""

    def __call__(self) -> bytes:
        """The comparison as an event."""
        with self._services.store.reading() as reader:
            job = require_job(reader, self._job_id)
            comparison = reader.find_loop_state(self._job_id).comparison
            if comparison is None:
                return _comparison_event(ComparisonProgress(state="none"))
            seen = (job.created_at, comparison)
            if seen != self._seen:
                self._counted = None
            elif comparison.is_done:
                return self._event
            if self._counted is None:
                self._counted = _paired_steps(reader, job, comparison)
            num_measured = 0 if self._counted is None else self._counted.read(reader)
        self._event = _comparison_event(progress_of(comparison, num_measured))
        self._seen = seen
        return self._event


def _paired_steps(reader: JobReader, job: JobRecord, comparison: Comparison) -> PairedSteps | None:
    """Return their counter; None: the comparison's version has no first step yet."""
    activations = reader.list_activations(job.job_id)
    named = {each.version for each in activations if each.first_step is not None}
    if comparison.version is None or comparison.version not in named:
        return None
    record = reader.find_plan(job.job_id, comparison.version)
    return None if record is None else PairedSteps(record, job.in_force.num_ranks)


def _rendered_step(summary: StagesSummary) -> bytes:
    return rendered(StagesOfStep, stages_of_step(summary))


def _comparison_event(progress: ComparisonProgress) -> bytes:
    return event(COMPARISON, rendered(ComparisonView, comparison_view(progress)))


_JOBS_AT_ONCE, _SLOW_AT_ONCE = 2, 4
# Of all jobs no client is sent more than this, B/s: where there are thousands they come less often.
# They come every MOST_PAUSE_S all the same: where they are more than 30 MiB it is more.
OVERVIEW_BYTES_A_SECOND = 2**20
# After so much silence a client is told that the stream is still there, s.
HEARTBEAT_S = 10.0


class LiveEvents:
    """Streams of events; what several clients follow is read once for all of them.

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
        """What is read now: nothing where no client follows."""
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
        """Return when nothing is read any more; to be called when the waiters are closed."""
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
