"""What the use cases work with: store, planner, GPU table, clock and wake-up call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
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


def planning_turn(job_id: str) -> str:
    """The store's turn that whoever plans this job has: it is planned once."""
    return f"plan {job_id}"


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
