"""Use cases of timetables: put one, look at it, take it away."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from flyball_server.jobs.control import JobControl
from flyball_server.jobs.errors import InvalidFieldError
from flyball_server.jobs.records import JobRecord
from flyball_server.jobs.registry.inspection import require_job
from flyball_server.jobs.services import JobServices
from flyball_server.jobs.timetable import check_timetable, next_change
from flyball_server.planning.request_options import DEFAULT_POLICY, DEFAULT_TARGET
from flyball_wire.closed_loop import Timetable


@dataclass(frozen=True, kw_only=True)
class TimetableSummary:
    """A job's timetable, and what it makes of the target now; as the wire's TimetableView.

    Attributes:
        next_change: when another window may count; None: never.
    """

    timetable: Timetable | None
    target_in_force: str
    next_change: datetime | None


def put_timetable(services: JobServices, job_id: str, timetable: Timetable) -> TimetableSummary:
    """Give the job targets by the time of day, in the place of those before.

    The planner itself plans the job anew where another target holds now.

    Raises:
        UnknownJobError: no such job.
        InvalidFieldError: a window cannot be used, or its target not with the job's policy.
    """
    check_timetable(timetable)
    with services.store.writing(job_id) as writer:
        job = require_job(writer, job_id)
        _check_policy(job, timetable)
        control = writer.find_control(job_id).evolve(timetable=timetable)
        summary = _summary(services, job, control)
        writer.save_control(control)
    services.notice(job_id)
    return summary


def get_timetable(services: JobServices, job_id: str) -> TimetableSummary:
    """The job's timetable.

    Raises:
        UnknownJobError: no such job.
    """
    with services.store.reading() as reader:
        return _summary(services, require_job(reader, job_id), reader.find_control(job_id))


def delete_timetable(services: JobServices, job_id: str) -> None:
    """Let the job's own target hold at all times.

    Raises:
        UnknownJobError: no such job.
    """
    with services.store.writing(job_id) as writer:
        require_job(writer, job_id)
        control = writer.find_control(job_id)
        if control.timetable is not None:
            writer.save_control(control.evolve(timetable=None))
    services.notice(job_id)


def _check_policy(job: JobRecord, timetable: Timetable) -> None:
    policy = job.in_force.policy or DEFAULT_POLICY
    for index, window in enumerate(timetable.windows):
        if policy != "frontier" and window.target != DEFAULT_TARGET:
            raise InvalidFieldError(
                f"windows[{index}].target",
                f"policy {policy} aims at {DEFAULT_TARGET} only; others need policy frontier",
            )


def _summary(services: JobServices, job: JobRecord, control: JobControl) -> TimetableSummary:
    timetable = control.timetable
    return TimetableSummary(
        timetable=timetable,
        target_in_force=control.planned_for.target or job.in_force.target,
        next_change=None if timetable is None else next_change(timetable, services.now()),
    )
