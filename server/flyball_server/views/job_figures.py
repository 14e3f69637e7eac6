"""What people see of a job at a glance: its facts as they stood at one moment, frozen."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from flyball_server.jobs.records import ActivationRecord, JobRecord
from flyball_server.jobs.savings.intervals import Interval
from flyball_server.jobs.savings.savings import JobSavings, VersionSavings
from flyball_server.views.job_reading import JobFacts, RankCounts
from flyball_server.views.job_totals import NewestSteps
from flyball_server.views.plan_facts import Prediction


@dataclass(frozen=True, kw_only=True)
class JobFigures:
    """A job in one row.

    Attributes:
        emulated: whether its GPUs are, all or some.
        activations: of all its plan versions, rising.
        target: in force, by its timetable where it has one.
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
