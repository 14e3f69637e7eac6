"""Use case: what a job has measured so far, and what each of its plans has saved."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from flyball_server.jobs.loop_state import ProfilingResult
from flyball_server.jobs.measurements.step_reading import all_step_kinds, whole_steps
from flyball_server.jobs.records import PlanRecord
from flyball_server.jobs.registry.inspection import require_job
from flyball_server.jobs.savings.intervals import Interval
from flyball_server.jobs.savings.savings import JobSavings, SavingsFold, VersionSavings
from flyball_server.jobs.services import JobServices
from flyball_server.jobs.store.contract import JobReader
from flyball_server.planning.plan import PlanPrediction


@dataclass(frozen=True, kw_only=True)
class VersionReport:
    """A plan version that was run: measured and predicted."""

    measured: VersionSavings
    predicted: PlanPrediction


@dataclass(frozen=True, kw_only=True)
class JobReport:
    """Measurements of a job.

    Attributes:
        emulated: whether its GPUs are, all or some.
        num_ranks: whose measurements make a step whole.
        profiling: how online profiling went; None: the profile was given.
        versions: those that were run, without the ones of profiling.
    """

    job_id: str
    emulated: bool
    num_ranks: int
    savings: JobSavings
    profiling: ProfilingResult | None
    versions: tuple[VersionReport, ...]

    @property
    def saved_j(self) -> Interval | None:
        """Saved by all versions together, J; what profiling added is told apart."""
        return self.savings.saved_j


def get_report(services: JobServices, job_id: str) -> JobReport:
    """Return what the job has measured so far; time grows with its steps, memory does not.

    Raises:
        UnknownJobError: no such job.
    """
    with services.store.reading() as reader:
        job = require_job(reader, job_id)
        ranks = reader.list_ranks(job_id)
        records = {record.version: record for record in reader.list_plans(job_id)}
        profiling = reader.find_loop_state(job_id).profiling
        savings = _savings(reader, job_id, records, job.in_force.num_ranks)
    return JobReport(
        job_id=job_id,
        emulated=job.in_force.emulated or any(rank.emulated for rank in ranks),
        num_ranks=job.in_force.num_ranks,
        savings=savings,
        profiling=profiling,
        versions=tuple(
            VersionReport(measured=measured, predicted=plan)
            for measured in savings.versions
            if measured.version in records
            and isinstance(plan := records[measured.version].plan, PlanPrediction)
        ),
    )


def _savings(
    reader: JobReader, job_id: str, records: Mapping[int, PlanRecord], num_ranks: int
) -> JobSavings:
    fold = SavingsFold(all_step_kinds(records.values()))
    for step in whole_steps(reader, job_id, num_ranks):
        fold.add(step)
    return fold.so_far()
