"""A thread that reads the planner every few seconds, so that the screen never waits for it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Generic, TypeVar

from flyball_client.api.errors import PlannerBusyError, PlannerError, PlannerRefusedError

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Trouble:
    """Why there is nothing newer.

    Attributes:
        is_refused: the planner is there and says no.
        since: when it was first so.
    """

    text: str
    is_refused: bool
    since: datetime


@dataclass(frozen=True, kw_only=True)
class Seen(Generic[T]):
    """What was last read, when that was, and why there is nothing newer; None: it is the newest."""

    reading: T
    read_at: datetime
    trouble: Trouble | None = None


class Poller(Generic[T]):
    """Reads again and again until it is stopped; what goes wrong with the planner is kept.

    Args:
        read: one reading; may raise PlannerError.
        first: what was read already.
        interval_s: between two readings, s.
        now: the time of day.
        changed: called after each reading, from the thread.
    """

    def __init__(
        self,
        read: Callable[[], T],
        first: Seen[T],
        *,
        interval_s: float,
        now: Callable[[], datetime],
        changed: Callable[[], None],
    ) -> None:
        self._read = read
        self._seen = first
        self._interval_s = interval_s
        self._now = now
        self._changed = changed
        self._stopped = threading.Event()
        self._failure: Exception | None = None
        # A call that the planner holds must not hold the end of the command.
        self._thread = threading.Thread(target=self._run, name="flyball top", daemon=True)

    @contextmanager
    def running(self) -> Generator[None]:
        """Read on until the block ends; a reading under way is not waited for."""
        self._thread.start()
        try:
            yield
        finally:
            self._stopped.set()

    def newest(self) -> Seen[T]:
        """What is known now; raises what went wrong in the thread that is not the planner's."""
        if self._failure is not None:
            raise self._failure
        return self._seen

    def _run(self) -> None:
        pause_s = self._interval_s
        while not self._stopped.wait(pause_s):
            try:
                pause_s = max(self._interval_s, self._look())
            except Exception as error:  # told by whoever asks for the newest
                self._failure = error
                self._stopped.set()
            self._changed()

    def _look(self) -> float:
        """Read once; how long the planner asks to be left alone, s."""
        try:
            self._seen = Seen(reading=self._read(), read_at=self._now())
        except PlannerError as error:
            known = self._seen.trouble
            since = self._now() if known is None else known.since
            is_refused = isinstance(error, PlannerRefusedError)
            trouble = Trouble(text=str(error), is_refused=is_refused, since=since)
            self._seen = replace(self._seen, trouble=trouble)
            return error.retry_after_s if isinstance(error, PlannerBusyError) else 0.0
        return 0.0
