"""Reconciler of comparisons: the version that one runs as, and when it is over."""

from __future__ import annotations

from dataclasses import replace

from flyball_server.jobs.findings.noting import note_findings
from flyball_server.jobs.job_state import OVER
from flyball_server.jobs.loop_state import Comparison, JobLoopState
from flyball_server.jobs.measurements.step_reading import read_fold
from flyball_server.jobs.records import JobRecord, NewestVersion
from flyball_server.jobs.registry.inspection import require_job
from flyball_server.jobs.savings.comparisons import PATIENCE, num_measured_pairs
from flyball_server.jobs.services import JobServices
from flyball_server.jobs.store.sql.job_reader import JobReader


class ComparisonReconciler:
    """Reconciler that follows a comparison with the highest clocks to its end."""

    order = 56

    def runs_after_posts(self, reader: JobReader, job: JobRecord) -> bool:
        """Return whether a comparison is requested or running."""
        return reader.find_loop_state(job.job_id).open_comparison is not None

    def __call__(self, services: JobServices, job_id: str) -> None:
        """Store how the comparison goes on."""
        with services.store.reading() as reader:
            job = require_job(reader, job_id)
            before = reader.find_loop_state(job_id).open_comparison
            newest = reader.newest_version(job_id)
            if job.state in OVER or before is None or before.version is None or newest is None:
                return
            after, why = _followed(reader, job, before, newest)

        def changed(_: JobRecord, findings: JobLoopState) -> JobLoopState:
            return findings.evolve(comparison=after) if findings.comparison == before else findings

        note_findings(services, job_id, changed, why)


def _followed(
    reader: JobReader, job: JobRecord, running: Comparison, newest: NewestVersion
) -> tuple[Comparison, str]:
    """Return a comparison that runs as it is now, and what to log of a change."""
    if running.version == newest.version:
        is_done = _is_over(reader, job, running.num_pairs, newest)
        return replace(running, is_done=is_done), "the comparison is over"
    if newest.baseline_cycle:
        # The run has started over, and the comparison's version was added again.
        went_on = f"the comparison continues as plan {newest.version}"
        return replace(running, version=newest.version), went_on
    ended = f"plan {newest.version} has ended the comparison that ran as plan {running.version}"
    return replace(running, is_done=True), ended


def _is_over(reader: JobReader, job: JobRecord, num_pairs: int, newest: NewestVersion) -> bool:
    if newest.first_step is None:
        return False
    # Steps of this version: a run that started over has left steps with higher numbers.
    newest_step = reader.newest_step(
        job.job_id, version=newest.version, after_step=newest.first_step - 1
    )
    if newest_step is None:
        return False
    num_steps = newest_step - newest.first_step
    if num_steps < 2 * num_pairs:
        return False
    return (
        num_steps >= PATIENCE * 2 * num_pairs + len(newest.baseline_cycle)
        or num_measured_pairs(read_fold(reader, job), newest.version) >= num_pairs
    )
