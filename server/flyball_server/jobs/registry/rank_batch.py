"""Ranks that the calls of one transaction refer to, read in one query for thousands."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable

from flyball_server.jobs.errors import OtherStartError, UnknownJobError, UnknownRankError
from flyball_server.jobs.records import JobRecord, RankPlace, RankRecord
from flyball_server.jobs.registry.launch import check_start_id
from flyball_server.jobs.store.sql.job_reader import JobReader
from flyball_server.jobs.store.sql.job_writer import JobWriter


class RankBatch:
    """Ranks of a job that calls refer to, read when the first of them is needed."""

    def __init__(self, reader: JobReader, job_id: str, ranks: Iterable[int]) -> None:
        self._reader = reader
        self._job_id = job_id
        self._called = frozenset(ranks)
        self._changed: dict[int, RankRecord] = {}

    @functools.cached_property
    def job(self) -> JobRecord | None:
        """Return the job; None: it does not exist."""
        return self._reader.find_job(self._job_id)

    @property
    def stages(self) -> dict[int, int]:
        """Return the stages of those of the ranks that the job has."""
        return {rank.rank: rank.stage for rank in self._known.values()}

    def find(self, rank: int) -> RankRecord | None:
        """Return one of the ranks with its changes; None: unknown."""
        return self._changed.get(rank) or self._known.get(rank)

    def require(self, rank: int) -> RankRecord:
        """Return one of the ranks with its changes.

        Raises:
            UnknownJobError: the job does not exist.
            UnknownRankError: the rank does not exist in the job.
        """
        if self.job is None:
            raise UnknownJobError(job_id=self._job_id)
        found = self.find(rank)
        if found is None:
            raise UnknownRankError(job_id=self._job_id, rank=rank)
        return found

    def check_start_of(self, rank: int, start_id: str | None) -> None:
        """Refuse a request of a process of another start of the job; None: not reported.

        An unknown rank has to register first: its process may not have received yet that its job
        has begun another run.

        Raises:
            UnknownJobError: the job does not exist.
            UnknownRankError: the rank does not exist in the job, and belongs to another start.
            OtherStartError: the request is another start's.
        """
        if start_id is None:
            return
        if self.job is None:
            raise UnknownJobError(job_id=self._job_id)
        try:
            check_start_id(self.job, start_id)
        except OtherStartError:
            self.require(rank)
            raise

    def present_at(
        self, places: Iterable[RankPlace], is_gone: Callable[[RankRecord], bool]
    ) -> dict[RankPlace, int]:
        """Return the ranks of other calls at these places that are present, by place.

        The ranks of these calls register now, wherever they were before.
        """
        found = self._reader.find_ranks_at(self._job_id, frozenset(places))
        return {
            rank.place: rank.rank
            for rank in found
            if rank.rank not in self._called and not is_gone(rank)
        }

    def change(self, rank: RankRecord) -> None:
        """Record a changed rank for `save`."""
        self._changed[rank.rank] = rank

    def save(self, writer: JobWriter) -> None:
        """Store all changes."""
        writer.save_ranks(tuple(self._changed.values()))

    @functools.cached_property
    def _known(self) -> dict[int, RankRecord]:
        found = self._reader.find_ranks(self._job_id, self._called)
        return {rank.rank: rank for rank in found}
