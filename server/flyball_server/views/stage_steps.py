"""Use case: a job's measured steps by stages, as many as one answer can hold."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

from flyball_server.jobs.measurements.stage_totals import StageTotals
from flyball_server.jobs.records import JobSpec
from flyball_server.jobs.registry.inspection import require_job
from flyball_server.jobs.services import JobServices

# That one answer is made of; adding them up takes some tenths of a second.
MOST_MEASUREMENTS = 262_144
# That one answer holds, over all its steps: some 5 MB.
MOST_STAGES = 32_768


@dataclass(frozen=True, kw_only=True)
class StageSummary:
    """The ranks of one stage in a step; as the wire's StageOfStep."""

    stage: int
    num_ranks: int
    time_s: float
    energy_j: float | None
    num_clock_misses: int
    num_power_capped: int
    num_thermally_capped: int
    sm_clock_mhz: float | None


@dataclass(frozen=True, kw_only=True)
class StagesSummary:
    """One step by stages; as the wire's StagesOfStep."""

    step: int
    num_ranks: int
    plan_versions: tuple[int | None, ...]
    time_s: float
    energy_j: float | None
    stages: tuple[StageSummary, ...]


def list_stage_steps(
    services: JobServices, job_id: str, *, limit: int, after_step: int = -1
) -> tuple[StagesSummary, ...]:
    """The job's newest `limit` steps after `after_step`, rising; fewer where that is too much.

    Raises:
        UnknownJobError: no such job.
    """
    with services.store.reading() as reader:
        spec = require_job(reader, job_id).in_force
        num_steps = most_steps(
            spec, limit, num_measurements=MOST_MEASUREMENTS, num_stages=MOST_STAGES
        )
        totals = reader.list_stage_totals(job_id, after_step=after_step, num_steps=num_steps)
    return steps_by_stage(totals)


def most_steps(spec: JobSpec, limit: int, *, num_measurements: int, num_stages: int) -> int:
    """So many steps, `limit` at most, of at most so many measurements and stages; at least 1."""
    fit = min(num_measurements // spec.num_ranks, num_stages // spec.num_stages)
    return max(min(limit, fit), 1)


def steps_by_stage(totals: Iterable[StageTotals]) -> tuple[StagesSummary, ...]:
    """Each step of these totals, which are by step, then stage."""
    return tuple(
        _step(step, tuple(of_step)) for step, of_step in groupby(totals, key=lambda each: each.step)
    )


def _step(step: int, totals: Sequence[StageTotals]) -> StagesSummary:
    versions = {each.plan_version for each in totals}
    return StagesSummary(
        step=step,
        num_ranks=sum(each.num_ranks for each in totals),
        plan_versions=tuple(sorted(versions, key=lambda version: version or 0)),
        time_s=max(each.time_s for each in totals),
        energy_j=_energy_j(totals),
        stages=tuple(
            _stage(stage, tuple(of_stage))
            for stage, of_stage in groupby(totals, key=lambda each: each.stage)
        ),
    )


def _stage(stage: int, totals: Sequence[StageTotals]) -> StageSummary:
    return StageSummary(
        stage=stage,
        num_ranks=sum(each.num_ranks for each in totals),
        time_s=max(each.time_s for each in totals),
        energy_j=_energy_j(totals),
        num_clock_misses=sum(each.num_clock_misses for each in totals),
        num_power_capped=sum(each.num_power_capped for each in totals),
        num_thermally_capped=sum(each.num_thermally_capped for each in totals),
        sm_clock_mhz=_sm_clock_mhz(totals),
    )


def _energy_j(totals: Sequence[StageTotals]) -> float | None:
    energies_j = [each.energy_j for each in totals if each.energy_j is not None]
    return sum(energies_j) if len(energies_j) == len(totals) else None


def _sm_clock_mhz(totals: Sequence[StageTotals]) -> float | None:
    """The mean over all ranks that have read it, whatever version they ran."""
    sums_mhz = [
        each.num_with_clock * each.sm_clock_mhz for each in totals if each.sm_clock_mhz is not None
    ]
    return sum(sums_mhz) / sum(each.num_with_clock for each in totals) if sums_mhz else None
