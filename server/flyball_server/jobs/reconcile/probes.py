"""Reconciler of online profiling: probe, read, probe again, then plan."""

from __future__ import annotations

import logging
from dataclasses import replace

from flyball_pipeline.errors import PipelineError
from flyball_profiles.gpu_windows import GpuTableError
from flyball_server.jobs.conditions.changes import num_changed, stage_conditions
from flyball_server.jobs.errors import InvalidFieldError, JobsError
from flyball_server.jobs.job_state import UNPROFILED, JobInput
from flyball_server.jobs.probing import ProbingRecord, probe_plans, probe_setup, read_probing
from flyball_server.jobs.reconcile.solve import (
    SLOT_RETRY_S,
    SlottedReconciler,
    SupersededError,
    solve,
)
from flyball_server.jobs.records import JobRecord
from flyball_server.jobs.savings.energy_scopes import common_scope
from flyball_server.jobs.services import JobServices
from flyball_server.jobs.store.sql.job_reader import JobReader
from flyball_server.jobs.store.sql.job_writer import JobWriter
from flyball_server.jobs.versions.plan_versions import add_version
from flyball_server.jobs.versions.rank_plans import check_parts_fit
from flyball_server.profiling.moves import (
    Finished,
    KeepWatching,
    Move,
    Probe,
    Refused,
    easy_move,
    next_move,
)
from flyball_server.profiling.observations import ProbeSetup
from flyball_wire.measurements import MeasurementDetail
from flyball_wire.messages import JobState
from flyball_wire.online_profiling import ProfilingResult, ProfilingState
from flyball_wire.plans.plan import Plan

_LOG = logging.getLogger(__name__)


class ProbeReconciler(SlottedReconciler):
    """Reconciler that profiles a job online, move by move.

    Once profiling is over without a plan, the ranks return to their highest clocks.
    """

    def runs_after_posts(self, reader: JobReader, job: JobRecord) -> bool:
        """Return whether it is profiled, or its ranks may be left at the clocks of probes."""
        del reader
        return is_probed(job) or job.state == JobState.PLANNING_FAILED

    def __call__(self, services: JobServices, job_id: str) -> float | None:
        """Take the next step of profiling the job."""
        with services.store.reading() as reader:
            job = reader.require_job(job_id)
            is_open = is_probed(job) and not _has_changed(reader, job_id)
            record = read_probing(reader, job, services.now()) if is_open else None
            is_left_probing = _is_left_probing(reader, job_id)
        if is_left_probing:
            _back_to_highest(services, job_id)
        if record is None:
            return None
        try:
            setup = probe_setup(record, services.gpu_window)
        except (InvalidFieldError, PipelineError, GpuTableError) as error:
            _refuse(services, job, str(error), record)
            return None
        with self.slot() as is_free:
            if not is_free:
                return SLOT_RETRY_S
            try:
                move = _next_move(services, job, setup, record)
            except SupersededError:
                services.enqueue_reconcile(job_id)
                return None
        _make(services, job, record, move)
        return None


def is_probed(job: JobRecord) -> bool:
    """Return whether its profile is being measured in its own training."""
    return job.spec.is_profiled_online and job.state in UNPROFILED


def _has_changed(reader: JobReader, job_id: str) -> bool:
    """Return whether conditions of its GPUs have changed, which `ConditionsReconciler` answers."""
    profiled, ranks = reader.profiled_conditions(job_id), reader.list_ranks(job_id)
    return num_changed(profiled, ranks) > 0 or reader.find_loop_state(job_id).changed is not None


def _next_move(
    services: JobServices, job: JobRecord, setup: ProbeSetup, record: ProbingRecord
) -> Move:
    if record.problem is not None:
        return Refused(problem=record.problem)
    try:
        easy = easy_move(setup, record.versions, record.observed)
        return easy or solve(services, job, next_move, setup, record.versions, record.observed)
    except (JobsError, SupersededError):
        raise
    except Exception:
        # It would fail again at each attempt, and the ranks would keep probing.
        _LOG.exception("job %s: profiling failed", job.job_id)
        return Refused(problem="unexpected error in the planner; see its log")


