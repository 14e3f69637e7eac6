"""Metrics about jobs: name, help text and value, for one job or for several."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from flyball_server.jobs.errors import StoreError
from flyball_server.views.job_figures import SharedReading
from flyball_server.views.job_reading import OTHER_JOBS, AllJobs, JobFacts
from flyball_wire.messages import JobState
from flyball_wire.read_models import StepClocks

OTHER_STAGES = "other"
# Limit beyond any real pipeline's number of stages.
MOST_STAGES = 64
_HZ_PER_MHZ = 1e6

Family = GaugeMetricFamily | CounterMetricFamily
Values = Sequence[float | None]


@dataclass(frozen=True, kw_only=True)
class JobMetric:
    """Metric of a job.

    Attributes:
        name: metric name without `_total`, which counters get.
        of_job: function that returns the value; None: no value now.
        is_summed: true if the sum over the jobs without a label of their own is exported too.
    """

    name: str
    help: str
    of_job: Callable[[JobFacts], float | None]
    is_counter: bool = False
    is_summed: bool = False


def _attribute(path: str) -> Callable[[JobFacts], Any]:
    """Return a reader of `JobFacts.<path>`; it returns None if a part of the path is None."""

    def read(facts: JobFacts) -> object:
        value: object = facts
        for name in path.split("."):
            value = None if value is None else getattr(value, name)
        return value

    return read


def _when_caught_up(of_job: Callable[[JobFacts], float]) -> Callable[[JobFacts], float | None]:
    """Leave out partial counts, which would appear as counter resets."""
    return lambda facts: of_job(facts) if facts.is_caught_up else None


def _gap(facts: JobFacts) -> float | None:
    gap_percent: float | None = _attribute("prediction.gap_percent")(facts)
    return None if gap_percent is None else gap_percent / 100


def _predicted_saved_j(facts: JobFacts) -> float:
    return facts.fold.predicted_baseline_j - facts.fold.predicted_j


_OF_THE_VERSION = "of the active version, or the newest while none is active."
_GAUGES = (
    ("flyball_plan_newest_version", "newest_version", "Newest plan version of the job."),
    (
        "flyball_plan_active_version",
        "active_version",
        "Newest plan version that has a first step.",
    ),
    (
        "flyball_predicted_iteration_time_seconds",
        "prediction.iteration_time_s",
        f"Predicted time of an iteration on the plan, s; {_OF_THE_VERSION}",
    ),
    (
        "flyball_predicted_iteration_energy_joules",
        "prediction.energy_j",
        "Predicted energy of an iteration on the plan, J, over the ranks in the profile;"
        f" {_OF_THE_VERSION}",
    ),
    (
        "flyball_predicted_baseline_iteration_time_seconds",
        "prediction.baseline_iteration_time_s",
        f"Predicted time of an iteration at the highest clocks, s; {_OF_THE_VERSION}",
    ),
    (
        "flyball_predicted_baseline_iteration_energy_joules",
        "prediction.baseline_energy_j",
        "Predicted energy of an iteration at the highest clocks, J, over the ranks in the"
        f" profile; {_OF_THE_VERSION}",
    ),
    (
        "flyball_measured_iteration_time_seconds",
        "newest.iteration_time_s",
        "Measured time of an iteration, s: mean of the slowest rank's times over at most 16 of"
        " the newest steps that all ranks have posted and that ran at the same clocks.",
    ),
    (
        "flyball_measured_iteration_energy_joules",
        "newest.energy_j",
        "Measured energy of an iteration, J, all ranks: mean over the same steps.",
    ),
    (
        "flyball_measured_saved_energy_joules",
        "savings.saved_j.mean",
        "Measured energy saved so far, J: steps on plans against steps at the highest clocks, as in"
        " the report. A gauge: it falls where a plan costs energy.",
    ),
)
_OF_OWN_PLANS = "of the newest step that all ranks have posted, where it had a plan of its own."
_OWN_PLAN_GAUGES = (
    (
        "flyball_own_plan_slack_ratio",
        "own_plan.slack",
        "Share of the deadline that pipelines would have waited at the highest clocks, mean over"
        f" the ranks with a plan; {_OF_OWN_PLANS}",
    ),
    (
        "flyball_own_plan_predicted_saved_joules",
        "own_plan.predicted_saved_j",
        f"Predicted energy that the plan saves, J, all ranks, or the first 1024; {_OF_OWN_PLANS}",
    ),
)
_SUMMED_GAUGES = (
    ("flyball_ranks_expected", "ranks.expected", "Ranks that the job expects."),
    ("flyball_ranks_registered", "ranks.registered", "Ranks of the job that have registered."),
    (
        "flyball_ranks_present",
        "ranks.present",
        "Registered ranks with a recent heartbeat that have not left.",
    ),
    (
        "flyball_ranks_under_other_conditions",
        "ranks.changed",
        "Ranks whose GPU runs under a power limit, power profile, memory clock or ECC mode that the"
        " profile was not measured under.",
    ),
    (
        "flyball_ranks_without_clocks",
        "ranks.without_clocks",
        "Present ranks that set no clocks: their governor has ended, or never could set one.",
    ),
    ("flyball_stragglers", "num_stragglers", "Ranks that are stragglers, announced or detected."),
)
_COUNTERS = (
    (
        "flyball_predicted_energy_joules",
        "fold.predicted_j",
        "Predicted energy of the steps that ran on a plan, J.",
    ),
    (
        "flyball_predicted_baseline_energy_joules",
        "fold.predicted_baseline_j",
        "Predicted energy of the same steps at the highest clocks, J.",
    ),
    (
        "flyball_incomplete_steps",
        "fold.num_incomplete",
        "Steps that some ranks had not posted when later ones had been posted for a minute.",
    ),
    (
        "flyball_unplanned_instructions",
        "fold.num_unplanned",
        "Measured instructions that are not in the plan.",
    ),
    (
        "flyball_clock_misses",
        "fold.num_clock_misses",
        "Readings of an SM clock below the clock that was set.",
    ),
    (
        "flyball_power_capped_clocks",
        "fold.num_power_capped",
        "Clock misses caused by a power cap.",
    ),
    (
        "flyball_thermally_capped_clocks",
        "fold.num_thermally_capped",
        "Clock misses caused by heat.",
    ),
)
JOB_METRICS = (
    *(
        JobMetric(name=name, help=text, of_job=_attribute(path))
        for name, path, text in (*_GAUGES, *_OWN_PLAN_GAUGES)
    ),
    *(
        JobMetric(name=name, help=text, of_job=_attribute(path), is_summed=True)
        for name, path, text in _SUMMED_GAUGES
    ),
    JobMetric(
        name="flyball_registrations_refused",
        help="1 if a registration of the job or a rank was refused in the last hour and none was"
        " taken since, else 0.",
        of_job=lambda facts: float(facts.refused is not None),
        is_summed=True,
    ),
    JobMetric(
        name="flyball_plan_lower_bound_gap_ratio",
        help="Share by which the plan's predicted energy is above its proven lower bound;"
        f" {_OF_THE_VERSION}",
        of_job=_gap,
    ),
    JobMetric(
        name="flyball_predicted_saved_energy_joules",
        help="Predicted energy saved so far, J: predicted energy of the baseline minus that of the"
        " plan, over the steps that ran on a plan. Only the number of steps is measured.",
        of_job=_when_caught_up(_predicted_saved_j),
        is_summed=True,
    ),
    *(
        JobMetric(
            name=name,
            help=text,
            of_job=_when_caught_up(_attribute(path)),
            is_counter=True,
            is_summed=True,
        )
        for name, path, text in _COUNTERS
    ),
)
# For each kind of clocks: name, attribute of the sum, help text.
_CLOCKS_METRICS = (
    (
        "flyball_steps",
        "num_steps",
        "Measured steps that all ranks have posted, by the clocks they ran at.",
    ),
    ("flyball_step_time_seconds", "time_s", "Measured time of these steps, s."),
    (
        "flyball_step_energy_joules",
        "energy_j",
        "Measured energy of these steps, J, over all ranks; only steps that all ranks could read.",
    ),
)


def _hertz(values_mhz: Values) -> Values:
    return [None if mhz is None else mhz * _HZ_PER_MHZ for mhz in values_mhz]


# For each stage: name, values by stage, their aggregate from MOST_STAGES on, help text.
_STAGE_METRICS: tuple[
    tuple[str, Callable[[JobFacts], Values], Callable[[Iterable[float]], float], str], ...
] = (
    (
        "flyball_predicted_stage_busy_seconds",
        lambda facts: [stage.busy_s for stage in facts.stages],
        max,
        "Predicted busy time of a stage in an iteration on the plan, s.",
    ),
    (
        "flyball_predicted_stage_energy_joules",
        lambda facts: [stage.energy_j for stage in facts.stages],
        sum,
        "Predicted energy of a stage in an iteration on the plan, J, waiting included.",
    ),
    (
        "flyball_measured_stage_time_seconds",
        lambda facts: [stage.time_s for stage in facts.measured_stages],
        max,
        "Measured iteration time of a stage's slowest rank, s: mean of the newest steps.",
    ),
    (
        "flyball_measured_stage_energy_joules",
        lambda facts: [stage.energy_j for stage in facts.measured_stages],
        sum,
        "Measured energy of a stage in an iteration, J, all its ranks: mean of the newest steps.",
    ),
    (
        "flyball_planned_stage_sm_clock_hertz",
        lambda facts: _hertz(facts.planned_clocks_mhz),
        fmean,
        "SM clock that the active plan sets on a stage's GPUs, Hz: mean over its instructions,"
        " weighted by their times in the profile.",
    ),
    (
        "flyball_measured_stage_sm_clock_hertz",
        lambda facts: _hertz([stage.sm_clock_mhz for stage in facts.measured_stages]),
        fmean,
        "Measured SM clock of a stage's GPUs, Hz, read while they were busy: mean of the newest"
        " steps over the ranks that could read it.",
    ),
)
_LABELS = ("training_job", "emulated")


def job_families(jobs: AllJobs) -> list[Family]:
    """Return all metrics about jobs, those without a value included."""
    return [
        _jobs_by_state(jobs),
        *(_of_jobs(metric, jobs) for metric in JOB_METRICS),
        *_by_clocks(jobs),
        *_of_stages(jobs),
    ]


def _jobs_by_state(jobs: AllJobs) -> Family:
    family = GaugeMetricFamily(
        "flyball_jobs", "Jobs in the store, by state.", labels=("state", "emulated")
    )
    for state in JobState:
        for emulated in (False, True):
            family.add_metric(
                (str(state), _flag(emulated)), jobs.num_by_state[str(state), emulated]
            )
    return family


def _of_jobs(metric: JobMetric, jobs: AllJobs) -> Family:
    kind = CounterMetricFamily if metric.is_counter else GaugeMetricFamily
    family: Family = kind(metric.name, metric.help, labels=_LABELS)
    for facts in jobs.labelled:
        value = metric.of_job(facts)
        if value is not None:
            family.add_metric((facts.job.job_id, _flag(facts.emulated)), value)
    for emulated, others in _by_emulation(jobs.others) if metric.is_summed else ():
        values = [value for facts in others if (value := metric.of_job(facts)) is not None]
        if len(values) == len(others):
            family.add_metric((OTHER_JOBS, _flag(emulated)), sum(values))
    return family


def _by_clocks(jobs: AllJobs) -> list[Family]:
    several = [(facts.job.job_id, facts.emulated, [facts]) for facts in jobs.labelled]
    several += [(OTHER_JOBS, emulated, part) for emulated, part in _by_emulation(jobs.others)]
    families: list[Family] = []
    for name, attribute, text in _CLOCKS_METRICS:
        family = CounterMetricFamily(name, text, labels=(*_LABELS, "clocks"))
        for job, emulated, part in several:
            for clocks in StepClocks if all(facts.is_caught_up for facts in part) else ():
                total = sum(getattr(facts.fold.sums[clocks], attribute) for facts in part)
                family.add_metric((job, _flag(emulated), clocks), total)
        families.append(family)
    return families


def _of_stages(jobs: AllJobs) -> list[Family]:
    """Return stage metrics; from MOST_STAGES on as one: energy sums, longest times, mean clocks."""
    families: list[Family] = []
    for name, values_of, together, text in _STAGE_METRICS:
        family = GaugeMetricFamily(name, text, labels=(*_LABELS, "stage"))
        for facts in jobs.labelled:
            key = (facts.job.job_id, _flag(facts.emulated))
            _add_stages(family, key, values_of(facts), together)
        families.append(family)
    return families


def _add_stages(
    family: GaugeMetricFamily,
    key: tuple[str, str],
    values: Values,
    together: Callable[[Iterable[float]], float],
) -> None:
    for stage, value in enumerate(values[:MOST_STAGES]):
        if value is not None:
            family.add_metric((*key, str(stage)), value)
    rest = [value for value in values[MOST_STAGES:] if value is not None]
    if rest and len(rest) == len(values) - MOST_STAGES:
        family.add_metric((*key, OTHER_STAGES), together(rest))


def _by_emulation(several: Sequence[JobFacts]) -> list[tuple[bool, list[JobFacts]]]:
    """Separate emulated jobs from those on real GPUs; their figures are never added up."""
    parts = [
        (emulated, [facts for facts in several if facts.emulated is emulated])
        for emulated in (False, True)
    ]
    return [(emulated, part) for emulated, part in parts if part]


def _flag(value: bool) -> str:
    return str(value).lower()


_LOG = logging.getLogger(__name__)
_NO_JOBS = AllJobs(labelled=(), others=(), num_by_state=Counter())


class JobsCollector(Collector):
    """Collector of the metrics about jobs; several scrapes take turns.

    Args:
        reading: shared reader of the jobs.
    """

    def __init__(self, reading: SharedReading) -> None:
        self._reading = reading

    def describe(self) -> Iterable[Family]:
        """Yield the metrics without values; nothing is read."""
        return [*job_families(_NO_JOBS), *_of_reading(is_readable=False, seconds=0, num_behind=0)]

    def collect(self) -> Iterable[Family]:
        """Yield the metrics; those of jobs are left out if the store cannot be read."""
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
            "1 if the job store could be read for this answer, else 0.",
            value=float(is_readable),
        ),
        GaugeMetricFamily(
            "flyball_jobs_reading_seconds",
            "Time taken to read the jobs for this answer, s.",
            value=seconds,
        ),
        GaugeMetricFamily(
            "flyball_jobs_behind",
            "Jobs whose older steps are still being read after a start; their counters are left"
            " out until then.",
            value=num_behind,
        ),
    ]
