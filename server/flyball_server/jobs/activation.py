"""Use cases of running a plan: a rank's newest plan, acknowledging it, when it takes effect."""

from __future__ import annotations

import math
from dataclasses import dataclass

from flyball_server.jobs.errors import UnknownPlanError
from flyball_server.jobs.inspection import (
    newest_version,
    require_job,
    require_plan,
    require_rank,
)
from flyball_server.jobs.records import ActivationRecord, PlanRecord, RankRecord
from flyball_server.jobs.services import JobServices
from flyball_server.jobs.store import JobReader, JobWriter

# Ranks go on training while the last acknowledgement and its answer travel: give them some
# steps, and about a second where steps are short.
MARGIN_STEPS = 2
MARGIN_S = 1.0
MAX_MARGIN_STEPS = 50


@dataclass(frozen=True, kw_only=True)
class StagePlan:
    """A plan version and the stage of it that a rank runs."""

    plan: PlanRecord
    stage: int


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
        return StagePlan(plan=require_plan(reader, job_id, version), stage=record.stage)


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

    Raises:
        UnknownJobError: no such job.
        UnknownRankError: no such rank in it.
        UnknownPlanError: no such version.
        InvalidFieldError: the step is out of bounds.
    """
    with services.store.writing() as writer:
        record = require_rank(writer, job_id, rank)
        activations = writer.list_activations(job_id)
        activation = _activation(activations, job_id, version)
        # A late repetition of an older acknowledgement takes nothing back.
        held = max(version, record.acknowledged_version or 0)
        writer.save_rank(record.evolve(acknowledged_version=held, current_step=current_step))
        if activation.first_step is not None or not _is_due(writer, job_id, version, activations):
            return activation
        first_step = _first_step(writer, job_id, version, activations)
        writer.name_first_step(job_id, version, first_step)
    services.wake(job_id)
    return activation.evolve(first_step=first_step)


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


def _is_due(
    reader: JobReader, job_id: str, version: int, activations: tuple[ActivationRecord, ...]
) -> bool:
    """Whether all ranks hold just this version, and no newer one has been named."""
    if any(entry.version > version and entry.first_step is not None for entry in activations):
        return False
    ranks = reader.list_ranks(job_id)
    num_ranks = require_job(reader, job_id).in_force.num_ranks
    return len(ranks) == num_ranks and all(_holds(rank, version) for rank in ranks)


def _holds(rank: RankRecord, version: int) -> bool:
    return rank.acknowledged_version == version


def _first_step(
    writer: JobWriter, job_id: str, version: int, activations: tuple[ActivationRecord, ...]
) -> int:
    plan = require_plan(writer, job_id, version)
    newest_step = max(rank.current_step or 0 for rank in writer.list_ranks(job_id))
    named = max((entry.first_step or 0 for entry in activations), default=0)
    return max(newest_step + margin_steps(plan.plan.iteration_time_s), named + 1)
