"""Launch of a job that a rank belongs to, as reported by its launcher: torchrun, Slurm."""

from __future__ import annotations

from dataclasses import dataclass

from flyball_server.jobs.errors import OtherRunError
from flyball_server.jobs.records import JobRecord


@dataclass(frozen=True, kw_only=True)
class Launch:
    """Launch data reported by a launcher; None: not reported.

    Attributes:
        run: name of the launch that the user requested.
        restart_count: number of restarts of that launch by the launcher.
    """

    run: str | None = None
    restart_count: int | None = None

    def is_known_by(self, job: JobRecord) -> bool:
        """Return whether the job stores this very launch, or one of the two is not reported."""
        return all(
            mine is None or its is None or mine == its
            for mine, its in ((self.run, job.run), (self.restart_count, job.restart_count))
        )

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
            run=self.run or job.run,
            restart_count=job.restart_count if self.restart_count is None else self.restart_count,
        )


def check_not_over(job: JobRecord, launch: Launch) -> None:
    """Refuse a launch that the job's launcher has restarted since.

    Raises:
        OtherRunError: the launcher has restarted the job.
    """
    match launch.restart_count, job.restart_count:
        case (int(mine), int(its)) if launch.run == job.run and mine < its:
            raise OtherRunError(job_id=job.job_id)
        case _:
            return


def check_run(job: JobRecord, launch: Launch) -> None:
    """Refuse a rank of a launch that is over, or that has not registered the job yet.

    Raises:
        OtherRunError: the job stores another launch.
    """
    if not launch.is_known_by(job):
        raise OtherRunError(job_id=job.job_id)


def check_run_id(job: JobRecord, run_id: str | None) -> None:
    """Refuse a request of a process of another run of the job; None: not reported.

    Raises:
        OtherRunError: the request is another run's.
    """
    if run_id not in (None, job.run_id):
        raise OtherRunError(job_id=job.job_id)
