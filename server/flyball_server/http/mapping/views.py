"""What people look at jobs by, as it crosses the wire; the rest of `mapping`."""

from __future__ import annotations

from dataclasses import fields

from flyball_server.http.mapping.plan_views import predicted_iteration
from flyball_server.http.mapping.reports import estimate, percent_estimate
from flyball_server.planning.request_options import DEFAULT_POLICY
from flyball_server.views.job_figures import JobFigures
from flyball_server.views.job_totals import NewestSteps
from flyball_server.views.stage_steps import StagesSummary
from flyball_wire import read_models

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
