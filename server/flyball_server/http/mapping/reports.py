"""Reports and comparisons as they cross the wire; the rest of `mapping`."""

from __future__ import annotations

from dataclasses import asdict

from flyball_server.jobs.savings.comparisons import ComparisonProgress
from flyball_server.jobs.savings.intervals import Interval
from flyball_server.views.report import JobReport, VersionReport
from flyball_wire.closed_loop import ComparisonView, Estimate, ReportView, SavingView


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
    """How far a comparison is."""
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
    """How far the ratio is above 1 (`sign` -1: below), %."""
    return None if ratio is None else estimate(ratio.scaled(sign * 100, -sign * 100))
