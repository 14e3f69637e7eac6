"""Reconciler of drift from the factors of announced work: ranks get others as times change."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from flyball_server.jobs.findings.step_plans import StepPlanReconciler
from flyball_server.jobs.findings.stragglers import (
    DetectionWindow,
    adapts_frontier,
    measured_slowdowns,
)
from flyball_server.jobs.loop_state import JobLoopState
from flyball_server.jobs.planning_inputs import StageSlowdown, WorkModel
from flyball_server.jobs.records import JobRecord
from flyball_server.jobs.store.sql.job_reader import JobReader

# Drift of a stage and kind, as a share, above which factors are scaled; it doubles with each, this
# often at most, so that times that move to and fro end it soon.
_LEAST_DRIFT, _MOST_DOUBLINGS = 0.02, 3


class WorkDriftReconciler(StepPlanReconciler):
    """Reconciler that scales the coefficients of announced work where times have drifted.

    A drift is found as that of a profile is: times of all ranks of a stage and kind against those
    of their work, in 40 steps. The version that follows times its first steps again, which fits
    all coefficients anew. Each takes a larger drift than the fit before. Jobs with `adaptation`
    `frontier` are planned with the drift instead.
    """

    pause_steps = 20
    why = "times of announced work have drifted"

    def concerns(self, job: JobRecord, loop_state: JobLoopState, work: WorkModel) -> bool:
        """Return whether the job's steps have plans from fitted coefficients."""
        del loop_state
        return bool(work.coefficients) and not adapts_frontier(job)

    def found(
        self,
        reader: JobReader,
        job: JobRecord,
        loop_state: JobLoopState,
        seen: DetectionWindow,
        now_unix_s: float,
    ) -> JobLoopState:
        """Return the loop state with coefficients scaled by the drift since they were fitted."""
        del job
        work = loop_state.work
        found = measured_slowdowns(reader, loop_state, seen, now_unix_s=now_unix_s)
        drifted = None if found is None or work is None else with_drifts(work, found.drifts)
        return loop_state if drifted is None else loop_state.evolve(work=drifted)


def with_drifts(work: WorkModel, drifts: Sequence[StageSlowdown]) -> WorkModel | None:
    """Return the coefficients scaled by the drift of their stage and kind.

    Returns:
        None where no drift is large enough, after those before it.
    """
    limit = _LEAST_DRIFT * 2 ** min(work.num_drifts, _MOST_DOUBLINGS)
    factors = {(drift.stage, drift.kind): drift.slowdown for drift in drifts}
    if all(abs(factor - 1) <= limit for factor in factors.values()):
        return None
    coefficients = tuple(
        (factor * a, factor * b, factor * c)
        for (stage, kind, _), (a, b, c) in zip(work.places, work.coefficients, strict=True)
        for factor in [factors.get((stage, kind), 1.0)]
    )
    return replace(work, coefficients=coefficients, num_drifts=work.num_drifts + 1)
