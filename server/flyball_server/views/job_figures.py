"""Key figures of a job: its facts at one moment, frozen."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime

from flyball_server.jobs.errors import UnknownJobError
from flyball_server.jobs.records import ActivationRecord, JobRecord
from flyball_server.jobs.savings.intervals import Interval
from flyball_server.jobs.savings.savings import JobSavings, VersionSavings
from flyball_server.views.job_reading import AllJobs, JobFacts, JobReading, RankCounts
from flyball_server.views.job_totals import NewestSteps
from flyball_server.views.plan_facts import Prediction


@dataclass(frozen=True, kw_only=True)
class JobFigures:
    """A job in one row.

    Attributes:
        emulated: whether its GPUs are, all or some.
        activations: of all its plan versions, rising.
        target: the current one, by its timetable where it has one.
        prediction: of the active version, or of the newest before there is one.
        newest: the newest complete steps that are alike.
        compared: the newest version that has steps, against its baseline; None: none has.
        saved_j: by all versions with a measured baseline, J.
        num_steps: that all ranks have posted.
        is_caught_up: whether all of them are in these figures.
        active_at: when it was last heard of, UTC.
    """

    job: JobRecord
    emulated: bool
    ranks: RankCounts
    activations: tuple[ActivationRecord, ...]
    newest_version: int | None
    active_version: int | None
    target: str
    prediction: Prediction | None
    newest: NewestSteps | None
    compared: VersionSavings | None
    saved_j: Interval | None
    num_steps: int
    is_caught_up: bool
    active_at: datetime


def job_figures(facts: JobFacts) -> JobFigures:
    """The figures of a job, which do not change when its facts do."""
    savings = facts.totals.savings()
    return JobFigures(
        job=facts.job,
        emulated=facts.emulated,
        ranks=facts.ranks,
        activations=facts.activations,
        newest_version=facts.newest_version,
        active_version=facts.active_version,
        target=facts.planned_target or facts.job.in_force.target,
        prediction=facts.prediction,
        newest=facts.newest,
        compared=_newest_with_steps(savings),
        saved_j=savings.saved_j,
        num_steps=facts.totals.num_steps,
        is_caught_up=facts.is_caught_up,
        active_at=facts.active_at,
    )


def _newest_with_steps(savings: JobSavings) -> VersionSavings | None:
    with_steps = (version for version in savings.versions if version.num_steps)
    return max(with_steps, key=lambda version: version.version, default=None)


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
