"""The reaction that profiles a job in its own training: probe, look, probe again, then plan."""

from __future__ import annotations

import logging

from flyball_profiles.gpu_windows import GpuTableError
from flyball_server.jobs.control import ProfilingResult
from flyball_server.jobs.errors import InvalidFieldError, PlanningFailedError
from flyball_server.jobs.inspection import require_job
from flyball_server.jobs.job_state import JobInput, JobState
from flyball_server.jobs.planning_turn import plan_if_needed
from flyball_server.jobs.probing_record import ProbingRecord, read_probing
from flyball_server.jobs.probing_setup import control_result
from flyball_server.jobs.publication import add_version
from flyball_server.jobs.records import JobRecord, StepReport
from flyball_server.jobs.services import JobServices
from flyball_server.jobs.store import JobWriter
from flyball_server.planning.errors import PlanningError
from flyball_server.planning.probe_plan import ProbePlan
from flyball_server.profiling.moves import Finished, KeepWatching, Probe, next_move
from flyball_server.profiling.observations import ProbeSetup
from flyball_server.profiling.version_design import baseline_plan

_LOG = logging.getLogger(__name__)
_UNPROFILED = frozenset({JobState.AWAITING_PROFILE, JobState.PROFILING})


def probing(services: JobServices, job_id: str) -> float | None:
    """Profile a job that is to be profiled online, one move further."""
    with services.store.reading() as reader:
        job = require_job(reader, job_id)
        is_due = job.in_force.is_profiled_online and job.state in _UNPROFILED
        record = read_probing(reader, job) if is_due else None
    if record is None:
        return None
    try:
        setup = record.setup(services.gpu_window)
    except (InvalidFieldError, PlanningError, GpuTableError) as error:
        _refuse(services, job, str(error), record, None)
        return None
    move = next_move(setup, record.versions, record.observed)
    if isinstance(move, Probe):
        _publish(services, job, move.plan, record)
    elif isinstance(move, KeepWatching):
        _LOG.debug("job %s: %d more steps to be measured", job_id, move.num_steps)
    elif isinstance(move, Finished):
        _finish(services, job, setup, move)
    else:
        _refuse(services, job, move.problem, record, setup if record.versions else None)
    return None


def _publish(services: JobServices, job: JobRecord, plan: ProbePlan, record: ProbingRecord) -> None:
    with services.store.writing() as writer:
        now = _still_unprofiled(writer, job)
        if now is None:
            return
        if now.state is JobState.AWAITING_PROFILE:
            writer.save_job(now.moved(JobState.PROFILING))
        version = add_version(services, writer, job.job_id, plan, report=StepReport.CLOCKS).version
        progress = ProfilingResult(state="probing", num_steps=record.num_steps)
        writer.save_control(writer.find_control(job.job_id).evolve(profiling=progress))
    services.wake(job.job_id)
    _LOG.info("job %s: version %d probes in %d steps", job.job_id, version, plan.num_steps)


def _finish(services: JobServices, job: JobRecord, setup: ProbeSetup, move: Finished) -> None:
    with services.store.writing() as writer:
        now = _still_unprofiled(writer, job)
        if now is None:
            return
        result = control_result(move.result)
        writer.save_profile(job.job_id, move.result.profile(setup))
        writer.save_control(writer.find_control(job.job_id).evolve(profiling=result))
        writer.save_job(now.with_change(JobInput.PROFILE))
    _LOG.info("job %s: profiled in %d steps", job.job_id, result.num_steps)
    try:
        plan_if_needed(services, job.job_id, JobInput.PROFILE)
    except PlanningFailedError as error:
        _LOG.warning("job %s: profiled, but not planned: %s", job.job_id, error.message)
        with services.store.writing() as writer:
            _back_to_highest(services, writer, job, setup)
        services.wake(job.job_id)


def _refuse(
    services: JobServices,
    job: JobRecord,
    problem: str,
    record: ProbingRecord,
    setup: ProbeSetup | None,
) -> None:
    """Say why, and let the ranks run at their highest clocks where they are probing."""
    with services.store.writing() as writer:
        now = _still_unprofiled(writer, job)
        if now is None:
            return
        result = ProfilingResult(state="refused", problem=problem, num_steps=record.num_steps)
        writer.save_control(writer.find_control(job.job_id).evolve(profiling=result))
        writer.save_job(now.moved(JobState.PLANNING_FAILED, problem=f"profiling: {problem}"))
        if setup is not None:
            _back_to_highest(services, writer, job, setup)
    services.wake(job.job_id)
    _LOG.warning("job %s: profiling refused: %s", job.job_id, problem)


def _back_to_highest(
    services: JobServices, writer: JobWriter, job: JobRecord, setup: ProbeSetup
) -> None:
    add_version(services, writer, job.job_id, baseline_plan(setup))


def _still_unprofiled(writer: JobWriter, job: JobRecord) -> JobRecord | None:
    """The job as it stands; None: meanwhile somebody has put a profile."""
    now = require_job(writer, job.job_id)
    return now if now.state in _UNPROFILED and writer.find_profile(job.job_id) is None else None
