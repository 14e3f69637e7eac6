"""Overview of each job: its facts at one moment, frozen."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from flyball_server.jobs.errors import UnknownJobError
from flyball_server.jobs.records import JobRecord
from flyball_server.jobs.savings.headline import headline_of
from flyball_server.jobs.store.sql.job_reader import JobReader
from flyball_server.views.job_reading import AllJobs, JobFacts, JobReading
from flyball_wire.closed_loop import ComparisonStatus
from flyball_wire.read_models import JobOverview
from flyball_wire.savings import MeasuredSavings


def job_overview(facts: JobFacts) -> JobOverview:
    """Return an immutable copy of a job's current figures."""
    job, spec, savings = facts.job, facts.job.spec, facts.savings
    policy, target = facts.options or (spec.policy, spec.target)
    with_steps = [version for version in savings.versions if version.num_steps]
    compared = with_steps[-1] if with_steps else MeasuredSavings(version=0)
    return JobOverview(
        job_id=job.job_id,
        state=job.state,
        emulated=facts.emulated,
        num_stages=spec.num_stages,
        num_microbatches=spec.num_microbatches,
        schedule=spec.schedule,
        num_ranks=facts.ranks.expected,
        num_registered=facts.ranks.registered,
        num_present=facts.ranks.present,
        newest_version=facts.newest_version,
        active_version=facts.active_version,
        policy=policy,
        target=target,
        missed=facts.missed,
        saved_of_j=savings.saved_of_j,
        factors=facts.factors,
        delays=facts.delays,
        condition=facts.condition,
        own_plan=facts.own_plan,
        headline=headline_of(
            savings.versions,
            facts.prediction,
            active_version=facts.active_version,
            slow_ranks=facts.slow_ranks,
        ),
        predicted=facts.prediction,
        measured=facts.newest,
        measured_baseline_time_s=compared.baseline_time_s,
        measured_baseline_energy_j=compared.baseline_energy_j,
        slowdown_percent=compared.slowdown_percent,
        saving_percent=compared.saving_percent,
        saved_j=savings.saved_j,
        num_steps=facts.fold.num_steps,
        num_unknown_steps=savings.num_unknown,
        deviations=(*compared.deviations, *savings.deviations),
        is_caught_up=facts.is_caught_up,
        problem=job.problem,
        created_at=job.created_at.isoformat(),
        last_seen_at=facts.active_at.isoformat(),
    )


# Period in s at which all jobs are read for the overview.
REMEMBERED_S = 0.5
# Number of jobs that are up to date in the overview, the latest callers, labelled or not.
NUM_FRESH = 20


@dataclass(frozen=True, kw_only=True)
class JobSnapshot:
    """A job at one moment."""

    #: Reader of the transaction that everything is read in.
    reader: JobReader
    job: JobRecord
    overview: JobOverview
    comparison: ComparisonStatus


class SharedReading:
    """Reader of jobs shared by several callers, one at a time; thread-safe.

    Args:
        reading: the reader.
        clock: monotonic, s.
    """

    def __init__(self, reading: JobReading, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._reading = reading
        self._clock = clock
        self._guard = threading.Lock()
        self._overviews: tuple[JobOverview, ...] = ()
        self._forgotten_at_s = float("-inf")

    @contextmanager
    def jobs(self) -> Generator[AllJobs]:
        """Read all jobs; they do not change until the block ends.

        Raises:
            StoreError: the store cannot be read.
        """
        with self._guard:
            yield self._reading.read()

    def overviews(self) -> tuple[JobOverview, ...]:
        """Return all jobs, most recently active first; at most `REMEMBERED_S` old.

        Raises:
            StoreError: the store cannot be read.
        """
        with self._guard:
            if self._clock() >= self._forgotten_at_s:
                jobs = self._reading.read(num_fresh=NUM_FRESH)
                facts = sorted((*jobs.labelled, *jobs.others), key=lambda each: each.job.job_id)
                facts.sort(key=lambda each: each.active_at, reverse=True)
                self._overviews = tuple(map(job_overview, facts))
                self._forgotten_at_s = self._clock() + REMEMBERED_S
            return self._overviews

    def overview_of(self, job_id: str) -> JobOverview:
        """Return the overview of one job, read now.

        Raises:
            UnknownJobError: the job does not exist.
            StoreError: the store cannot be read.
        """
        with self.snapshot(job_id) as snapshot:
            return snapshot.overview

    @contextmanager
    def snapshot(self, job_id: str) -> Generator[JobSnapshot]:
        """Read one job now; what else is read of it in the block is of the same moment.

        Raises:
            UnknownJobError: the job does not exist.
            StoreError: the store cannot be read.
        """
        with ExitStack() as stack:
            with self._guard:
                reader = stack.enter_context(self._reading.reading())
                facts = self._reading.read_one(reader, job_id)
                if facts is None:
                    raise UnknownJobError(job_id=job_id)
                snapshot = JobSnapshot(
                    reader=reader,
                    job=facts.job,
                    overview=job_overview(facts),
                    comparison=facts.comparison,
                )
            yield snapshot
