"""The ranks that calls of one transaction are about, thousands of them read in one look."""

from __future__ import annotations

import functools
from collections.abc import Iterable

from flyball_server.jobs.errors import OtherRunError, UnknownJobError, UnknownRankError
from flyball_server.jobs.records import JobRecord, RankRecord
from flyball_server.jobs.registry.launch import check_run_id
from flyball_server.jobs.store.contract import JobReader, JobWriter


class RankBatch:
    """Those ranks of a job that calls name, read with the first of them that is needed.

    Args:
        reader: of the transaction that the calls are worked on in.
        job_id: the job that they name.
        ranks: numbers of the ranks of these calls.
    """

    def __init__(self, reader: JobReader, job_id: str, ranks: Iterable[int]) -> None:
        self._reader = reader
        self._job_id = job_id
        self._called = frozenset(ranks)
        self._changed: dict[int, RankRecord] = {}

    @functools.cached_property
    def job(self) -> JobRecord | None:
        """The job; None: there is none."""
        return self._reader.find_job(self._job_id)

    def find(self, rank: int) -> RankRecord | None:
        """One of them as it is now; None: it is not known."""
        return self._changed.get(rank) or self._known.get(rank)

    def require(self, rank: int) -> RankRecord:
        """One of them as it is now.

        Raises:
            UnknownJobError: no such job.
            UnknownRankError: no such rank in it.
        """
        if self.job is None:
            raise UnknownJobError(job_id=self._job_id)
        found = self.find(rank)
        if found is None:
            raise UnknownRankError(job_id=self._job_id, rank=rank)
        return found

    def check_run_of(self, rank: int, run_id: str | None) -> None:
        """Refuse what a process of another run of the job still sends; None: it told of none.

        A rank that the job does not know is to register first: a process whose job has begun
        anew without it has yet to hear of that, and of its new run.

        Raises:
            UnknownJobError: no such job.
            UnknownRankError: no such rank in it, and it is another run's.
            OtherRunError: it is another run's.
        """
        if run_id is None:
            return
        if self.job is None:
            raise UnknownJobError(job_id=self._job_id)
        try:
            check_run_id(self.job, run_id)
        except OtherRunError:
            self.require(rank)
            raise

    def change(self, rank: RankRecord) -> None:
        """Note what becomes of a rank, for `save`."""
        self._changed[rank.rank] = rank

    def save(self, writer: JobWriter) -> None:
        """Store all changes."""
        writer.save_ranks(tuple(self._changed.values()))

    @functools.cached_property
    def _known(self) -> dict[int, RankRecord]:
        found = self._reader.find_ranks(self._job_id, self._called)
        return {rank.rank: rank for rank in found}
