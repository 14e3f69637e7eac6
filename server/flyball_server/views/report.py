"""Use case: the measurements of a job so far, with the savings of each of its plans."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from flyball_server.jobs.findings.announcements import slow_ranks
from flyball_server.jobs.lifecycle.job_life import is_emulated, no_clocks_notes
from flyball_server.jobs.measurements.step_fold import StepFold
from flyball_server.jobs.measurements.step_reading import predicted_iteration, read_fold
from flyball_server.jobs.registry.inspection import JobSummary, gpu_notes, shape_notes, summarise
from flyball_server.jobs.savings.energy_scopes import common_scope
from flyball_server.jobs.savings.headline import headline_of
from flyball_server.jobs.savings.savings import savings_of
from flyball_server.jobs.services import JobServices
from flyball_server.jobs.store.sql.job_reader import JobReader
from flyball_server.views.planned_delays import planned_delays
from flyball_wire.read_models import PredictedIteration
from flyball_wire.savings import JobReport, MeasuredSavings, VersionSavings


def get_report(services: JobServices, job_id: str) -> JobReport:
    """Return the job's measurements so far, from its running totals.

    Raises:
        UnknownJobError: the job does not exist.
    """
    with services.store.reading() as reader:
        summary = summarise(reader, reader.require_job(job_id))
        job = summary.job
        loop_state = reader.find_loop_state(job_id)
        fold = read_fold(reader, job)
        predicted = _predicted(reader, summary, fold)
    savings = savings_of(fold, loop_state.gpu_changes)
    profiling, work_note = loop_state.profiling, loop_state.work_note
    return JobReport(
        job_id=job_id,
        emulated=is_emulated(job, summary.ranks),
        num_ranks=job.spec.num_expected_ranks,
        num_steps=savings.num_steps,
        time_s=savings.time_s,
        energy_j=savings.energy_j,
        saved_j=savings.saved_j,
        num_profiling_steps=None if profiling is None else profiling.num_steps,
        profiling_time_s=None if profiling is None else profiling.extra_time_s,
        profiling_energy_j=None if profiling is None else profiling.extra_energy_j,
        versions=tuple(_version_savings(savings.versions, fold)),
        num_unknown_steps=savings.num_unknown,
        deviations=savings.deviations,
        notes=(
            *shape_notes(summary),
            *no_clocks_notes(summary.ranks),
            *gpu_notes(summary),
            *(() if work_note is None else (work_note,)),
        ),
        energy_scope=common_scope(summary.ranks),
        saved_of_j=savings.saved_of_j,
        factors=services.factors,
        delays=planned_delays(job.spec, loop_state.planned_inputs),
        order_advice=loop_state.order_advice,
        headline=headline_of(
            savings.versions,
            predicted,
            active_version=summary.active_version,
            slow_ranks=slow_ranks(loop_state),
        ),
    )


def _predicted(reader: JobReader, summary: JobSummary, fold: StepFold) -> PredictedIteration | None:
    """Return the prediction for the version in force; None: no plan, or one of profiling."""
    version = summary.active_version or summary.newest_version or 0
    if version in fold.versions:
        return fold.versions[version].predicted
    record = reader.find_plan(summary.job.job_id, version)
    if record is None:
        return None
    profile = reader.find_profile(summary.job.job_id)
    return predicted_iteration(record.plan, profile, fold.rule.num_ranks)


def _version_savings(
    versions: Iterable[MeasuredSavings], fold: StepFold
) -> Iterator[VersionSavings]:
    """Yield the measured savings of versions beside what was predicted for them."""
    for measured in versions:
        of_version = fold.versions[measured.version]
        predicted = of_version.predicted
        if predicted is not None:
            yield VersionSavings(
                **vars(measured),
                policy=of_version.policy,
                target=of_version.target,
                predicted_time_s=predicted.iteration_time_s,
                predicted_energy_j=predicted.energy_j,
                predicted_saving_percent=predicted.saving_percent,
                compared=predicted.compared,
            )
