"""Reconciler of drift from the factors of announced work: ranks get others as times change."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from flyball_server.jobs.job_state import OVER
from flyball_server.jobs.loop_state import JobLoopState, StageSlowdown, WorkModel
from flyball_server.jobs.reconcile.comparisons import open_comparison
from flyball_server.jobs.reconcile.stragglers import (
    MIN_STEPS,
    DetectionWindow,
    adapts_frontier,
    measured_slowdowns,
)
from flyball_server.jobs.records import JobRecord
from flyball_server.jobs.registry.inspection import require_job
from flyball_server.jobs.replanning.plan_job import PLENTY, PlanningSlots, SlottedReconciler
from flyball_server.jobs.replanning.solve import is_same_work
from flyball_server.jobs.replanning.update_and_replan import update_and_replan
from flyball_server.jobs.services import JobServices
from flyball_server.jobs.store.sql.job_reader import JobReader
from flyball_server.kit.lru import Lru

# Number of steps between two looks at a job's times.
_PAUSE_STEPS = 20
_KEPT_JOBS = 32


class WorkDriftReconciler(SlottedReconciler):
    """Reconciler that scales the coefficients of announced work where times have drifted.

    A drift is found as that of a profile is: times of all ranks of a stage and kind against those
    of their work, in 40 steps. The version that follows times its first steps again, which fits
    all coefficients anew. Jobs with `adaptation` `frontier` are planned with the drift instead.
    """

    order = 58

    def __init__(self, slots: PlanningSlots = PLENTY) -> None:
        super().__init__(slots)
        self._guard = threading.Lock()
        self._seen = Lru[str, _Seen](_KEPT_JOBS)

    def runs_after_posts(self, reader: JobReader, job: JobRecord) -> bool:
        """Return whether the job's steps have plans from fitted coefficients."""
        return _is_watched(job, reader.find_loop_state(job.job_id))

    def __call__(self, services: JobServices, job_id: str) -> float | None:
        """Give ranks scaled coefficients if times have drifted."""
        with services.store.reading() as reader:
            job, loop_state = require_job(reader, job_id), reader.find_loop_state(job_id)
            if not _is_watched(job, loop_state):
                return None
            drifts = self._drifts(reader, job, loop_state, services.now().timestamp())
        work = loop_state.inputs.work
        if not drifts or work is None:
            return None
        drifted = with_drifts(work, drifts)

        def changed(now: JobRecord, current: JobLoopState) -> JobLoopState:
            if not is_same_work(job, now) or current.inputs.work != work:
                return current
            return current.evolve(inputs=replace(current.inputs, work=drifted))

        why = "times of announced work have drifted; its ranks get other factors"
        update_and_replan(services, job_id, changed, why, self._slots)
        return None

    def _drifts(
        self, reader: JobReader, job: JobRecord, loop_state: JobLoopState, now_unix_s: float
    ) -> Sequence[StageSlowdown]:
        """Return what is new since the last look, relative to the coefficients."""
        versions = reader.list_versions(job.job_id)
        first_step = versions[-1].first_step if versions else None
        if first_step is None or versions[-1].version != loop_state.timed_version:
            return ()
        version = versions[-1].version
        key = job.created_at, job.inputs_revision, version
        with self._guard:
            seen = self._seen.get(job.job_id)
            if seen is None or seen.key != key:
                window = DetectionWindow(job.job_id, version, first_step)
                seen = _Seen(key=key, window=window, looked_at_step=first_step)
                self._seen.put(job.job_id, seen)
        seen.window.advance(reader)
        if seen.window.newest_step - seen.looked_at_step < _PAUSE_STEPS:
            return ()
        seen.looked_at_step = seen.window.newest_step
        found = measured_slowdowns(
            reader, loop_state, seen.window, now_unix_s=now_unix_s, min_steps=MIN_STEPS
        )
        return () if found is None else found.drifts


@dataclass(kw_only=True)
class _Seen:
    """Steps of one job that were read, and the newest one at the last look."""

    key: tuple[datetime, int, int]
    window: DetectionWindow
    looked_at_step: int


def with_drifts(work: WorkModel, drifts: Sequence[StageSlowdown]) -> WorkModel:
    """Return the coefficients scaled by the drift of their stage and kind."""
    factors = {(each.stage, each.kind): each.slowdown for each in drifts}
    coefficients = tuple(
        (factor * a, factor * b, factor * c)
        for (stage, kind, _), (a, b, c) in zip(work.places, work.coefficients, strict=True)
        for factor in [factors.get((stage, kind), 1.0)]
    )
    return replace(work, coefficients=coefficients)


def _is_watched(job: JobRecord, loop_state: JobLoopState) -> bool:
    work = loop_state.planned_inputs.step_work
    return (
        work is not None
        and bool(work.coefficients)
        and work == loop_state.inputs.work
        and job.state not in OVER
        and job.planned_revision == job.inputs_revision
        and not adapts_frontier(job)
        and open_comparison(loop_state) is None
    )
