"""Read models of jobs as they cross the wire; the rest of `mapping`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, fields

from flyball_server.http.mapping.jobs import rendered
from flyball_server.jobs.savings.comparisons import ComparisonProgress
from flyball_server.jobs.savings.intervals import Interval
from flyball_server.planning.documents.predicted_timeline import (
    PredictedTimeline,
    TimelineRow,
    critical_places,
    timeline_rows,
)
from flyball_server.planning.plan import PlanPrediction
from flyball_server.planning.request_options import DEFAULT_POLICY
from flyball_server.views.history import PlanSummary
from flyball_server.views.job_figures import JobFigures
from flyball_server.views.job_totals import NewestSteps
from flyball_server.views.plan_facts import Prediction
from flyball_server.views.plan_timeline import PlanTimeline
from flyball_server.views.report import JobReport, VersionReport
from flyball_server.views.stage_steps import StagesSummary
from flyball_wire import read_models
from flyball_wire.closed_loop import ComparisonView, Estimate, ReportView, SavingView

# Decimals of times in s and of energies in J: what a picture shows of them.
_TIME_DECIMALS, _ENERGY_DECIMALS = 6, 3


def rendered_history(summaries: Iterable[PlanSummary]) -> bytes:
    """The JSON of a history."""
    views = tuple(plan_summary_view(summary) for summary in summaries)
    return rendered(tuple[read_models.PlanSummary, ...], views)


def plan_summary_view(summary: PlanSummary) -> read_models.PlanSummary:
    """A plan version without its instructions."""
    prediction = summary.prediction
    return read_models.PlanSummary(
        version=summary.version,
        kind=summary.kind,
        schedule=summary.schedule,
        policy=summary.policy,
        target=summary.target,
        created_at=summary.created_at.isoformat(),
        first_step=summary.first_step,
        predicted=None if prediction is None else predicted_iteration(prediction),
        stage_clock_mhz=tuple(round(clock_mhz, 3) for clock_mhz in summary.stage_clock_mhz),
    )


def predicted_iteration(prediction: PlanPrediction | Prediction) -> read_models.PredictedIteration:
    """Return what the model predicts for a plan."""
    return read_models.PredictedIteration(
        iteration_time_s=prediction.iteration_time_s,
        energy_j=prediction.energy_j,
        baseline_iteration_time_s=prediction.baseline_iteration_time_s,
        baseline_energy_j=prediction.baseline_energy_j,
        saving_percent=prediction.saving_percent,
        gap_percent=prediction.gap_percent,
    )


def timeline_view(timeline: PlanTimeline) -> read_models.TimelineView:
    """A version's timeline, times to 1e-6 s and energies to 1e-3 J."""
    key = timeline.key
    return read_models.TimelineView(
        job_id=key.job_id,
        version=key.version,
        emulated=key.emulated,
        is_as_planned=timeline.is_as_planned,
        schedule=timeline.schedule,
        num_microbatches=timeline.num_microbatches,
        plan=_timeline_of_plan(timeline.plan, timeline.dp_ranks),
        baseline=_timeline_of_plan(timeline.baseline, timeline.dp_ranks),
    )


def _timeline_of_plan(
    timeline: PredictedTimeline, dp_ranks: Sequence[int]
) -> read_models.TimelineOfPlan:
    whole = timeline.simulation.whole
    return read_models.TimelineOfPlan(
        iteration_time_s=round(whole.iteration_time_s, _TIME_DECIMALS),
        energy_j=round(whole.energy_j, _ENERGY_DECIMALS),
        bubble_fraction=round(whole.bubble_fraction, 6),
        rows=tuple(_row(row) for row in timeline_rows(timeline, dp_ranks)),
        critical_path=critical_places(timeline),
    )


def _row(row: TimelineRow) -> read_models.TimelineRow:
    return read_models.TimelineRow(
        stage=row.stage,
        dp_rank=row.dp_rank,
        blocking_power_w=round(row.blocking_power_w, _ENERGY_DECIMALS),
        kinds=tuple(item.kind.value for item in row.instructions),
        microbatches=tuple(item.microbatch for item in row.instructions),
        chunks=tuple(item.chunk for item in row.instructions),
        clock_mhz=row.clock_mhz,
        start_s=_rounded(row.start_s, _TIME_DECIMALS),
        duration_s=_rounded(row.duration_s, _TIME_DECIMALS),
        energy_j=_rounded(row.energy_j, _ENERGY_DECIMALS),
        float_s=_rounded(row.float_s, _TIME_DECIMALS),
    )


