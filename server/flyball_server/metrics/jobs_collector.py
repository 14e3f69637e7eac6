"""Jobs as Prometheus sees them: read from the store when it asks."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from flyball_server.jobs.errors import StoreError
from flyball_server.metrics.job_families import Family, job_families
from flyball_server.metrics.job_reading import AllJobs, JobReading

_LOG = logging.getLogger(__name__)
_NO_JOBS = AllJobs(labelled=(), others=(), num_by_state=Counter())


class JobsCollector(Collector):
    """Collects the metrics about jobs; several scrapes take turns.

    Args:
        reading: made when it is asked for first.
    """

    def __init__(self, reading: Callable[[], JobReading]) -> None:
        self._make_reading = reading
        self._reading: JobReading | None = None
        self._guard = threading.Lock()

    def describe(self) -> Iterable[Family]:
        """The metrics without values; nothing is read."""
        return [*job_families(_NO_JOBS), *_of_reading(is_readable=False, seconds=0, num_behind=0)]

    def collect(self) -> Iterable[Family]:
        """The metrics; those of jobs are left out where the store cannot be read."""
        started_s = time.perf_counter()
        with self._guard:
            if self._reading is None:
                self._reading = self._make_reading()
            try:
                jobs = self._reading.read()
            except StoreError as error:
                _LOG.warning("jobs are not in the metrics: %s", error)
                return _of_reading(
                    is_readable=False, seconds=time.perf_counter() - started_s, num_behind=0
                )
            families = job_families(jobs)
        num_behind = sum(not facts.is_caught_up for facts in (*jobs.labelled, *jobs.others))
        seconds = time.perf_counter() - started_s
        return [
            *families,
            *_of_reading(is_readable=True, seconds=seconds, num_behind=num_behind),
        ]


def _of_reading(*, is_readable: bool, seconds: float, num_behind: int) -> list[Family]:
    return [
        GaugeMetricFamily(
            "flyball_store_readable",
            "1 where the job store could be read for this answer, else 0.",
            value=float(is_readable),
        ),
        GaugeMetricFamily(
            "flyball_jobs_reading_seconds",
            "What reading the jobs for this answer took, s.",
            value=seconds,
        ),
        GaugeMetricFamily(
            "flyball_jobs_behind",
            "Jobs whose older steps are still being read, after a start; counters of theirs are"
            " left out until then.",
            value=num_behind,
        ),
    ]