def _make(services: JobServices, job: JobRecord, record: ProbingRecord, move: Move) -> None:
    if isinstance(move, Probe):
        try:
            check_parts_fit(move.plan)
        except InvalidFieldError as error:
            _refuse(services, job, str(error), record)
        else:
            _publish(services, job, move.plan, record)
    elif isinstance(move, KeepWatching):
        _LOG.debug("job %s: %d more steps to be measured", job.job_id, move.num_steps)
    elif isinstance(move, Finished):
        _finish(services, job, move)
    else:
        _refuse(services, job, move.problem, record)


def _publish(services: JobServices, job: JobRecord, plan: Plan, record: ProbingRecord) -> None:
    with services.store.writing(job.job_id) as writer:
        now = _still_unprofiled(writer, job)
        if now is None:
            return
        findings = writer.find_loop_state(job.job_id)
        if now.state == JobState.AWAITING_PROFILE:
            writer.save_job(now.moved(JobState.PROFILING))
            under = stage_conditions(record.ranks, job.spec.num_stages)
            findings = findings.evolve(probed_under=under)
        added = add_version(
            services, writer, job.job_id, plan, measurement_detail=MeasurementDetail.CLOCKS
        )
        progress = ProfilingResult(state=ProfilingState.PROBING, num_steps=record.num_steps)
        writer.save_loop_state(findings.evolve(profiling=progress))
    services.notify_pollers(job.job_id)
    num_steps = len(plan.cycle_mhz)
    _LOG.info("job %s: version %d probes in %d steps", job.job_id, added.version, num_steps)


def _finish(services: JobServices, job: JobRecord, move: Finished) -> None:
    """Store the profile; `PlanReconciler` plans from it."""
    with services.store.writing(job.job_id) as writer:
        now = _still_unprofiled(writer, job)
        if now is None:
            return
        ranks = writer.list_ranks(job.job_id)
        profile = replace(
            move.profile,
            energy_scope=common_scope(ranks),
            conditions=stage_conditions(ranks, job.spec.num_stages),
        )
        writer.save_profile(job.job_id, profile)
        findings = writer.find_loop_state(job.job_id)
        writer.save_loop_state(findings.evolve(profiling=move.result, probed_under=()))
        writer.save_job(now.with_change(JobInput.PROFILE))
    services.enqueue_reconcile(job.job_id)
    _LOG.info("job %s: profiled in %d steps", job.job_id, move.result.num_steps)


def _refuse(services: JobServices, job: JobRecord, problem: str, record: ProbingRecord) -> None:
    with services.store.writing(job.job_id) as writer:
        now = _still_unprofiled(writer, job)
        if now is None:
            return
        result = ProfilingResult(
            state=ProfilingState.REFUSED, problem=problem, num_steps=record.num_steps
        )
        findings = writer.find_loop_state(job.job_id)
        writer.save_loop_state(findings.evolve(profiling=result, probed_under=()))
        writer.save_job(now.moved(JobState.PLANNING_FAILED, problem=f"profiling: {problem}"))
    _LOG.warning("job %s: profiling refused: %s", job.job_id, problem)
    _back_to_highest(services, job.job_id)


def _is_left_probing(reader: JobReader, job_id: str) -> bool:
    """Return whether the ranks of a job that could not be planned still probe."""
    if reader.require_job(job_id).state != JobState.PLANNING_FAILED:
        return False
    newest = reader.newest_plan(job_id)
    return (
        newest is not None
        and newest.plan.is_probe
        and newest.measurement_detail != MeasurementDetail.TOTALS
    )


def _back_to_highest(services: JobServices, job_id: str) -> None:
    """End probing with a last version if ranks are left probing."""
    with services.store.writing(job_id) as writer:
        if not _is_left_probing(writer, job_id):
            return
        # The first version runs entirely at the highest clocks.
        add_version(services, writer, job_id, probe_plans(writer, job_id)[0].plan)
    services.notify_pollers(job_id)


def _still_unprofiled(writer: JobWriter, job: JobRecord) -> JobRecord | None:
    """Return the current job; None: it has changed, or a profile was uploaded meanwhile."""
    now = writer.require_job(job.job_id)
    is_same = is_probed(now) and job.is_same_work(now)
    return now if is_same and not writer.has_profile(job.job_id) else None