def _rounded(values: Iterable[float], decimals: int) -> tuple[float, ...]:
    return tuple(round(value, decimals) for value in values)


def report_view(report: JobReport) -> ReportView:
    """A job's report."""
    savings, profiling = report.savings, report.profiling
    return ReportView(
        job_id=report.job_id,
        emulated=report.emulated,
        num_ranks=report.num_ranks,
        num_steps=savings.num_steps,
        time_s=savings.time_s,
        energy_j=savings.energy_j,
        saved_j=estimate(report.saved_j),
        profiling_time_s=None if profiling is None else profiling.extra_time_s,
        profiling_energy_j=None if profiling is None else profiling.extra_energy_j,
        versions=tuple(_saving_view(version) for version in report.versions),
    )


def comparison_view(progress: ComparisonProgress) -> ComparisonView:
    """Return how far a comparison is."""
    return ComparisonView(**asdict(progress))


def _saving_view(report: VersionReport) -> SavingView:
    measured, predicted = report.measured, report.predicted
    against = measured.against
    return SavingView(
        version=measured.version,
        policy=predicted.policy,
        target=predicted.target,
        time_s=estimate(measured.time_s),
        energy_j=estimate(measured.energy_j),
        baseline_time_s=estimate(against.time_s),
        baseline_energy_j=estimate(against.energy_j),
        baseline=against.kind,
        slowdown_percent=percent_estimate(against.time_ratio, sign=1),
        saving_percent=percent_estimate(against.energy_ratio, sign=-1),
        saved_j=estimate(measured.saved_j),
        num_steps=measured.num_steps,
        num_left_out=measured.num_left_out,
        predicted_time_s=predicted.iteration_time_s,
        predicted_energy_j=predicted.energy_j,
        predicted_saving_percent=predicted.saving_percent,
    )


def estimate(interval: Interval | None) -> Estimate | None:
    """A figure with its interval."""
    return None if interval is None else Estimate(**asdict(interval))


def percent_estimate(ratio: Interval | None, *, sign: int) -> Estimate | None:
    """Return how far the ratio is above 1 (`sign` -1: below), %."""
    return None if ratio is None else estimate(ratio.scaled(sign * 100, -sign * 100))


_STAGE_FIELDS = tuple(field.name for field in fields(read_models.StageOfStep))


def job_overview(figures: JobFigures) -> read_models.JobOverview:
    """A job in one row."""
    job, spec, compared = figures.job, figures.job.in_force, figures.compared
    against = None if compared is None else compared.against
    return read_models.JobOverview(
        job_id=job.job_id,
        state=str(job.state),
        emulated=figures.emulated,
        num_stages=spec.num_stages,
        num_microbatches=spec.num_microbatches,
        schedule=spec.schedule,
        num_ranks=figures.ranks.expected,
        num_registered=figures.ranks.registered,
        num_present=figures.ranks.present,
        newest_version=figures.newest_version,
        active_version=figures.active_version,
        policy=spec.policy or DEFAULT_POLICY,
        target=figures.target,
        predicted=None if figures.prediction is None else predicted_iteration(figures.prediction),
        measured=None if figures.newest is None else _measured(figures.newest),
        measured_baseline_time_s=None if against is None else estimate(against.time_s),
        measured_baseline_energy_j=None if against is None else estimate(against.energy_j),
        slowdown_percent=None if against is None else percent_estimate(against.time_ratio, sign=1),
        saving_percent=None if against is None else percent_estimate(against.energy_ratio, sign=-1),
        saved_j=estimate(figures.saved_j),
        num_steps=figures.num_steps,
        is_caught_up=figures.is_caught_up,
        problem=job.problem,
        created_at=job.created_at.isoformat(),
        heard_at=figures.active_at.isoformat(),
    )


def stages_of_step(summary: StagesSummary) -> read_models.StagesOfStep:
    """One step by stages."""
    return read_models.StagesOfStep(
        step=summary.step,
        num_ranks=summary.num_ranks,
        plan_versions=summary.plan_versions,
        time_s=summary.time_s,
        energy_j=summary.energy_j,
        stages=tuple(
            read_models.StageOfStep(**{name: getattr(stage, name) for name in _STAGE_FIELDS})
            for stage in summary.stages
        ),
    )


def _measured(newest: NewestSteps) -> read_models.MeasuredIteration:
    return read_models.MeasuredIteration(
        clocks=str(newest.clocks),
        version=newest.version,
        first_step=newest.steps[0],
        last_step=newest.steps[-1],
        num_steps=len(newest.steps),
        iteration_time_s=newest.time_s,
        energy_j=newest.energy_j,
    )
