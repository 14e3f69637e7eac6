"""Jobs as Prometheus sees them: read from the store when it asks."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Iterable

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from flyball_server.jobs.errors import StoreError
from flyball_server.prometheus.job_families import Family, job_families
from flyball_server.views.job_reading import AllJobs
from flyball_server.views.shared_reading import SharedReading

_LOG = logging.getLogger(__name__)
_NO_JOBS = AllJobs(labelled=(), others=(), num_by_state=Counter())


class JobsCollector(Collector):
    """Collects the metrics about jobs; several scrapes take turns.

    Args:
        reading: reads them, also for others.
    """

    def __init__(self, reading: SharedReading) -> None:
        self._reading = reading

    def describe(self) -> Iterable[Family]:
        """The metrics without values; nothing is read."""
        return [*job_families(_NO_JOBS), *_of_reading(is_readable=False, seconds=0, num_behind=0)]

    def collect(self) -> Iterable[Family]:
        """The metrics; those of jobs are left out where the store cannot be read."""
        started_s = time.perf_counter()
        try:
            with self._reading.jobs() as jobs:
                families = job_families(jobs)
                everything = (*jobs.labelled, *jobs.others)
                num_behind = sum(not facts.is_caught_up for facts in everything)
        except StoreError as error:
            _LOG.warning("jobs are not in the metrics: %s", error)
            return _of_reading(
                is_readable=False, seconds=time.perf_counter() - started_s, num_behind=0
            )
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
