"""The overview of all jobs, read and rendered once for concurrent callers."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from anyio import to_thread

from flyball_server.jobs.auth.access import Access
from flyball_server.kit.checked_documents import adapter_of
from flyball_server.kit.single_flight import SingleFlight
from flyball_server.views.job_figures import SharedReading
from flyball_wire.read_models import JobOverview

EVERYTHING = "/overview"  # no job has this name


@dataclass(frozen=True)
class RenderedOverview:
    """All jobs as JSON, the most recently active first.

    Attributes:
        jobs: names of jobs, each with its JSON.
        whole: JSON of all jobs, as operators receive it.
    """

    jobs: tuple[tuple[str, bytes], ...]
    whole: bytes

    @classmethod
    def of(cls, jobs: Iterable[tuple[str, bytes]]) -> Self:
        """Return the overview of these jobs."""
        known = tuple(jobs)
        return cls(known, _joined(job for _, job in known))

    def permitted(self, access: Access) -> bytes:
        """Return the JSON of an Overview of the jobs that a caller may read."""
        if access.job_id is None:
            return self.whole
        return _joined(job for job_id, job in self.jobs if access.opens(job_id))


def _joined(jobs: Iterable[bytes]) -> bytes:
    return b'{"jobs":[' + b",".join(jobs) + b"]}"


class Overviews:
    """Rendered overview of all jobs, at most half a second old.

    Args:
        reading: shared reader of the jobs.
    """

    def __init__(self, reading: SharedReading) -> None:
        self._reading = reading
        self._guard = threading.Lock()
        self._overviews: tuple[JobOverview, ...] = ()
        self._rendered = RenderedOverview.of(())
        self._asked = SingleFlight[str, RenderedOverview]()

    async def ask(self) -> RenderedOverview:
        """Return all jobs; concurrent callers share one thread.

        Raises:
            StoreError: they cannot be read.
        """
        return await self._asked.run(EVERYTHING, lambda: to_thread.run_sync(self.read))

    def read(self) -> RenderedOverview:
        """Return all jobs; blocks the calling thread."""
        with self._guard:
            # Read under the lock, so that older figures never replace newer ones.
            jobs = self._reading.overviews()
            if jobs is not self._overviews:
                self._rendered = RenderedOverview.of(
                    (job.job_id, adapter_of(JobOverview).dump_json(job)) for job in jobs
                )
                self._overviews = jobs
            return self._rendered
