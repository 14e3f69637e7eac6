"""Queries of measured steps: rows of single ranks, and totals of the steps that were pruned.

A step has rows in `steps` or totals in `pruned_steps`; who reads totals need not know which.
`key` is always the key of the job's rows; empty if the job does not exist.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, delete, func, select

from flyball_server.jobs.records import StageTotals, StepTotals
from flyball_server.jobs.store.sql.sql_rows import job_step_of, record_of, totals_record
from flyball_server.jobs.store.sql.sql_tables import (
    PRUNED_STAGES,
    PRUNED_STEPS,
    RANKS,
    STAGE_TOTALS,
    STEP_DETAILS,
    STEP_TOTALS,
    STEPS,
    of_rank,
)
from flyball_wire.messages import JobStep


def oldest_steps(
    connection: Connection, key: str, *, limit: int
) -> tuple[tuple[int, int, int], ...]:
    """Return the first `limit` steps that are not pruned: step, rows, Unix time of the last, s."""
    query = (
        select(STEPS.c.step, func.count(), func.max(STEPS.c.stored_at))
        .where(STEPS.c.job_id == key)
        .group_by(STEPS.c.step)
        .order_by(STEPS.c.step)
        .limit(limit)
    )
    return tuple((step, count, stored_at) for step, count, stored_at in connection.execute(query))


def newest_step(
    connection: Connection,
    key: str,
    *,
    version: int | None,
    after_step: int,
    before_step: int | None,
) -> int | None:
    """Return the newest step in this range; with a version, of those with a rank that ran it."""
    newest: list[int] = []
    for table, ran in (
        (STEPS, STEPS.c.plan_version),
        (PRUNED_STEPS, PRUNED_STEPS.c.newest_version),
    ):
        in_range = [table.c.job_id == key, table.c.step > after_step]
        if version is not None:
            in_range.append(ran == version)
        if before_step is not None:
            in_range.append(table.c.step < before_step)
        # Not max(): with a version that would scan all of the job's steps.
        query = select(table.c.step).where(*in_range).order_by(table.c.step.desc()).limit(1)
        newest += connection.execute(query).scalars()
    return max(newest, default=None)


def step_totals(
    connection: Connection, key: str, *, after_step: int, limit: int
) -> tuple[StepTotals, ...]:
    """Return the totals of the first `limit` steps after this one, rising."""
    query = (
        select(PRUNED_STEPS)
        .where(PRUNED_STEPS.c.job_id == key, PRUNED_STEPS.c.step > after_step)
        .order_by(PRUNED_STEPS.c.step)
        .limit(limit)
    )
    pruned = [record_of(StepTotals, row) for row in connection.execute(query)]
    in_range = [STEPS.c.job_id == key, STEPS.c.step > after_step]
    if len(pruned) == limit:
        in_range.append(STEPS.c.step < pruned[-1].step)
    query = (
        select(*STEP_TOTALS)
        .where(*in_range)
        .group_by(STEPS.c.step)
        .order_by(STEPS.c.step)
        .limit(limit)
    )
    kept = [totals_record(StepTotals, row) for row in connection.execute(query)]
    return tuple(sorted((*pruned, *kept), key=lambda each: each.step)[:limit])


def stage_totals(
    connection: Connection, key: str, *, after_step: int, before_step: int | None, num_steps: int
) -> tuple[StageTotals, ...]:
    """Return the totals by stages of the newest `num_steps` steps in this range, rising."""
    in_range = [STEPS.c.job_id == key, STEPS.c.step > after_step]
    if before_step is not None:
        in_range.append(STEPS.c.step < before_step)
    newest = (select(STEPS.c.step).where(*in_range).distinct().order_by(STEPS.c.step.desc())).limit(
        num_steps
    )
    first_step = select(func.min(newest.subquery().c.step)).scalar_subquery()
    query = (
        select(*STAGE_TOTALS)
        .join_from(STEPS, RANKS, of_rank())
        .where(*in_range, STEPS.c.step >= first_step)
        .group_by(STEPS.c.step, RANKS.c.stage, STEPS.c.plan_version, STEPS.c.unknown_version)
    )
    kept = [totals_record(StageTotals, row) for row in connection.execute(query)]
    steps = {each.step for each in kept}
    pruned = _pruned_stages(
        connection,
        key,
        first_step=min(steps) if len(steps) == num_steps else after_step + 1,
        end_step=before_step,
        num_steps=num_steps,
    )
    numbers = sorted(steps | {each.step for each in pruned})[-num_steps:]
    # Not ordered by the database: databases differ in the place of a missing version.
    totals = [each for each in (*pruned, *kept) if each.step >= numbers[0]]
    return tuple(sorted(totals, key=lambda each: each.place))


def newest_pruned(connection: Connection, key: str, limit: int) -> tuple[JobStep, ...]:
    """Return the newest pruned steps, rising."""
    query = (
        select(PRUNED_STEPS)
        .where(PRUNED_STEPS.c.job_id == key)
        .order_by(PRUNED_STEPS.c.step.desc())
        .limit(limit)
    )
    return tuple(job_step_of(row) for row in connection.execute(query))[::-1]


def _pruned_stages(
    connection: Connection, key: str, *, first_step: int, end_step: int | None, num_steps: int
) -> tuple[StageTotals, ...]:
    in_range = [PRUNED_STAGES.c.job_id == key, PRUNED_STAGES.c.step >= first_step]
    if end_step is not None:
        in_range.append(PRUNED_STAGES.c.step < end_step)
    newest = (
        select(PRUNED_STAGES.c.step)
        .where(*in_range)
        .distinct()
        .order_by(PRUNED_STAGES.c.step.desc())
        .limit(num_steps)
        .subquery()
    )
    oldest = select(func.min(newest.c.step)).scalar_subquery()
    query = select(PRUNED_STAGES).where(*in_range, PRUNED_STAGES.c.step >= oldest)
    return tuple(record_of(StageTotals, row) for row in connection.execute(query))


def prune(connection: Connection, key: str, *, end_step: int, num_stage_steps: int) -> None:
    """Replace the rows of steps before `end_step` by totals.

    Args:
        connection: inside a writing transaction.
        key: key of the job.
        end_step: first step that is not pruned.
        num_stage_steps: number of newest pruned steps with totals by stages.
    """
    of_steps = (STEPS.c.job_id == key, STEPS.c.step < end_step)
    stages = _stage_rows(connection, key, of_steps)
    totals = _step_rows(connection, key, of_steps)
    if not totals:
        return
    connection.execute(PRUNED_STEPS.insert(), totals)
    connection.execute(PRUNED_STAGES.insert(), stages)
    connection.execute(delete(STEPS).where(*of_steps))
    connection.execute(
        delete(STEP_DETAILS).where(STEP_DETAILS.c.job_id == key, STEP_DETAILS.c.step < end_step)
    )
    oldest_kept = (
        select(PRUNED_STEPS.c.step)
        .where(PRUNED_STEPS.c.job_id == key)
        .order_by(PRUNED_STEPS.c.step.desc())
        .offset(num_stage_steps - 1)
        .limit(1)
    )
    oldest_step = connection.execute(oldest_kept).scalar_one_or_none()
    if oldest_step is not None:
        connection.execute(
            delete(PRUNED_STAGES).where(
                PRUNED_STAGES.c.job_id == key, PRUNED_STAGES.c.step < oldest_step
            )
        )


def forget_pruned(connection: Connection, key: str, steps: Sequence[int]) -> None:
    """Delete the totals of pruned steps."""
    for table in (PRUNED_STAGES, PRUNED_STEPS):
        connection.execute(delete(table).where(table.c.job_id == key, table.c.step.in_(steps)))


def _step_rows(connection: Connection, key: str, of_steps: tuple[Any, ...]) -> list[dict[str, Any]]:
    several: dict[int, tuple[set[int | None], set[int]]] = defaultdict(lambda: (set(), set()))
    versions = select(STEPS.c.step, STEPS.c.plan_version, STEPS.c.unknown_version)
    for step, plan_version, unknown_version in connection.execute(
        versions.where(*of_steps).distinct()
    ):
        known, unknown = several[step]
        if unknown_version is None:
            known.add(plan_version)
        else:
            unknown.add(unknown_version)
    query = select(*STEP_TOTALS).where(*of_steps).group_by(STEPS.c.step)
    rows: list[dict[str, Any]] = []
    for row in connection.execute(query):
        known, unknown = several[row.step]
        is_alike = len(known) == 1 and not unknown
        listed = [sorted(known, key=lambda version: version or 0), sorted(unknown)]
        rows.append(
            {
                **vars(totals_record(StepTotals, row)),
                "job_id": key,
                "versions": None if is_alike else json.dumps(listed),
            }
        )
    return rows


def _stage_rows(
    connection: Connection, key: str, of_steps: tuple[Any, ...]
) -> list[dict[str, Any]]:
    query = (
        select(*STAGE_TOTALS)
        .join_from(STEPS, RANKS, of_rank())
        .where(*of_steps)
        .group_by(STEPS.c.step, RANKS.c.stage, STEPS.c.plan_version, STEPS.c.unknown_version)
    )
    parts: dict[tuple[int, int], int] = defaultdict(int)
    rows: list[dict[str, Any]] = []
    for row in connection.execute(query):
        parts[row.step, row.stage] += 1
        part = parts[row.step, row.stage]
        rows.append({**vars(totals_record(StageTotals, row)), "job_id": key, "part": part})
    return rows
