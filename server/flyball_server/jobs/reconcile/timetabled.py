"""Targets by the time of day: the job is planned for the one that holds now."""

from __future__ import annotations

from dataclasses import replace

from flyball_server.jobs.job_state import OVER
from flyball_server.jobs.loop_state import JobLoopState
from flyball_server.jobs.records import JobRecord
from flyball_server.jobs.registry.inspection import require_job
from flyball_server.jobs.replanning.plan_job import PLENTY, PlanningSlots
from flyball_server.jobs.replanning.update_and_replan import update_and_replan
from flyball_server.jobs.services import JobServices
from flyball_server.jobs.store.contract import JobReader
from flyball_server.jobs.timetables import next_change, target_at

# A clock that is set while the planner runs is noticed after so long at the latest, s.
LONGEST_PAUSE_S = 600.0
_NO_TARGET = ""


class TimetableReconciler:
    """Has a job planned for the target that its timetable names now.

    Args:
        slots: of the plannings that the reconcile loop waits for.
    """

    order = 40

    def __init__(self, slots: PlanningSlots = PLENTY) -> None:
        self._slots = slots

    def runs_after_posts(self, reader: JobReader, job: JobRecord) -> bool:
        """Return False: what ranks measure changes no timetable."""
        del reader, job
        return False

    def __call__(self, services: JobServices, job_id: str) -> float | None:
        """Plan the job for what holds now; ask to be called at the next change."""
        now = services.now()

        def changed(job: JobRecord, loop_state: JobLoopState) -> JobLoopState:
            del job
            held = _NO_TARGET
            if loop_state.timetable is not None:
                held = target_at(loop_state.timetable, _NO_TARGET, now)
            return loop_state.evolve(in_force=replace(loop_state.in_force, target=held or None))

        with services.store.reading() as reader:
            job, loop_state = require_job(reader, job_id), reader.find_loop_state(job_id)
        if job.state in OVER:
            return None
        wanted = changed(job, loop_state)
        if wanted != loop_state:
            target = wanted.in_force.target or "its own target"
            update_and_replan(
                services, job_id, changed, f"by its timetable wanted for {target}", self._slots
            )
        if loop_state.timetable is None:
            return None
        change = next_change(loop_state.timetable, now)
        return None if change is None else min(LONGEST_PAUSE_S, (change - now).total_seconds())
