"""Facts about a plan version, read from its document once, since it never changes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from flyball_pipeline.instruction import InstructionKind
from flyball_pipeline.schedule import VirtualStages
from flyball_profiles.stage_profile import ProfileError, StageProfile
from flyball_server.jobs.measurements.step_reading import gpus_over_profile, predicted_iteration
from flyball_server.jobs.records import PlanRecord
from flyball_wire.plans.plan import Plan, StagePrediction
from flyball_wire.read_models import PredictedIteration

# Kind, chunk and MHz of instructions that are alike.
_Alike = tuple[InstructionKind, int, int]


def mean_stage_clocks_mhz(plan: Plan, profile: StageProfile | None) -> tuple[float, ...]:
    """Return the mean clock of each stage over its instructions, MHz.

    Each instruction is weighted by its profiled time at its clock; if the profile lacks some of the
    stage's, all weigh the same. The mean is over all data-parallel pipelines; of a probe plan, over
    all steps of its cycle.

    Args:
        plan: plan of any kind.
        profile: the job's profile; None: no profile.
    """
    fitting = profile if profile and profile.num_stages == plan.num_stages else None
    return tuple(
        _mean_mhz(counts, _times_s(fitting, plan.virtual_stages, stage, counts))
        for stage, counts in enumerate(_counts_by_stage(plan))
    )


def _counts_by_stage(plan: Plan) -> list[Counter[_Alike]]:
    if plan.cycle_mhz:
        return [_cycle_counts(plan, stage) for stage in range(plan.num_stages)]
    together: list[Counter[_Alike]] = [Counter() for _ in range(plan.num_stages)]
    for pipeline in plan.pipelines:
        for counts, instructions in zip(together, pipeline.stages, strict=True):
            for kind, _, clock_mhz, chunk in instructions:
                counts[kind, chunk, clock_mhz] += len(pipeline.stands_for)
    return together


def _cycle_counts(plan: Plan, stage: int) -> Counter[_Alike]:
    """Count the stage's instructions; rows repeat in a cycle, so each is counted once."""
    counts: Counter[_Alike] = Counter()
    for row_mhz, num_steps in Counter(row[stage] for row in plan.cycle_mhz).items():
        for item, clock_mhz in zip(plan.stages[stage], row_mhz, strict=True):
            counts[item.kind, item.chunk, clock_mhz] += num_steps
    return counts


def _times_s(
    profile: StageProfile | None,
    virtual_stages: VirtualStages,
    stage: int,
    wanted: Iterable[_Alike],
) -> Mapping[_Alike, float] | None:
    """Return the time of each instruction, s; None: the profile lacks some of them."""
    if profile is None:
        return None
    try:
        chunks = profile.by_chunk(len(virtual_stages[0]) if virtual_stages else 1)
        return {
            (kind, chunk, clock_mhz): chunks[chunk].at(stage, kind, clock_mhz).time_s
            for kind, chunk, clock_mhz in wanted
        }
    except (ProfileError, IndexError):
        return None


def _mean_mhz(counts: Counter[_Alike], times_s: Mapping[_Alike, float] | None) -> float:
    weights = {
        alike: count * (1.0 if times_s is None else times_s[alike])
        for alike, count in counts.items()
    }
    weighted_mhz = sum(weight * clock_mhz for (_, _, clock_mhz), weight in weights.items())
    return weighted_mhz / sum(weights.values())


@dataclass(frozen=True, kw_only=True)
class PlanFacts:
    """A plan version, without its instructions.

    Attributes:
        options: policy and target that it was planned with; None: a probe plan.
        prediction: predicted iteration; None: a probe plan.
        stages: predictions by stage; empty if unknown.
        stage_clocks_mhz: mean planned clock of each stage, MHz.
    """

    options: tuple[str, str] | None = None
    prediction: PredictedIteration | None = None
    stages: tuple[StagePrediction, ...] = ()
    stage_clocks_mhz: tuple[float, ...]


def plan_facts(record: PlanRecord, profile: StageProfile | None, num_ranks: int) -> PlanFacts:
    """Return the facts of a version.

    Args:
        record: plan version.
        profile: the job's newest profile; None: no profile.
        num_ranks: number of the job's ranks, whose energy is predicted.
    """
    plan = record.plan
    if plan.is_probe:
        return PlanFacts(stage_clocks_mhz=mean_stage_clocks_mhz(plan, profile))
    scale = gpus_over_profile(profile, num_ranks)
    stages = () if plan.is_separate else plan.predicted.stages
    return PlanFacts(
        options=(plan.policy, plan.target),
        prediction=predicted_iteration(plan, profile, num_ranks),
        stages=tuple(replace(stage, energy_j=scale * stage.energy_j) for stage in stages),
        stage_clocks_mhz=mean_stage_clocks_mhz(plan, profile),
    )
