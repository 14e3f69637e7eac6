"""What one client is told of all jobs or of one: what has changed since it was last told."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from flyball_server.http.events.event_stream import event
from flyball_server.http.mapping.jobs import rendered
from flyball_server.http.overviews import RenderedOverview
from flyball_server.http.problem_handlers import problem_of
from flyball_server.jobs.auth.access import Access
from flyball_server.jobs.errors import JobsError
from flyball_server.views.live_feed import Following
from flyball_server.views.stage_steps import WindowStep, settled_step
from flyball_wire.messages import Problem

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
    """What is told of looks that fail."""

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
    """How far a client has been told of steps.

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
