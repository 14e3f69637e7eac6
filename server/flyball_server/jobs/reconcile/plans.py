"""Completion of interrupted work: a stored change that has not been planned yet.

A planner that is killed, or whose store fails, between the two leaves it so, and the client that
made the change may not repeat it.
"""

from __future__ import annotations

from dataclasses import replace

from flyball_server.jobs.errors import PlanningFailedError
from flyball_server.jobs.job_state import OVER
from flyball_server.jobs.loop_state import JobLoopState
from flyball_server.jobs.records import JobRecord
from flyball_server.jobs.registry.inspection import require_job
from flyball_server.jobs.replanning.plan_job import (
    SLOT_RETRY_S,
    SlottedReconciler,
    plan_if_needed,
)
from flyball_server.jobs.replanning.update_and_replan import update_and_replan
from flyball_server.jobs.services import JobServices, planning_lock
from flyball_server.jobs.store.sql.job_reader import JobReader
from flyball_server.jobs.timetables import next_change, target_at
from flyball_wire.messages import JobState

# Time in s within which a change of the system clock is noticed.
LONGEST_PAUSE_S = 600.0
_NO_TARGET = ""


class TimetableReconciler(SlottedReconciler):
    """Reconciler that plans a job for the current target of its timetable."""

    order = 40

    def runs_after_posts(self, reader: JobReader, job: JobRecord) -> bool:
        """Return False: measurements change no timetable."""
        del reader, job
        return False

    def __call__(self, services: JobServices, job_id: str) -> float | None:
        """Plan the job for the current target; return the time until the next change."""
        now = services.now()

        def changed(job: JobRecord, loop_state: JobLoopState) -> JobLoopState:
            del job
            held = _NO_TARGET
            if loop_state.timetable is not None:
                held = target_at(loop_state.timetable, _NO_TARGET, now)
            return loop_state.evolve(inputs=replace(loop_state.inputs, target=held or None))

        with services.store.reading() as reader:
            job, loop_state = require_job(reader, job_id), reader.find_loop_state(job_id)
        if job.state in OVER:
            return None
        wanted = changed(job, loop_state)
        if wanted != loop_state:
            target = wanted.inputs.target or "its own target"
            update_and_replan(
                services, job_id, changed, f"planned for {target} by its timetable", self._slots
            )
        if loop_state.timetable is None:
            return None
        change = next_change(loop_state.timetable, now)
        return None if change is None else min(LONGEST_PAUSE_S, (change - now).total_seconds())


class ReplanReconciler(SlottedReconciler):
    """Reconciler that plans a job after a change of its inputs, unless planning has failed."""

    order = 20

    def runs_after_posts(self, reader: JobReader, job: JobRecord) -> bool:
        """Return whether a change of its inputs is not planned yet."""
        del reader
        return is_unplanned(job)

    def __call__(self, services: JobServices, job_id: str) -> float | None:
        """Plan the job if it is unplanned."""
        with services.store.reading() as reader:
            if not is_unplanned(require_job(reader, job_id)) or not reader.has_profile(job_id):
                return None
        with services.store.lock(planning_lock(job_id), waits=False) as is_free:
            if not is_free:
                return SLOT_RETRY_S  # a request plans it
        with self._slots.taken() as is_free:
            if not is_free:
                return SLOT_RETRY_S
            try:
                plan_if_needed(services, job_id, asked_by=None)
            except PlanningFailedError:  # it has been logged and stored
                services.notify_pollers(job_id)
        return None


def is_unplanned(job: JobRecord) -> bool:
    """Return whether a stored change has not been planned; false if planning it has failed.

    A job that failed and has had its inputs changed since has no problem any more.
    """
    has_failed = job.state == JobState.PLANNING_FAILED and job.problem is not None
    return job.planned_revision != job.inputs_revision and not has_failed and job.state not in OVER
