"""Reconciler of comparisons: adds a version with steps at the highest clocks, then ends it."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

from flyball_server.jobs.job_state import OVER
from flyball_server.jobs.loop_state import Comparison, JobLoopState
from flyball_server.jobs.measurements.step_reading import read_fold
from flyball_server.jobs.records import JobRecord
from flyball_server.jobs.registry.inspection import require_job, require_plan
from flyball_server.jobs.savings.comparisons import (
    PATIENCE,
    add_with_cycle,
    comparison_cycle,
    num_measured_pairs,
)
from flyball_server.jobs.services import JobServices
from flyball_server.jobs.store.sql.job_reader import JobReader
from flyball_server.jobs.store.sql.job_writer import JobWriter
from flyball_server.jobs.versions.planning import read_planning
from flyball_wire.messages import PlanVersion
from flyball_wire.plans.plan import Purpose

_LOG = logging.getLogger(__name__)


class ComparisonReconciler:
    """Reconciler that starts and ends comparisons with the highest clocks."""

    order = 60

    def runs_after_posts(self, reader: JobReader, job: JobRecord) -> bool:
        """Return whether a comparison is requested or running."""
        return reader.find_loop_state(job.job_id).open_comparison is not None

    def __call__(self, services: JobServices, job_id: str) -> None:
        """Start or end a comparison, or leave the job unchanged."""
        with services.store.reading() as reader:
            job = reader.find_job(job_id)
            if job is None or job.state in OVER:
                return
            situation = _situation(reader, job)
            if situation is None or not _wants_change(services, reader, situation):
                return
        with services.store.writing(job_id) as writer:
            is_same = _situation(writer, require_job(writer, job_id)) == situation
            if is_same:
                _LOG.info("job %s: %s", job_id, _change(services, writer, situation))
        if is_same:
            services.notify_pollers(job_id)
        services.enqueue_reconcile(job_id)


@dataclass(frozen=True, kw_only=True)
class _Situation:
    """Facts that decide the next move of a job's comparison.

    Attributes:
        running: comparison that is not over.
        newest: newest of the job's plan versions.
    """

    job: JobRecord
    loop_state: JobLoopState
    running: Comparison
    newest: PlanVersion


def _situation(reader: JobReader, job: JobRecord) -> _Situation | None:
    """Return the state of the job's comparison; None: no comparison that is not over."""
    loop_state = reader.find_loop_state(job.job_id)
    running = loop_state.open_comparison
    versions = reader.list_versions(job.job_id)
    if running is None or not versions:
        return None
    return _Situation(
        job=job,
        loop_state=loop_state,
        running=running,
        newest=versions[-1],
    )


def _wants_change(services: JobServices, reader: JobReader, situation: _Situation) -> bool:
    running, newest = situation.running, situation.newest
    if running.version is None:
        return _can_be_compared(services, reader, situation)
    return running.version != newest.version or _is_over(reader, situation)


def _is_over(reader: JobReader, situation: _Situation) -> bool:
    job_id, newest = situation.job.job_id, situation.newest
    num_pairs = situation.running.num_pairs
    if newest.first_step is None:
        return False
    # Steps of this version: a run that started over has left steps with higher numbers.
    newest_step = reader.newest_step(
        job_id, version=newest.version, after_step=newest.first_step - 1
    )
    if newest_step is None:
        return False
    num_steps = newest_step - newest.first_step
    if num_steps < 2 * num_pairs:
        return False
    record = require_plan(reader, job_id, newest.version)
    return (
        num_steps >= PATIENCE * 2 * num_pairs + record.cycle_length
        or num_measured_pairs(read_fold(reader, situation.job), newest.version) >= num_pairs
    )


def _can_be_compared(services: JobServices, reader: JobReader, situation: _Situation) -> bool:
    """Return whether the newest plan holds, and nothing else is about to change it."""
    job, newest = situation.job, situation.newest
    if newest.first_step is None or not read_planning(reader, job).is_planned(services):
        return False
    record = require_plan(reader, job.job_id, newest.version)
    return record.purpose in {Purpose.PLAN, Purpose.COMPARISON}


def _change(services: JobServices, writer: JobWriter, situation: _Situation) -> str:
    """Make the change that the situation requires; return its log message."""
    running = situation.running
    newest = require_plan(writer, situation.job.job_id, situation.newest.version)
    if running.version is None:
        cycle = comparison_cycle(running.num_pairs, newest.plan.iteration_time_s)
        compared = add_with_cycle(services, writer, newest, baseline_cycle=cycle)
        begun = replace(running, version=compared.version, of_version=newest.version)
        _save(writer, situation, begun)
        return f"plan {compared.version} compares plan {newest.version} with the highest clocks"
    if running.version == newest.version:
        plain = add_with_cycle(services, writer, newest, baseline_cycle=())
        _save(writer, situation, replace(running, is_done=True))
        return f"the comparison is over; plan {plain.version} is plan {running.of_version} again"
    if newest.baseline_cycle:
        # The run has started over, and the comparison's version was added again.
        _save(writer, situation, replace(running, version=newest.version))
        return f"the comparison continues as plan {newest.version}"
    _save(writer, situation, replace(running, is_done=True))
    return f"plan {newest.version} has ended the comparison that ran as plan {running.version}"


def _save(writer: JobWriter, situation: _Situation, comparison: Comparison) -> None:
    writer.save_loop_state(situation.loop_state.evolve(comparison=comparison))
