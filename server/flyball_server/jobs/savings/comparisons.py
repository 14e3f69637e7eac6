"""Comparisons: steps at the highest clocks among steps on the plan, from request to end."""

from __future__ import annotations

import math
from dataclasses import replace

from flyball_server.jobs.errors import (
    JobIsOverError,
    MissingPlanError,
    NoRanksPresentError,
    NothingToCompareError,
)
from flyball_server.jobs.findings.noting import note_findings
from flyball_server.jobs.job_state import OVER
from flyball_server.jobs.lifecycle.job_life import is_gone
from flyball_server.jobs.loop_state import Comparison, JobLoopState
from flyball_server.jobs.measurements.step_fold import StepFold
from flyball_server.jobs.measurements.step_reading import read_fold, step_kinds
from flyball_server.jobs.records import JobRecord, NewestVersion
from flyball_server.jobs.services import JobServices
from flyball_server.jobs.store.sql.job_reader import JobReader
from flyball_wire.closed_loop import ComparisonState, ComparisonStatus

# The energy counter updates about every 100 ms: a block of this length loses a few percent.
BLOCK_S = 2.0
# An interval needs some pairs of blocks, however short the steps are.
MIN_BLOCKS = 6
# A comparison without enough valid steps is given up after this multiple of its steps.
PATIENCE = 2


def start_comparison(services: JobServices, job_id: str, num_pairs: int) -> ComparisonStatus:
    """Request a comparison of the job's plan with the highest clocks.

    It starts as soon as a plan holds that is not being reconfigured. The same request again changes
    nothing while it runs; another number of pairs changes its end.

    Raises:
        UnknownJobError: the job does not exist.
        MissingPlanError: the job has no plan yet, or is still being profiled.
        NothingToCompareError: its plan runs entirely at the highest clocks.
        JobIsOverError: the job is over.
        NoRanksPresentError: no rank has registered, or all of them are silent or have left.
        InvalidFieldError: the number of pairs is out of bounds.
    """
    asked = Comparison(num_pairs=num_pairs)
    with services.store.writing(job_id) as writer:
        job = writer.require_job(job_id)
        newest = writer.newest_plan(job_id)
        if job.state in OVER:
            raise JobIsOverError(job_id=job_id, state=job.state)
        if newest is None or newest.plan.is_probe:
            raise MissingPlanError(job_id=job_id)
        if step_kinds(newest).is_all_baseline:
            raise NothingToCompareError(job_id=job_id)
        ranks, now = writer.list_ranks(job_id), services.now()
        if all(is_gone(rank, now, services.life) for rank in ranks):
            raise NoRanksPresentError(job_id=job_id)
        loop_state = writer.find_loop_state(job_id)
        known = loop_state.open_comparison
        # The steps that it has measured count for another number too.
        begun = asked if known is None else replace(known, num_pairs=num_pairs)
        if begun != known:
            writer.save_loop_state(loop_state.evolve(comparison=begun))
    services.enqueue_reconcile(job_id)
    # Counting its steps takes a while, so it is done outside the writing transaction.
    return get_comparison(services, job_id)


def get_comparison(services: JobServices, job_id: str) -> ComparisonStatus:
    """Return the progress of a job's newest comparison.

    Raises:
        UnknownJobError: the job does not exist.
    """
    with services.store.reading() as reader:
        job = reader.require_job(job_id)
        return progress_of(reader.find_loop_state(job_id).comparison, read_fold(reader, job))


def delete_comparison(services: JobServices, job_id: str) -> None:
    """End the comparison that runs or is requested; nothing if there is none.

    If it runs, the plan without it is restored as the next version.

    Raises:
        UnknownJobError: the job does not exist.
    """

    def withdrawn(_: JobRecord, findings: JobLoopState) -> JobLoopState:
        running = findings.open_comparison
        if running is None:
            return findings
        ended = None if running.version is None else replace(running, is_done=True)
        return findings.evolve(comparison=ended)

    note_findings(services, job_id, withdrawn)


def progress_of(comparison: Comparison | None, fold: StepFold) -> ComparisonStatus:
    """Return the progress of a comparison, from the totals of its job's steps."""
    if comparison is None:
        return ComparisonStatus(state=ComparisonState.NONE)
    num_measured = num_measured_pairs(fold, comparison.version)
    state = ComparisonState.RUNNING
    if comparison.is_done:
        is_enough = num_measured >= comparison.num_pairs
        state = ComparisonState.DONE if is_enough else ComparisonState.ENDED
    return ComparisonStatus(
        state=state,
        version=comparison.version,
        num_pairs=comparison.num_pairs,
        num_measured_pairs=num_measured,
    )


def comparison_cycle(num_pairs: int, iteration_time_s: float) -> tuple[bool, ...]:
    """Return which steps run at the highest clocks: plan, highest, highest, plan, in blocks.

    In that order of blocks a drift of the machine cancels in each group of four. A block takes
    BLOCK_S or longer, but at least MIN_BLOCKS of either kind remain.
    """
    longest = max(1, num_pairs // MIN_BLOCKS)
    steps = min(longest, max(1, math.ceil(BLOCK_S / iteration_time_s)))
    return (False,) * steps + (True,) * 2 * steps + (False,) * steps


def num_measured_pairs(fold: StepFold, version: int | None) -> int:
    """Return the number of steps of either kind in a version's pairs; None: no version yet."""
    of_version = fold.versions.get(version or 0)
    return 0 if of_version is None else of_version.num_pairs


class ComparisonReconciler:
    """Reconciler that follows a comparison with the highest clocks to its end."""

    def runs_after_posts(self, reader: JobReader, job: JobRecord) -> bool:
        """Return whether a comparison is requested or running."""
        return reader.find_loop_state(job.job_id).open_comparison is not None

    def __call__(self, services: JobServices, job_id: str) -> None:
        """Store how the comparison goes on."""
        with services.store.reading() as reader:
            job = reader.require_job(job_id)
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
