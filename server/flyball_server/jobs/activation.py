"""Use cases of running a plan: a rank's newest plan, acknowledging it, when it takes effect."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass

from flyball_server.jobs.errors import UnknownPlanError
from flyball_server.jobs.inspection import (
    newest_version,
    require_job,
    require_plan,
    require_rank,
)
from flyball_server.jobs.rank_part import (
    intended_times_s,
    rank_counter_reads,
    rank_cycle_mhz,
    rank_instructions,
)
from flyball_server.jobs.records import ActivationRecord, PlanRecord, StepReport
from flyball_server.jobs.services import JobServices
from flyball_server.jobs.store import JobReader, JobWriter
from flyball_server.planning.plan import PlannedInstruction

_LOG = logging.getLogger(__name__)

# Ranks go on training while the last acknowledgement and its answer travel: give them some
# steps, and about a second where steps are short.
MARGIN_STEPS = 2
MARGIN_S = 1.0
MAX_MARGIN_STEPS = 50


@dataclass(frozen=True, kw_only=True)
class StagePlan:
    """A plan version and the part of it that a rank runs.

    Attributes:
        instructions: of its stage, and pipeline, in the order of execution.
        cycle_mhz: per step of a cycle, the clock of each instruction; None: always its own.
        intended_times_s: of each instruction at its own clock; None: not known.
        counter_reads: after how many instructions its energy counter is read; None: nowhere.
    """

    plan: PlanRecord
    stage: int
    instructions: tuple[PlannedInstruction, ...]
    cycle_mhz: tuple[tuple[int, ...], ...] | None
    intended_times_s: tuple[float, ...] | None
    counter_reads: tuple[int, ...] | None


def newer_plan(
    services: JobServices, job_id: str, rank: int, *, after_version: int
) -> StagePlan | None:
    """The newest plan for this rank, if it is newer than `after_version`.

    Raises:
        UnknownJobError: no such job.
        UnknownRankError: no such rank in it.
    """
    with services.store.reading() as reader:
        record = require_rank(reader, job_id, rank)
        version = newest_version(reader.list_activations(job_id))
        if version is None or version <= after_version:
            return None
        plan = require_plan(reader, job_id, version)
        profile = reader.find_profile(job_id)
        control = reader.find_control(job_id)
    instructions = rank_instructions(plan.plan, record)
    return StagePlan(
        plan=plan,
        stage=record.stage,
        instructions=instructions,
        cycle_mhz=rank_cycle_mhz(plan, record.stage, instructions, profile),
        intended_times_s=intended_times_s(record, instructions, profile, control.planned_for),
        counter_reads=rank_counter_reads(plan.plan, record.stage),
    )


def get_activation(services: JobServices, job_id: str, version: int) -> ActivationRecord:
    """From which step a plan version holds.

    Raises:
        UnknownJobError: no such job.
        UnknownPlanError: no such version.
    """
    with services.store.reading() as reader:
        require_job(reader, job_id)
        return _activation(reader.list_activations(job_id), job_id, version)


def acknowledge(
    services: JobServices, job_id: str, rank: int, *, version: int, current_step: int
) -> ActivationRecord:
    """A rank holds this version; when all do, its first step is named.

    When all do and the step that was named lies further ahead than any that would be named
    now, the run has started over: the plan is added again as a new version, which every rank
    hears of, acknowledges and gets a step for in the ordinary way.

    Returns:
        From which step the version that the rank holds does so.

    Raises:
        UnknownJobError: no such job.
        UnknownRankError: no such rank in it.
        UnknownPlanError: no such version.
        InvalidFieldError: the step is out of bounds.
    """
    with services.store.writing(job_id) as writer:
        record = require_rank(writer, job_id, rank)
        activations = writer.list_activations(job_id)
        activation = _activation(activations, job_id, version)
        if version < (record.acknowledged_version or 0):
            return activation  # a late repetition of an older one takes nothing back
        writer.save_rank(record.evolve(acknowledged_version=version, current_step=current_step))
        if not _is_held_by_all(writer, job_id, version):
            return activation
        plan = require_plan(writer, job_id, version)
        first_step = _earliest_first_step(writer, plan)
        if activation.first_step is None:
            if _is_overtaken(version, activations):
                return activation
            writer.name_first_step(job_id, version, first_step)
            if plan.report is StepReport.TOTALS:
                writer.drop_step_details(job_id, first_step)  # nothing will look at them again
            activation = activation.evolve(first_step=first_step)
        elif activation.first_step > first_step and version == newest_version(activations):
            _plan_anew(services, writer, plan)
        else:
            return activation
    services.wake(job_id)
    services.notice(job_id)
    return activation


def margin_steps(iteration_time_s: float) -> int:
    """Steps between the last acknowledgement and the first step of the new version."""
    if iteration_time_s * MAX_MARGIN_STEPS <= MARGIN_S:
        return MAX_MARGIN_STEPS
    return min(MAX_MARGIN_STEPS, MARGIN_STEPS + math.ceil(MARGIN_S / iteration_time_s))


def _activation(
    activations: tuple[ActivationRecord, ...], job_id: str, version: int
) -> ActivationRecord:
    for activation in activations:
        if activation.version == version:
            return activation
    raise UnknownPlanError(job_id=job_id, version=version)


def _is_held_by_all(reader: JobReader, job_id: str, version: int) -> bool:
    """Whether just this version was the last that each rank acknowledged."""
    num_ranks = require_job(reader, job_id).in_force.num_ranks
    return reader.count_ranks_holding(job_id, version) == num_ranks


def _is_overtaken(version: int, activations: tuple[ActivationRecord, ...]) -> bool:
    """Whether a newer version has been named."""
    return any(entry.version > version and entry.first_step is not None for entry in activations)


def _earliest_first_step(reader: JobReader, record: PlanRecord) -> int:
    """The first step that all ranks surely hear of in time, as they now stand."""
    newest_step = max(rank.current_step or 0 for rank in reader.list_ranks(record.job_id))
    return newest_step + margin_steps(record.plan.iteration_time_s)


def _plan_anew(services: JobServices, writer: JobWriter, record: PlanRecord) -> None:
    """Add the plan again as the next version, without a first step."""
    # Renaming the old version's step would not do: ranks that were quick to acknowledge have
    # been told it, and ask for newer versions only.
    anew = record.evolve(version=record.version + 1, created_at=services.now(), first_step=None)
    writer.add_plan(anew)
    _LOG.info(
        "job %s: the run has started over; plan %d is plan %d again",
        record.job_id,
        anew.version,
        record.version,
    )
