"""Queries of a job's measured steps in the SQL tables."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator
from typing import Any, TypeVar

from sqlalchemy import (
    ColumnElement,
    Connection,
    ScalarSelect,
    Select,
    Table,
    bindparam,
    func,
    select,
)

from flyball_server.jobs.measurements.step_fold import StepFold
from flyball_server.jobs.records import RankPlace
from flyball_server.jobs.step_records import (
    FoldPlace,
    StageMoments,
    StageTotals,
    StepDetail,
    StepRecord,
    StepTotals,
)
from flyball_server.jobs.store.sql.sql_rows import (
    RecordT,
    StepVersions,
    detail_of,
    fold_of,
    job_step_of,
    moments_of,
    pruned_versions,
    record_of,
)
from flyball_server.jobs.store.sql.sql_tables import (
    FOLD_PARTS,
    FOLDS,
    JOBS,
    MOMENTS,
    PRUNED_STAGES,
    PRUNED_STEPS,
    STEP_DETAILS,
    STEPS,
    stage_totals,
    step_totals,
)
from flyball_wire.measurements import JobStep

# Databases limit the number of values in a statement.
_MOST_IN_A_QUERY = 10_000

# Read in nearly every transaction. Building such a statement takes twice as long as running it.
_KEY_OF_NAME = select(JOBS.c.job_id).where(JOBS.c.name == bindparam("name"))


class StepReader:
    """Reader of a job's measured steps, inside one transaction, which reads a snapshot.

    A step has rows of its ranks, or totals if it was pruned; totals are read of both alike.

    Args:
        connection: inside a transaction.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        # Keys of jobs by name.
        self._keys: dict[str, str] = {}

    def newest_step(
        self,
        job_id: str,
        *,
        version: int | None = None,
        after_step: int = -1,
        before_step: int | None = None,
    ) -> int | None:
        """Return the newest step in this range that a rank has measured; None: no step.

        With `version` only steps on that plan version count; newer steps on other versions are
        scanned one by one.
        """
        newest: list[int] = []
        for table, ran in (
            (STEPS, STEPS.c.plan_version),
            (PRUNED_STEPS, PRUNED_STEPS.c.newest_version),
        ):
            in_range = self._in_range(table, job_id, after_step + 1, before_step)
            if version is not None:
                in_range.append(ran == version)
            # Not max(): with a version that would scan all of the job's steps.
            query = select(table.c.step).where(*in_range).order_by(table.c.step.desc()).limit(1)
            newest += self._connection.execute(query).scalars()
        return max(newest, default=None)

    def list_newest_steps(self, job_id: str, num_steps: int) -> tuple[StepRecord, ...]:
        """Return the ranks' measurements in the newest `num_steps` steps that are not pruned.

        They are ordered by step, then rank.
        """
        of_job = self._of(STEPS, job_id)
        newest = STEPS.c.step >= _first_of_newest(STEPS, num_steps, of_job)
        query = select(STEPS).where(of_job, newest).order_by(STEPS.c.step, STEPS.c.rank)
        return self._records(StepRecord, query, job_id)

    def list_steps_of_rank(
        self, job_id: str, rank: int, *, version: int, run: int, first_step: int, limit: int
    ) -> tuple[int, ...]:
        """Return the newest `limit` steps of a run that a rank ran on a version, falling.

        Steps before the first are left out; newer steps of others are scanned.
        """
        query = (
            select(STEPS.c.step)
            .where(*self._in_range(STEPS, job_id, first_step))
            .where(STEPS.c.rank == rank, STEPS.c.plan_version == version, STEPS.c.run == run)
            .order_by(STEPS.c.step.desc())
            .limit(limit)
        )
        return tuple(self._connection.execute(query).scalars())

    def list_steps(self, job_id: str, first_step: int, end_step: int) -> tuple[StepRecord, ...]:
        """Return what all ranks measured in steps `first_step` to before `end_step`, by step."""
        query = select(STEPS).where(*self._in_range(STEPS, job_id, first_step, end_step))
        return self._records(StepRecord, query.order_by(STEPS.c.step, STEPS.c.rank), job_id)

    def list_step_totals(
        self, job_id: str, *, after_step: int, limit: int
    ) -> tuple[StepTotals, ...]:
        """Return the first `limit` steps after `after_step` (-1: from the beginning), rising."""
        query = select(PRUNED_STEPS).where(*self._in_range(PRUNED_STEPS, job_id, after_step + 1))
        pruned = self._records(StepTotals, query.order_by(PRUNED_STEPS.c.step).limit(limit))
        end_step = pruned[-1].step if pruned and len(pruned) == limit else None
        query = step_totals(*self._in_range(STEPS, job_id, after_step + 1, end_step))
        rows = self._connection.execute(query.order_by(STEPS.c.step).limit(limit)).mappings()
        kept = [StepTotals(**row) for row in rows]
        return tuple(sorted((*pruned, *kept), key=lambda each: each.step)[:limit])

    def list_posted_steps(
        self,
        job_id: str,
        run: int | None = None,
        *,
        after_step: int = -1,
        limit: int,
        end_step: int | None = None,
    ) -> tuple[StepTotals, ...]:
        """Return the first `limit` steps of a run in this range that are not pruned, rising.

        Without `run`, those of all runs.
        """
        in_range = self._in_range(STEPS, job_id, after_step + 1, end_step)
        if run is not None:
            in_range.append(STEPS.c.run == run)
        if run:
            # Steps of the run before, of which there may be millions, follow.
            newest = select(FOLDS.c.newest_step).where(self._of(FOLDS, job_id)).scalar_subquery()
            in_range.append(STEPS.c.step <= newest)
        query = step_totals(*in_range).order_by(STEPS.c.step).limit(limit)
        return tuple(StepTotals(**row) for row in self._connection.execute(query).mappings())

    def find_fold_place(self, job_id: str) -> FoldPlace | None:
        """Return the place that the totals of the job's steps have reached; None: no totals."""
        row = self._connection.execute(select(FOLDS).where(self._of(FOLDS, job_id))).one_or_none()
        return None if row is None else record_of(FoldPlace, row)

    def find_fold(self, job_id: str) -> StepFold | None:
        """Return the totals of the job's steps up to this place; None: no totals."""
        parts = select(FOLD_PARTS.c.version, FOLD_PARTS.c.document)
        rows = self._connection.execute(parts.where(self._of(FOLD_PARTS, job_id)))
        documents = {row.version: row.document for row in rows}
        return fold_of(documents) if documents else None

    def list_stage_totals(
        self, job_id: str, *, after_step: int, num_steps: int, before_step: int | None = None
    ) -> tuple[StageTotals, ...]:
        """Return the newest `num_steps` steps in this range, by step, stage, then version.

        Of pruned steps only the newest have stages, as many as `prune_steps` was called with.
        """
        in_range = self._in_range(STEPS, job_id, after_step + 1, before_step)
        query = stage_totals(
            *in_range, STEPS.c.step >= _first_of_newest(STEPS, num_steps, *in_range)
        )
        kept = [StageTotals(**row) for row in self._connection.execute(query).mappings()]
        steps = {each.step for each in kept}
        first_step = min(steps) if len(steps) == num_steps else after_step + 1
        in_range = self._in_range(PRUNED_STAGES, job_id, first_step, before_step)
        oldest = _first_of_newest(PRUNED_STAGES, num_steps, *in_range)
        pruned = self._records(
            StageTotals, select(PRUNED_STAGES).where(*in_range, PRUNED_STAGES.c.step >= oldest)
        )
        numbers = sorted(steps | {each.step for each in pruned})[-num_steps:]
        # Not ordered by the database: databases differ in the place of a missing version.
        totals = [each for each in (*pruned, *kept) if each.step >= numbers[0]]
        return tuple(sorted(totals, key=lambda each: each.place))

    def list_job_steps(self, job_id: str, num_steps: int) -> tuple[JobStep, ...]:
        """Return the newest `num_steps` steps over the ranks that have posted them, rising."""
        of_job = self._of(STEPS, job_id)
        newest = (of_job, STEPS.c.step >= _first_of_newest(STEPS, num_steps, of_job))
        versions = self._versions_of_steps(*newest)
        kept = [
            job_step_of(StepTotals(**row), *versions[row["step"]])
            for row in self._connection.execute(step_totals(*newest)).mappings()
        ]
        query = select(PRUNED_STEPS).where(self._of(PRUNED_STEPS, job_id))
        rows = self._connection.execute(query.order_by(PRUNED_STEPS.c.step.desc()).limit(num_steps))
        pruned = [job_step_of(record_of(StepTotals, row), *pruned_versions(row)) for row in rows]
        return tuple(sorted((*pruned, *kept), key=lambda each: each.step)[-num_steps:])

    def find_pruned(self, job_id: str, steps: Collection[int]) -> frozenset[int]:
        """Return the pruned ones of the steps."""
        of_job = select(PRUNED_STEPS.c.step).where(self._of(PRUNED_STEPS, job_id))
        return frozenset(
            step
            for some in some_at_a_time(steps)
            for step in self._connection.execute(
                of_job.where(PRUNED_STEPS.c.step.in_(some))
            ).scalars()
        )

    def find_step_versions(
        self, job_id: str, ranks: Collection[int], first_step: int, end_step: int
    ) -> dict[tuple[int, int], int | None]:
        """Return the plan version of each step of these ranks in the range, by rank and step."""
        of_job = select(STEPS.c.rank, STEPS.c.step, STEPS.c.plan_version).where(
            *self._in_range(STEPS, job_id, first_step, end_step)
        )
        return {
            (row.rank, row.step): row.plan_version
            for some in some_at_a_time(ranks)
            for row in self._connection.execute(of_job.where(STEPS.c.rank.in_(some)))
        }

    def list_moments(self, job_id: str) -> tuple[StageMoments, ...]:
        """Return the merged moments, by version (none first), then stage."""
        rows = self._connection.execute(select(MOMENTS).where(self._of(MOMENTS, job_id)))
        return tuple(sorted(map(moments_of, rows), key=lambda each: each.place))

    def list_step_details(
        self,
        job_id: str,
        first_step: int,
        *,
        limit: int | None = None,
        ranks: Collection[int] | None = None,
    ) -> tuple[StepDetail, ...]:
        """Return the first `limit` details kept from `first_step` on, by step, then rank.

        With `ranks` only theirs are returned.
        """
        query = (
            select(STEP_DETAILS)
            .where(*self._in_range(STEP_DETAILS, job_id, first_step))
            .order_by(STEP_DETAILS.c.step, STEP_DETAILS.c.rank)
            .limit(limit)
        )
        if ranks is not None:
            query = query.where(STEP_DETAILS.c.rank.in_(ranks))
        return tuple(detail_of(row, job_id) for row in self._connection.execute(query))

    def newest_detail(self, job_id: str, before_step: int) -> int | None:
        """Return the newest step before this one with details; None: no step."""
        older = self._in_range(STEP_DETAILS, job_id, 0, before_step)
        query = select(STEP_DETAILS.c.step).where(*older).order_by(STEP_DETAILS.c.step.desc())
        return self._connection.execute(query.limit(1)).scalar()

    def _key(self, job_id: str) -> str:
        """Return the key of the rows of the job of this name; empty if the job does not exist."""
        if job_id not in self._keys:
            found = self._connection.execute(_KEY_OF_NAME, {"name": job_id})
            key: str | None = found.scalar_one_or_none()
            if key is None:
                return ""
            self._keys[job_id] = key
        return self._keys[job_id]

    def _of(self, table: Table, job_id: str) -> ColumnElement[bool]:
        return table.c.job_id == self._key(job_id)

    def _in_range(
        self, table: Table, job_id: str, first_step: int, end_step: int | None = None
    ) -> list[ColumnElement[bool]]:
        conditions = [self._of(table, job_id), table.c.step >= first_step]
        return conditions if end_step is None else [*conditions, table.c.step < end_step]

    def _versions_of_steps(self, *conditions: ColumnElement[bool]) -> dict[int, StepVersions]:
        """Return the known and the unknown versions that ranks ran in each step."""
        found: dict[int, tuple[set[int | None], set[int]]] = defaultdict(lambda: (set(), set()))
        columns = select(STEPS.c.step, STEPS.c.plan_version, STEPS.c.unknown_version)
        rows = self._connection.execute(columns.where(*conditions).distinct())
        for step, plan_version, unknown_version in rows:
            known, unknown = found[step]
            if unknown_version is None:
                known.add(plan_version)
            else:
                unknown.add(unknown_version)
        return {
            step: (tuple(sorted(known, key=lambda version: version or 0)), tuple(sorted(unknown)))
            for step, (known, unknown) in found.items()
        }

    def _records(
        self, kind: type[RecordT], query: Select[Any], job_id: str | None = None
    ) -> tuple[RecordT, ...]:
        """Return the records of the rows that a query selects, of the job of this name."""
        given = {} if job_id is None else {"job_id": job_id}
        return tuple(record_of(kind, row, **given) for row in self._connection.execute(query))


_Key = TypeVar("_Key", int, RankPlace)


def some_at_a_time(keys: Collection[_Key], *, num_values: int = 1) -> Iterator[list[_Key]]:
    """Yield sorted keys in groups that a statement accepts."""
    rising, most = sorted(set(keys)), _MOST_IN_A_QUERY // num_values
    for start in range(0, len(rising), most):
        yield rising[start : start + most]


def _first_of_newest(
    table: Table, num_steps: int, *conditions: ColumnElement[bool]
) -> ScalarSelect[int]:
    """Return the query of the first of a table's newest steps under these conditions."""
    steps = select(table.c.step).where(*conditions).distinct().order_by(table.c.step.desc())
    return select(func.min(steps.limit(num_steps).subquery().c.step)).scalar_subquery()
