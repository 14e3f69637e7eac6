"""Use case: planned power of each rank's GPU, for tools that divide a power budget."""

from __future__ import annotations

from collections.abc import Sequence

from flyball_profiles.stage_profile import StageProfile
from flyball_server.jobs.records import RankRecord
from flyball_server.jobs.registry.inspection import summarise
from flyball_server.jobs.services import JobServices
from flyball_wire.plans.plan import Plan
from flyball_wire.read_models import JobPower, RankPower


def get_power(services: JobServices, job_id: str) -> JobPower:
    """Return the planned power and the limit of each rank's GPU.

    Raises:
        UnknownJobError: the job does not exist.
    """
    with services.store.reading() as reader:
        summary = summarise(reader, reader.require_job(job_id))
        version = summary.active_version or summary.newest_version
        record = None if version is None else reader.find_plan(job_id, version)
        profile = reader.find_profile(job_id)
    of_stages = None if record is None else stage_powers_w(record.plan, profile)
    ranks = [_of_rank(rank, of_stages) for rank in summary.ranks if not rank.has_left]
    return JobPower(
        job_id=job_id,
        target=summary.target,
        version=version,
        planned_power_w=_sum([rank.planned_power_w for rank in ranks]),
        power_limit_w=_sum([rank.power_limit_w for rank in ranks]),
        ranks=tuple(ranks),
    )


def stage_powers_w(plan: Plan, profile: StageProfile | None) -> tuple[float, ...] | None:
    """Return the average power in an iteration of one GPU of each stage, W; None: not known.

    Args:
        plan: plan of any kind.
        profile: profile that it was made from, whose energies are of so many GPUs of a stage; None:
            no profile.
    """
    if plan.is_probe or plan.is_separate or profile is None:
        return None
    stages, num_ranks = plan.predicted.stages, profile.num_ranks_per_stage
    if len(stages) != len(num_ranks):
        return None
    return tuple(
        stage.energy_j / plan.iteration_time_s / number
        for stage, number in zip(stages, num_ranks, strict=True)
    )


def _of_rank(rank: RankRecord, of_stages: tuple[float, ...] | None) -> RankPower:
    is_planned = of_stages is not None and rank.stage < len(of_stages)
    conditions = rank.conditions
    return RankPower(
        rank=rank.rank,
        stage=rank.stage,
        dp_rank=rank.dp_rank,
        host=rank.host,
        gpu_uuid=rank.gpu_uuid,
        planned_power_w=of_stages[rank.stage] if of_stages is not None and is_planned else None,
        power_limit_w=None if conditions is None else conditions.power_limit_w,
    )


def _sum(powers_w: Sequence[float | None]) -> float | None:
    """Return the sum in W; None: one of them is not known, or there is none."""
    known_w = [power_w for power_w in powers_w if power_w is not None]
    return sum(known_w) if known_w and len(known_w) == len(powers_w) else None
