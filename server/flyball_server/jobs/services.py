"""Dependencies of the use cases: store, planner, GPU table, clock and wake-up call."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from flyball_profiles.gpu_windows import GpuWindow, load_gpu_window
from flyball_server.jobs.lifecycle.job_life import DEFAULT_LIFE, LifeTimes, utc_now
from flyball_server.jobs.records import JobRecord
from flyball_server.jobs.store.contract import JobStore
from flyball_server.jobs.store.sql.job_reader import JobReader
from flyball_server.planning.planner import PlanRequest, make_plan_only
from flyball_server.solving.in_thread import PlannerThreads
from flyball_wire.energy_factors import NO_FACTORS, EnergyFactors
from flyball_wire.plans.plan import Plan

Planner = Callable[[PlanRequest], Plan]
NotifyPollers = Callable[[str], None]
EnqueueReconcile = Callable[[str], None]
IsReconciledAfterPosts = Callable[[JobReader, JobRecord], bool]
RecordHeartbeat = Callable[[str, Iterable[int]], None]


@dataclass(frozen=True, kw_only=True)
class Solve:
    """One try to plan a job.

    Attributes:
        policy: requested policy.
        outcome: `planned`; `failed`: the planner refused, or had an error; `superseded`: the job's
            inputs changed meanwhile, it was deleted, or the planner shut down.
        seconds: duration, s.
    """

    policy: str
    outcome: str
    seconds: float


SolveObserver = Callable[[Solve], None]
SolveTracer = Callable[[JobRecord, Callable[..., Any]], AbstractContextManager[None]]


def frontier_lock(job_id: str) -> str:
    """Return the name of the lock held while the job's frontier is solved; plans ignore it."""
    return f"frontier {job_id}"


@dataclass(frozen=True, kw_only=True)
class JobServices:
    """Services of the use cases, all of which receive this as their first argument.

    Attributes:
        planner: function that makes a plan; raises PlanningError.
        executor: executor that solves plans, frontiers and profiles.
        planning_timeout_s: time limit of a solve, s, above 0.
        gpu_window: function that returns an entry of the GPU table; raises GpuTableError.
        notify_pollers: callback with a job's ID after a change that long polls wait for was
            stored; from any thread.
        now: function that returns the current time, UTC.
        enqueue_reconcile: callback with a job's ID after a change for reconcilers was stored;
            from any thread.
        is_reconciled_after_posts: true if a reconciler may have something to do after a post of
            the job's ranks, according to the store.
        record_heartbeat: callback with a job's ID and its ranks that called; from any thread.
        life: timeouts of ranks and jobs.
        max_jobs: limit of stored jobs; a further one is refused.
        factors: price and emissions of energy, to show.
        observe_solve: callback after each try to plan a job; from any thread.
        trace_solve: function that returns the context of each solve, of a plan, a frontier or a
            profile, from its job and the function that solves; from any thread.
    """

    store: JobStore
    notify_pollers: NotifyPollers
    planner: Planner = make_plan_only
    executor: Executor = field(default_factory=PlannerThreads)
    planning_timeout_s: float = 600.0
    gpu_window: Callable[[str], GpuWindow] = load_gpu_window
    now: Callable[[], datetime] = utc_now
    enqueue_reconcile: EnqueueReconcile = lambda _: None
    is_reconciled_after_posts: IsReconciledAfterPosts = lambda _, __: False
    record_heartbeat: RecordHeartbeat = lambda _, __: None
    life: LifeTimes = DEFAULT_LIFE
    max_jobs: int = 10_000
    factors: EnergyFactors = NO_FACTORS
    observe_solve: SolveObserver = lambda _: None
    trace_solve: SolveTracer = lambda _, __: nullcontext()
