"""Pruning: old measurements of single ranks become totals.

A step is pruned once its newest measurement is older than the retention, in the order of steps.
What is read of a job afterwards stays the same: the running totals, which have its steps before,
`list_step_totals` for recorded runs, `list_stage_totals` for charts.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping

from flyball_server.jobs.measurements.step_reading import add_all
from flyball_server.jobs.services import JobServices
from flyball_server.jobs.step_records import (
    FoldPlace,
    Moments,
    StageMoments,
    StepDetail,
    StepRecord,
)
from flyball_server.jobs.store.sql.job_reader import JobReader
from flyball_server.jobs.store.sql.job_writer import JobWriter
from flyball_wire.messages import JobSpec, JobState

# Limits of one answer about stages of steps: measurements of ranks, stages, steps.
MOST_MEASUREMENTS = 262_144
MOST_STAGES = 32_768
MOST_STEPS = 10_000
# Measurements of ranks that one transaction prunes, but at least one step: posts of other ranks
# wait for it, some 50 ms with 4096.
_ROWS_AT_ONCE = 4096


def most_steps(
    spec: JobSpec,
    limit: int = MOST_STEPS,
    *,
    num_measurements: int = MOST_MEASUREMENTS,
    num_stages: int = MOST_STAGES,
) -> int:
    """Return the number of steps to read, 1 to `limit`, by the bounds on measurements."""
    fit = min(num_measurements // spec.num_expected_ranks, num_stages // spec.num_stages)
    return max(min(limit, fit), 1)


def prune_some(services: JobServices, job_id: str) -> bool:
    """Prune the job's oldest steps, in one short transaction; return whether there may be more."""
    with services.store.reading() as reader:
        if _end_step(services, reader, job_id) is None:
            return False
    with services.store.writing(job_id) as writer:
        job = writer.find_job(job_id)
        end_step = _end_step(services, writer, job_id)
        if job is None or end_step is None:
            return False
        add_all(writer, job, end_step)
        writer.prune_steps(job_id, end_step, num_stage_steps=most_steps(job.spec))
    return True


def _end_step(services: JobServices, reader: JobReader, job_id: str) -> int | None:
    """Return the first step that is not to be pruned now; None: none is."""
    retention_s = services.life.step_retention_s
    job = reader.find_job(job_id)
    # Profiling reads all its steps.
    if job is None or not retention_s or job.state == JobState.PROFILING:
        return None
    stored_before = services.now().timestamp() - retention_s
    end_step = None
    num_rows = 0
    limit = max(_ROWS_AT_ONCE // job.spec.num_expected_ranks, 1)
    for oldest in reader.list_posted_steps(job_id, limit=limit):
        num_rows += oldest.num_ranks
        is_enough = end_step is not None and num_rows > _ROWS_AT_ONCE
        if oldest.stored_at >= stored_before or is_enough:
            break
        end_step = oldest.step + 1
    return end_step


# ------------------------------------------------------------------ posts


def without_pruned(
    writer: JobWriter, job_id: str, place: FoldPlace, steps: Mapping[tuple[int, int], StepRecord]
) -> dict[tuple[int, int], StepRecord]:
    """Return the measurements to store, by rank and step.

    A pruned step has counted: a measurement of it is not stored again, unless the run has started
    over since. Then the step is measured anew.
    """
    pruned = writer.find_pruned(job_id, {step for _, step in steps})
    if not pruned:
        return dict(steps)
    counted = {step for step in pruned if step <= place.after_step}
    writer.forget_pruned(job_id, pruned - counted)
    return {key: record for key, record in steps.items() if key[1] not in counted}


def merge_instructions(
    writer: JobWriter,
    job_id: str,
    steps: Mapping[tuple[int, int], StepRecord],
    details: Iterable[StepDetail],
    stages: Mapping[int, int],
) -> None:
    """Add the instructions' times of measurements that are about to be stored to the moments.

    Steps are given by rank and number, stages by rank; of ranks without a stage nothing is added.
    """
    wanted = [
        (detail, steps[detail.rank, detail.step])
        for detail in details
        if detail.by_clock and detail.rank in stages and (detail.rank, detail.step) in steps
    ]
    planned = [(detail, step) for detail, step in wanted if _ran_as_planned(step)]
    if not planned:
        return
    numbers = [step.step for _, step in planned]
    known = writer.find_step_versions(
        job_id, {step.rank for _, step in planned}, min(numbers), max(numbers) + 1
    )
    moments: list[StageMoments] = []
    for detail, step in planned:
        if known.get((step.rank, step.step), 0) == step.plan_version:
            continue  # posted again
        moments.append(
            StageMoments(
                plan_version=step.plan_version,
                stage=stages[step.rank],
                instructions_s={
                    (kind, chunk, clock_mhz): Moments(
                        count=count, mean=mean_s, m2=variance_s2 * (count - 1)
                    )
                    for kind, chunk, clock_mhz, count, mean_s, variance_s2 in detail.by_clock or ()
                },
            )
        )
    writer.merge_moments(job_id, moments)


def _ran_as_planned(step: StepRecord) -> bool:
    has_deviated = step.num_unplanned or step.num_clock_misses or step.unknown_version is not None
    return not has_deviated


# Period between two passes over a job, s.
PERIOD_S = 30.0
# Time limit of a pass, for the job's other reconcilers, and the pause after it if it was reached.
BUDGET_S = 0.5
BUSY_PAUSE_S = 1.0
# Pause between two transactions, for posts, s.
PAUSE_S = 0.03


class PruningReconciler:
    """Reconciler that prunes a job's steps, in short transactions with pauses between them."""

    runs_after_posts = None  # what has to be pruned is known long before

    def __init__(self) -> None:
        # By job, time of the next pass, monotonic s.
        self._due_s: dict[str, float] = {}

    def __call__(self, services: JobServices, job_id: str) -> float | None:
        """Prune the job's steps for a while; return the time until the next pass."""
        if not services.life.step_retention_s:
            return None
        now_s = time.monotonic()
        if self._due_s.get(job_id, now_s) > now_s:
            return self._due_s[job_id] - now_s
        with services.store.reading() as reader:
            job = reader.find_job(job_id)
        if job is None:
            self._due_s.pop(job_id, None)
            return None
        is_left = True
        while is_left and time.monotonic() < now_s + BUDGET_S:
            is_left = prune_some(services, job_id)
            if is_left:
                time.sleep(PAUSE_S)
        pause_s = BUSY_PAUSE_S if is_left else PERIOD_S
        self._due_s[job_id] = time.monotonic() + pause_s
        return pause_s
