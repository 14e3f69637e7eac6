"""Start of a job's training that somebody registers for."""

from __future__ import annotations

from dataclasses import dataclass

from flyball_server.jobs.errors import OtherStartError
from flyball_server.jobs.records import JobRecord


@dataclass(frozen=True, kw_only=True)
class Launch:
    """Start of a training, and what its launcher says of it; None: not reported.

    Attributes:
        start_id: identity of the start, which all of its ranks name.
        run: name of the training that the user requested.
        restart_count: number of restarts of that by the launcher. torchrun's agents count each for
            themselves, so a lower number says nothing.
        host: node that registers.
    """

    start_id: str | None = None
    run: str | None = None
    restart_count: int | None = None
    host: str | None = None

    def is_another_of(self, job: JobRecord) -> bool:
        """Return whether it is another start than that which the job is registered for."""
        return self.start_id is not None and self.start_id != job.start

    def is_restart_of(self, job: JobRecord) -> bool:
        """Return whether the launcher has restarted the job; then its old ranks are gone."""
        return (
            self.run == job.run
            and self.restart_count is not None
            and job.restart_count is not None
            and self.restart_count > job.restart_count
        )

    def noted_in(self, job: JobRecord) -> JobRecord:
        """Return the job after this launch has registered it."""
        return job.evolve(
            start=self.start_id or job.start,
            run=self.run or job.run,
            restart_count=job.restart_count if self.restart_count is None else self.restart_count,
        )


def check_start(job: JobRecord, start_id: str | None) -> None:
    """Refuse a rank that does not name the start that its job is registered for.

    Raises:
        OtherStartError: the job has another start.
    """
    if job.start not in (None, start_id):
        raise OtherStartError(job_id=job.job_id)


def check_start_id(job: JobRecord, start_id: str | None) -> None:
    """Refuse a call of a process of another start of the job; None: not reported.

    Raises:
        OtherStartError: the call is another start's.
    """
    if start_id not in (None, job.start_id):
        raise OtherStartError(job_id=job.job_id)
