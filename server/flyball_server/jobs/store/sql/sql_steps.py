"""Queries of pruned steps: their totals, and their removal from the rows of single ranks.

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


def pruned_totals(
    connection: Connection, key: str, *, after_step: int, limit: int
) -> tuple[StepTotals, ...]:
    """Return the first pruned steps after this one, rising."""
    query = (
        select(PRUNED_STEPS)
        .where(PRUNED_STEPS.c.job_id == key, PRUNED_STEPS.c.step > after_step)
        .order_by(PRUNED_STEPS.c.step)
        .limit(limit)
    )
    return tuple(record_of(StepTotals, row) for row in connection.execute(query))


def newest_pruned(connection: Connection, key: str, limit: int) -> tuple[JobStep, ...]:
    """Return the newest pruned steps, rising."""
    query = (
        select(PRUNED_STEPS)
        .where(PRUNED_STEPS.c.job_id == key)
        .order_by(PRUNED_STEPS.c.step.desc())
        .limit(limit)
    )
    return tuple(job_step_of(row) for row in connection.execute(query))[::-1]


def pruned_stages(
    connection: Connection, key: str, *, first_step: int, end_step: int | None, num_steps: int
) -> tuple[StageTotals, ...]:
    """Return the stages of the newest `num_steps` pruned steps in this range."""
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
    """Delete the totals of these pruned steps."""
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
