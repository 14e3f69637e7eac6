"""The overview as each caller may see it: read and rendered once for all who ask at once."""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self

from flyball_server.http.mapping.jobs import rendered
from flyball_server.http.mapping.views import job_overview
from flyball_server.http.request_batcher import RequestBatcher
from flyball_server.jobs.auth.access import Access
from flyball_server.views.job_figures import JobFigures, SharedReading
from flyball_wire.read_models import JobOverview

EVERYTHING = "/overview"  # no job has this name


@dataclass(frozen=True)
class RenderedOverview:
    """All jobs as JSON, those heard of last first.

    Attributes:
        jobs: each by its name.
        whole: of all of them, joined once for all operators who look.
    """

    jobs: tuple[tuple[str, bytes], ...]
    whole: bytes

    @classmethod
    def of(cls, jobs: Iterable[tuple[str, bytes]]) -> Self:
        """These jobs, joined."""
        known = tuple(jobs)
        return cls(known, _joined(job for _, job in known))

    def seen_by(self, access: Access) -> bytes:
        """The JSON of the `wire_views.Overview` of what is open to a caller."""
        if access.job_id is None:
            return self.whole
        return _joined(job for job_id, job in self.jobs if access.opens(job_id))


def _joined(jobs: Iterable[bytes]) -> bytes:
    return b'{"jobs":[' + b",".join(jobs) + b"]}"


class Overviews:
    """Answers for the overview of all jobs, and of one.

    Attributes:
        of_all: questions for all jobs.
        of_job: questions for one, by its name; UnknownJobError where there is none.
    """

    def __init__(self, reading: SharedReading) -> None:
        self._reading = reading
        self._guard = threading.Lock()
        self._figures: tuple[JobFigures, ...] = ()
        self._rendered = RenderedOverview.of(())
        self.of_all: RequestBatcher[None, RenderedOverview] = RequestBatcher(self._all_jobs)
        self.of_job: RequestBatcher[None, JobOverview] = RequestBatcher(
            functools.partial(_one, reading)
        )

    async def all_jobs(self) -> RenderedOverview:
        """All jobs, at most half a second old.

        Raises:
            StoreError: they cannot be read.
        """
        return await self.of_all.submit(EVERYTHING, None)

    def look(self) -> RenderedOverview:
        """The same, on a thread of the caller's."""
        with self._guard:
            # Not before it: else another's newer ones could be rendered first, and be lost.
            figures = self._reading.figures()
            if figures is not self._figures:
                jobs = ((each.job.job_id, job_overview(each)) for each in figures)
                self._rendered = RenderedOverview.of(
                    (job_id, rendered(JobOverview, view)) for job_id, view in jobs
                )
                self._figures = figures
            return self._rendered

    def _all_jobs(self, key: str, callers: Sequence[None]) -> Sequence[RenderedOverview]:
        del key
        return [self.look()] * len(callers)


def _one(reading: SharedReading, job_id: str, callers: Sequence[None]) -> Sequence[JobOverview]:
    return [job_overview(reading.figures_of(job_id))] * len(callers)
