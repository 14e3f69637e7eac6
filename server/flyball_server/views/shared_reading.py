"""One reading of the jobs for all who ask: what was read for one of them serves the others."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager

from flyball_server.jobs.errors import UnknownJobError
from flyball_server.views.job_figures import JobFigures, job_figures
from flyball_server.views.job_reading import AllJobs, JobReading

# All jobs are read for the overview no more often than this, s.
REMEMBERED_S = 0.5
# Jobs that the overview has fresh, those heard of last, whether they have a label or not.
NUM_FRESH = 20


class SharedReading:
    """Reads jobs for one caller after the other; from any thread.

    Args:
        reading: makes what reads them, when it is asked for first.
        clock: monotonic, s.
    """

    def __init__(
        self, reading: Callable[[], JobReading], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._make_reading = reading
        self._clock = clock
        self._guard = threading.Lock()
        self._made: JobReading | None = None
        self._figures: tuple[JobFigures, ...] = ()
        self._forgotten_at_s = float("-inf")

    @contextmanager
    def jobs(self) -> Generator[AllJobs]:
        """All jobs, read now; they stay as they are until the block ends.

        Raises:
            StoreError: the store cannot be read.
        """
        with self._guard:
            yield self._reading().read()

    def figures(self) -> tuple[JobFigures, ...]:
        """All jobs at a glance, those heard of last first; at most `REMEMBERED_S` old.

        Raises:
            StoreError: the store cannot be read.
        """
        with self._guard:
            if self._clock() >= self._forgotten_at_s:
                jobs = self._reading().read(num_fresh=NUM_FRESH)
                figures = [job_figures(facts) for facts in (*jobs.labelled, *jobs.others)]
                figures.sort(key=lambda each: each.job.job_id)
                figures.sort(key=lambda each: each.active_at, reverse=True)
                self._figures = tuple(figures)
                self._forgotten_at_s = self._clock() + REMEMBERED_S
            return self._figures

    def figures_of(self, job_id: str) -> JobFigures:
        """One job at a glance, read now.

        Raises:
            UnknownJobError: no such job.
            StoreError: the store cannot be read.
        """
        with self._guard:
            facts = self._reading().read_one(job_id)
            if facts is None:
                raise UnknownJobError(job_id=job_id)
            return job_figures(facts)

    def _reading(self) -> JobReading:
        if self._made is None:
            self._made = self._make_reading()
        return self._made
