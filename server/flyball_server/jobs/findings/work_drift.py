"""Reconciler of drift from the factors of announced work: ranks get others as times change."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from flyball_server.jobs.findings.noting import note_findings
from flyball_server.jobs.findings.stragglers import (
    MIN_STEPS,
    DetectionWindow,
    adapts_frontier,
    advanced_window,
    measured_slowdowns,
)
from flyball_server.jobs.job_state import OVER
from flyball_server.jobs.loop_state import JobLoopState, StageSlowdown, WorkModel
from flyball_server.jobs.records import JobRecord
from flyball_server.jobs.registry.inspection import require_job
from flyball_server.jobs.services import JobServices
from flyball_server.jobs.store.sql.job_reader import JobReader
from flyball_server.jobs.versions.planning import read_planning
from flyball_server.kit.lru import Lru

# Number of steps between two looks at a job's times.
_PAUSE_STEPS = 20
_KEPT_JOBS = 32
# Drift of a stage and kind, as a share, above which factors are scaled; it doubles with each, this
# often at most, so that times that move to and fro end it soon.
_LEAST_DRIFT, _MOST_DOUBLINGS = 0.02, 3


class WorkDriftReconciler:
    """Reconciler that scales the coefficients of announced work where times have drifted.

    A drift is found as that of a profile is: times of all ranks of a stage and kind against those
    of their work, in 40 steps. The version that follows times its first steps again, which fits
    all coefficients anew. Each takes a larger drift than the one before. Jobs with `adaptation`
    `frontier` are planned with the drift instead.
    """

    order = 56

    def __init__(self) -> None:
        self._seen = Lru[str, DetectionWindow](_KEPT_JOBS)

    def runs_after_posts(self, reader: JobReader, job: JobRecord) -> bool:
        """Return whether the job's steps have plans from fitted coefficients."""
        return _is_watched(job, reader.find_loop_state(job.job_id))

    def __call__(self, services: JobServices, job_id: str) -> None:
        """Give ranks scaled coefficients if times have drifted."""
        with services.store.reading() as reader:
            job, loop_state = require_job(reader, job_id), reader.find_loop_state(job_id)
            if not _is_watched(job, loop_state):
                return
            if not read_planning(reader, job).is_planned(services):
                return
            drifts = self._drifts(reader, job, loop_state, services.now().timestamp())
        work = loop_state.work
        if not drifts or work is None:
            return
        drifted = with_drifts(work, drifts)
        if drifted is None:
            return

        def changed(now: JobRecord, current: JobLoopState) -> JobLoopState:
            is_same = job.is_same_work(now) and current.work == work
            return current.evolve(work=drifted) if is_same else current

        note_findings(services, job_id, changed, "times of announced work have drifted")

    def _drifts(
        self, reader: JobReader, job: JobRecord, loop_state: JobLoopState, now_unix_s: float
    ) -> Sequence[StageSlowdown]:
        """Return what is new since the last look, relative to the coefficients."""
        seen = advanced_window(reader, job, self._seen)
        if seen is None or seen.version != loop_state.timed_version:
            return ()
        if seen.newest_step - seen.detected_at_step < _PAUSE_STEPS:
            return ()
        seen.detected_at_step = seen.newest_step
        found = measured_slowdowns(
            reader, loop_state, seen, now_unix_s=now_unix_s, min_steps=MIN_STEPS
        )
        return () if found is None else found.drifts


def with_drifts(work: WorkModel, drifts: Sequence[StageSlowdown]) -> WorkModel | None:
    """Return the coefficients scaled by the drift of their stage and kind.

    Returns:
        None where no drift is large enough, after those before it.
    """
    limit = _LEAST_DRIFT * 2 ** min(work.num_drifts, _MOST_DOUBLINGS)
    factors = {(each.stage, each.kind): each.slowdown for each in drifts}
    if all(abs(factor - 1) <= limit for factor in factors.values()):
        return None
    coefficients = tuple(
        (factor * a, factor * b, factor * c)
        for (stage, kind, _), (a, b, c) in zip(work.places, work.coefficients, strict=True)
        for factor in [factors.get((stage, kind), 1.0)]
    )
    return replace(work, coefficients=coefficients, num_drifts=work.num_drifts + 1)


def _is_watched(job: JobRecord, loop_state: JobLoopState) -> bool:
    work = loop_state.planned_inputs.step_work
    return (
        work is not None
        and bool(work.coefficients)
        and work == loop_state.work
        and job.state not in OVER
        and job.problem is None
        and not adapts_frontier(job)
        and loop_state.open_comparison is None
    )
