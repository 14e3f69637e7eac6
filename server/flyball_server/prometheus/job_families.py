"""Every metric about jobs: its name, what it means, and its value for a job or for several."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from flyball_server.jobs.errors import StoreError
from flyball_server.jobs.job_state import JobState
from flyball_server.views.job_figures import SharedReading
from flyball_server.views.job_reading import OTHER_JOBS, AllJobs, JobFacts, StageMeasurement
from flyball_server.views.job_totals import Clocks, JobTotals

OTHER_STAGES = "other"
# A pipeline has more stages than this only on paper.
MOST_STAGES = 64
_HZ_PER_MHZ = 1e6

Family = GaugeMetricFamily | CounterMetricFamily


@dataclass(frozen=True, kw_only=True)
class JobMetric:
    """A figure of a job.

    Attributes:
        name: without `_total`, which a counter gets.
        of_job: None: there is none now.
        is_summed: whether that of jobs without a label of their own is told, added up.
    """

    name: str
    help: str
    of_job: Callable[[JobFacts], float | None]
    is_counter: bool = False
    is_summed: bool = False


def _total(name: str, meaning: str, of_totals: Callable[[JobTotals], float]) -> JobMetric:
    def of_job(facts: JobFacts) -> float | None:
        # Part of a count would look like a counter that began again.
        return of_totals(facts.totals) if facts.is_caught_up else None

    return JobMetric(name=name, help=meaning, of_job=of_job, is_counter=True, is_summed=True)


def _predicted(name: str, meaning: str, field: str) -> JobMetric:
    def of_job(facts: JobFacts) -> float | None:
        return None if facts.prediction is None else getattr(facts.prediction, field)

    return JobMetric(
        name=name, help=f"{meaning}; of the active version, or the newest before.", of_job=of_job
    )


JOB_METRICS = (
    JobMetric(
        name="flyball_ranks_expected",
        help="Ranks that the job is registered with.",
        of_job=lambda facts: facts.ranks.expected,
        is_summed=True,
    ),
    JobMetric(
        name="flyball_ranks_registered",
        help="Ranks of the job that have registered.",
        of_job=lambda facts: facts.ranks.registered,
        is_summed=True,
    ),
    JobMetric(
        name="flyball_ranks_present",
        help="Registered ranks that were heard of lately and have not said that they are done.",
        of_job=lambda facts: facts.ranks.present,
        is_summed=True,
    ),
    JobMetric(
        name="flyball_plan_newest_version",
        help="The job's newest plan version.",
        of_job=lambda facts: facts.newest_version,
    ),
    JobMetric(
        name="flyball_plan_active_version",
        help="The newest plan version whose first step is named.",
        of_job=lambda facts: facts.active_version,
    ),
    _predicted(
        "flyball_predicted_iteration_time_seconds",
        "Predicted time of an iteration on the plan, s",
        "iteration_time_s",
    ),
    _predicted(
        "flyball_predicted_iteration_energy_joules",
        "Predicted energy of an iteration on the plan, J, of the ranks that the profile holds",
        "energy_j",
    ),
    _predicted(
        "flyball_predicted_baseline_iteration_time_seconds",
        "Predicted time of an iteration at the highest clocks, s",
        "baseline_iteration_time_s",
    ),
    _predicted(
        "flyball_predicted_baseline_iteration_energy_joules",
        "Predicted energy of an iteration at the highest clocks, J, of the ranks that the profile"
        " holds",
        "baseline_energy_j",
    ),
    _predicted(
        "flyball_plan_lower_bound_gap_ratio",
        "How far the plan's predicted energy is above its certified lower bound, a share",
        "gap",
    ),
    JobMetric(
        name="flyball_measured_iteration_time_seconds",
        help="Measured time of an iteration, s: mean of the newest alike steps that all ranks"
        " have posted, 16 at the most, of each the slowest rank's.",
        of_job=lambda facts: None if facts.newest is None else facts.newest.time_s,
    ),
    JobMetric(
        name="flyball_measured_iteration_energy_joules",
        help="Measured energy of an iteration, J, all ranks: mean of the same steps.",
        of_job=lambda facts: None if facts.newest is None else facts.newest.energy_j,
    ),
    JobMetric(
        name="flyball_measured_saved_energy_joules",
        help="Saved so far, J: measured steps on plans against measured steps at the highest"
        " clocks, as in the report. A gauge: it falls where a plan costs energy.",
        of_job=lambda facts: None if facts.saved_j is None else facts.saved_j.mean,
    ),
    JobMetric(
        name="flyball_predicted_saved_energy_joules",
        help="Predicted to be saved so far, J: predicted baseline less predicted energy of the"
        " plan, for each step that was run on one. Nothing of it is measured but the steps.",
        of_job=lambda facts: (
            facts.totals.predicted_baseline_j - facts.totals.predicted_j
            if facts.is_caught_up
            else None
        ),
        is_summed=True,
    ),
    _total(
        "flyball_predicted_energy_joules",
        "Predicted energy of the steps that were run on a plan, J.",
        lambda totals: totals.predicted_j,
    ),
    _total(
        "flyball_predicted_baseline_energy_joules",
        "Predicted energy of the same steps, had they been run at the highest clocks, J.",
        lambda totals: totals.predicted_baseline_j,
    ),
    _total(
        "flyball_incomplete_steps",
        "Steps that not all ranks have posted within a minute of measured time.",
        lambda totals: totals.num_incomplete,
    ),
    _total(
        "flyball_unplanned_instructions",
        "Measured instructions that the plan did not expect.",
        lambda totals: totals.num_unplanned,
    ),
    _total(
        "flyball_clock_misses",
        "Times that an SM clock, read back, was below the one that was set.",
        lambda totals: totals.num_clock_misses,
    ),
    _total(
        "flyball_power_capped_clocks",
        "Of the clock misses, those where power held the clock down.",
        lambda totals: totals.num_power_capped,
    ),
    _total(
        "flyball_thermally_capped_clocks",
        "Of the clock misses, those where heat held the clock down.",
        lambda totals: totals.num_thermally_capped,
    ),
)
_OF_JOB = ("job", "emulated")


def job_families(jobs: AllJobs) -> list[Family]:
    """All metrics about jobs, those without a value included."""
    return [
        _jobs_by_state(jobs),
        *(_of_jobs(metric, jobs) for metric in JOB_METRICS),
        *_by_clocks(jobs),
        *_of_stages(jobs),
    ]


def _jobs_by_state(jobs: AllJobs) -> Family:
    family = GaugeMetricFamily(
        "flyball_jobs", "Jobs that the store has, by state.", labels=("state", "emulated")
    )
    for state in JobState:
        for emulated in (False, True):
            family.add_metric(
                (str(state), _flag(emulated)), jobs.num_by_state[str(state), emulated]
            )
    return family


def _of_jobs(metric: JobMetric, jobs: AllJobs) -> Family:
    kind = CounterMetricFamily if metric.is_counter else GaugeMetricFamily
    family: Family = kind(metric.name, metric.help, labels=_OF_JOB)
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
    labels = (*_OF_JOB, "clocks")
    steps = CounterMetricFamily(
        "flyball_steps",
        "Measured steps that all ranks have posted, by what they ran at.",
        labels=labels,
    )
    times = CounterMetricFamily(
        "flyball_step_time_seconds", "Measured time of these steps, s.", labels=labels
    )
    energies = CounterMetricFamily(
        "flyball_step_energy_joules",
        "Measured energy of these steps, J, all ranks; of those whose energy all could read.",
        labels=labels,
    )

    def add(job: str, emulated: bool, several: Sequence[JobFacts]) -> None:
        if not all(facts.is_caught_up for facts in several):
            return
        for clocks in Clocks:
            sums = [facts.totals.sums[clocks] for facts in several]
            key = (job, _flag(emulated), str(clocks))
            steps.add_metric(key, sum(each.num_steps for each in sums))
            times.add_metric(key, sum(each.time_s for each in sums))
            energies.add_metric(key, sum(each.energy_j for each in sums))

    for facts in jobs.labelled:
        add(facts.job.job_id, facts.emulated, [facts])
    for emulated, others in _by_emulation(jobs.others):
        add(OTHER_JOBS, emulated, others)
    return [steps, times, energies]


def _of_stages(jobs: AllJobs) -> list[Family]:
    """Stages from MOST_STAGES on as one: energies added up, of times the longest, clocks' mean."""
    labels = (*_OF_JOB, "stage")
    busy = GaugeMetricFamily(
        "flyball_predicted_stage_busy_seconds",
        "Predicted time that a stage's instructions of an iteration take on the plan, s.",
        labels=labels,
    )
    predicted = GaugeMetricFamily(
        "flyball_predicted_stage_energy_joules",
        "Predicted energy of a stage in an iteration on the plan, J, waiting included.",
        labels=labels,
    )
    times = GaugeMetricFamily(
        "flyball_measured_stage_time_seconds",
        "Measured time of an iteration on the slowest rank of a stage, s: mean of newest steps.",
        labels=labels,
    )
    energies = GaugeMetricFamily(
        "flyball_measured_stage_energy_joules",
        "Measured energy of a stage in an iteration, J, all its ranks: mean of newest steps.",
        labels=labels,
    )
    planned = GaugeMetricFamily(
        "flyball_planned_stage_sm_clock_hertz",
        "SM clock that the active plan asks of a stage's GPUs, Hz: mean over its instructions, each"
        " by its time in the profile.",
        labels=labels,
    )
    clocks = GaugeMetricFamily(
        "flyball_measured_stage_sm_clock_hertz",
        "Measured SM clock of a stage's GPUs, Hz, as read back while they were busy: mean of newest"
        " steps, over the ranks that could read it.",
        labels=labels,
    )
    for facts in jobs.labelled:
        key = (facts.job.job_id, _flag(facts.emulated))
        _add_stages(busy, key, [stage.busy_s for stage in facts.stages], max)
        _add_stages(predicted, key, [stage.energy_j for stage in facts.stages], sum)
        _add_stages(times, key, [stage.time_s for stage in facts.measured_stages], max)
        _add_stages(energies, key, [stage.energy_j for stage in facts.measured_stages], sum)
        planned_hz = [clock_mhz * _HZ_PER_MHZ for clock_mhz in facts.planned_clocks_mhz]
        _add_stages(planned, key, planned_hz, fmean)
        _add_stages(clocks, key, [_clock_hz(stage) for stage in facts.measured_stages], fmean)
    return [busy, predicted, times, energies, planned, clocks]


def _clock_hz(stage: StageMeasurement) -> float | None:
    return None if stage.sm_clock_mhz is None else stage.sm_clock_mhz * _HZ_PER_MHZ


def _add_stages(
    family: GaugeMetricFamily,
    key: tuple[str, str],
    values: Sequence[float | None],
    together: Callable[[Iterable[float]], float],
) -> None:
    for stage, value in enumerate(values[:MOST_STAGES]):
        if value is not None:
            family.add_metric((*key, str(stage)), value)
    rest = [value for value in values[MOST_STAGES:] if value is not None]
    if rest and len(rest) == len(values) - MOST_STAGES:
        family.add_metric((*key, OTHER_STAGES), together(rest))


def _by_emulation(several: Sequence[JobFacts]) -> list[tuple[bool, list[JobFacts]]]:
    """Emulated figures and those of real GPUs are never added up."""
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
