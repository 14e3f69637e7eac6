"""What the use cases work with: store, planner, GPU table, clock and wake-up call."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime

from flyball_profiles.gpu_windows import GpuWindow, load_gpu_window
from flyball_server.jobs.store import JobStore
from flyball_server.planning.plan import FrequencyPlan
from flyball_server.planning.planner import PlanRequest, make_plan

Planner = Callable[[PlanRequest], FrequencyPlan]
Wake = Callable[[str], None]
Notice = Callable[[str], None]


def _nobody_looks(job_id: str) -> None:
    del job_id


def utc_now() -> datetime:
    """The time of day, UTC."""
    return datetime.now(UTC)


class PlanningTurns:
    """One planning per job at a time, so that many ranks that ask for the same get it once."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._locks: dict[str, threading.Lock] = {}

    @contextmanager
    def turn(self, job_id: str) -> Generator[None]:
        """Wait until no other thread plans this job, then have the turn."""
        with self._guard:
            lock = self._locks.setdefault(job_id, threading.Lock())
        with lock:
            yield

    def is_taken(self, job_id: str) -> bool:
        """Whether a thread has the turn now."""
        with self._guard:
            lock = self._locks.get(job_id)
        return lock is not None and lock.locked()


@dataclass(frozen=True, kw_only=True)
class JobServices:
    """The seams of the use cases, all of which take one as their first argument.

    Attributes:
        planner: makes a plan; raises PlanningError.
        gpu_window: an entry of the GPU table by name; raises GpuTableError.
        wake: called with a job's id after something that a long poll may wait for has been
            stored; from any thread.
        now: the time of day, UTC.
        notice: called with a job's id after something that a reaction may look at has been
            stored; from any thread.
    """

    store: JobStore
    wake: Wake
    planner: Planner = make_plan
    gpu_window: Callable[[str], GpuWindow] = load_gpu_window
    now: Callable[[], datetime] = utc_now
    notice: Notice = _nobody_looks
    turns: PlanningTurns = field(default_factory=PlanningTurns)
