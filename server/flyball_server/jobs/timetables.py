"""Use cases of timetables: put, get and delete one."""

from __future__ import annotations

from flyball_server.jobs.errors import InvalidFieldError
from flyball_server.jobs.findings.noting import note_findings
from flyball_server.jobs.loop_state import JobLoopState
from flyball_server.jobs.records import JobRecord
from flyball_server.jobs.services import JobServices
from flyball_server.jobs.wanted.timetable import check_timetable, next_change
from flyball_server.planning.policies.envpipe import ENVPIPE_POLICIES
from flyball_wire.closed_loop import Timetable, TimetableStatus
from flyball_wire.plan_options import DEFAULT_TARGET


def put_timetable(services: JobServices, job_id: str, timetable: Timetable) -> TimetableStatus:
    """Store the job's targets by the time of day, replacing earlier ones.

    The reconcile loop plans the job again if the current target changes.

    Raises:
        UnknownJobError: the job does not exist.
        InvalidFieldError: a window is invalid, or the job's policy does not support its target.
    """
    check_timetable(timetable)
    with services.store.writing(job_id) as writer:
        job = writer.require_job(job_id)
        _check_policy(job, timetable)
        loop_state = writer.find_loop_state(job_id).evolve(timetable=timetable)
        status = timetable_status(services, job, loop_state)
        writer.save_loop_state(loop_state)
    services.enqueue_reconcile(job_id)
    return status


def get_timetable(services: JobServices, job_id: str) -> TimetableStatus:
    """Return the job's timetable.

    Raises:
        UnknownJobError: the job does not exist.
    """
    with services.store.reading() as reader:
        job = reader.require_job(job_id)
        return timetable_status(services, job, reader.find_loop_state(job_id))


def delete_timetable(services: JobServices, job_id: str) -> None:
    """Delete the job's timetable; its own target becomes current.

    Raises:
        UnknownJobError: the job does not exist.
    """
    note_findings(services, job_id, lambda _, findings: findings.evolve(timetable=None))


def _check_policy(job: JobRecord, timetable: Timetable) -> None:
    policy = job.spec.policy
    for index, window in enumerate(timetable.windows):
        if policy in ENVPIPE_POLICIES and window.target != DEFAULT_TARGET:
            raise InvalidFieldError(
                f"windows[{index}].target",
                f"policy {policy} aims at {DEFAULT_TARGET} only; others need policy frontier",
            )


def timetable_status(
    services: JobServices, job: JobRecord, loop_state: JobLoopState
) -> TimetableStatus:
    """Return the timetable of a job with this loop state."""
    timetable = loop_state.timetable
    change = None if timetable is None else next_change(timetable, services.now())
    current_target = loop_state.planned_inputs.target or job.spec.target
    if loop_state.missed is not None:
        current_target = loop_state.missed.nearest
    return TimetableStatus(
        timetable=timetable,
        current_target=current_target,
        next_change=None if change is None else change.isoformat(),
    )
