"""Use case: the measurements of a job so far, with the savings of each of its plans."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from flyball_server.jobs.lifecycle.job_life import is_emulated, no_clocks_notes
from flyball_server.jobs.measurements.step_reading import all_step_kinds, whole_steps
from flyball_server.jobs.records import PlanRecord
from flyball_server.jobs.registry.inspection import require_job, shape_notes, summarise
from flyball_server.jobs.savings.energy_scopes import common_scope, scope_notes
from flyball_server.jobs.savings.headline import headline_of
from flyball_server.jobs.savings.savings import SavingsFold
from flyball_server.jobs.services import JobServices
from flyball_server.views.plan_facts import predicted_iteration
from flyball_server.views.planned_delays import planned_delays
from flyball_wire.closed_loop import JobReport, MeasuredSavings, VersionSavings


def get_report(services: JobServices, job_id: str) -> JobReport:
    """Return the job's measurements so far; time grows with its steps, memory does not.

    Raises:
        UnknownJobError: the job does not exist.
    """
    with services.store.reading() as reader:
        summary = summarise(reader, require_job(reader, job_id))
        job = summary.job
        plans = {record.version: record for record in reader.list_plans(job_id)}
        loop_state = reader.find_loop_state(job_id)
        profiling = loop_state.profiling
        fold = SavingsFold(all_step_kinds(plans.values()))
        for step in whole_steps(reader, job_id, job.spec.num_expected_ranks):
            fold.add(step)
    savings = fold.so_far(loop_state.gpu_changes)
    in_force = plans.get(summary.active_version or summary.newest_version or 0)
    plan_in_force = None if in_force is None else in_force.plan
    return JobReport(
        job_id=job_id,
        emulated=is_emulated(job, summary.ranks),
        num_ranks=job.spec.num_expected_ranks,
        num_steps=savings.num_steps,
        time_s=savings.time_s,
        energy_j=savings.energy_j,
        saved_j=savings.saved_j,
        profiling_time_s=None if profiling is None else profiling.extra_time_s,
        profiling_energy_j=None if profiling is None else profiling.extra_energy_j,
        versions=tuple(_version_savings(savings.versions, plans)),
        num_unknown_steps=savings.num_unknown,
        deviations=savings.deviations,
        notes=(
            *shape_notes(summary),
            *no_clocks_notes(summary.ranks),
            *scope_notes(summary.ranks, summary.profile_scope),
        ),
        energy_scope=common_scope(summary.ranks),
        saved_of_j=savings.saved_of_j,
        factors=services.factors,
        delays=planned_delays(job.spec, loop_state.planned_inputs),
        order_advice=loop_state.order_advice,
        headline=headline_of(
            savings.versions,
            None if plan_in_force is None else predicted_iteration(plan_in_force),
            active_version=summary.active_version,
        ),
    )


def _version_savings(
    versions: Iterable[MeasuredSavings], plans: Mapping[int, PlanRecord]
) -> Iterator[VersionSavings]:
    """Yield the measured savings of versions beside what was predicted for them."""
    for measured in versions:
        plan = plans[measured.version].plan if measured.version in plans else None
        predicted = None if plan is None else predicted_iteration(plan)
        if plan is not None and predicted is not None:
            yield VersionSavings(
                **vars(measured),
                policy=plan.policy,
                target=plan.target,
                predicted_time_s=plan.iteration_time_s,
                predicted_energy_j=predicted.energy_j,
                predicted_saving_percent=predicted.saving_percent,
                compared=predicted.compared,
            )
