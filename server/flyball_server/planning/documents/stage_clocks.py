"""The mean clock that a plan asks of each stage: one number where a plan has thousands."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from flyball_profiles.stage_profile import InstructionKind, ProfileError, StageProfile
from flyball_server.planning.documents.planned_instructions import PlannedInstruction
from flyball_server.planning.plan import DataParallelPlan, FrequencyPlan
from flyball_server.planning.probe_plan import ProbePlan
from flyball_server.planning.schedules._base import VirtualStages

# Kind, chunk and MHz of instructions that are alike.
_Alike = tuple[InstructionKind, int, int]


def mean_stage_clocks_mhz(
    plan: FrequencyPlan | DataParallelPlan | ProbePlan, profile: StageProfile | None
) -> tuple[float, ...]:
    """Per stage, the mean over its instructions, MHz.

    Each counts by the time that the profile has for it at its clock; where the profile does not
    have all of the stage's, each counts the same. Of data-parallel pipelines it is over all of
    them, of a plan that was made to learn from over all steps of its cycle.

    Args:
        plan: of any kind.
        profile: the job's; None: it has none.
    """
    fitting = profile if profile and profile.num_stages == plan.num_stages else None
    return tuple(
        _mean_mhz(counts, _times_s(fitting, plan.virtual_stages, stage, counts))
        for stage, counts in enumerate(_counts_by_stage(plan))
    )


def _counts_by_stage(
    plan: FrequencyPlan | DataParallelPlan | ProbePlan,
) -> list[Counter[_Alike]]:
    if isinstance(plan, FrequencyPlan):
        return [_counts(stage) for stage in plan.stages]
    if isinstance(plan, ProbePlan):
        return [_probe_counts(plan, stage) for stage in range(plan.num_stages)]
    together: list[Counter[_Alike]] = [Counter() for _ in range(plan.num_stages)]
    for pipeline in plan.pipelines:
        for stage, instructions in enumerate(pipeline.stages):
            for alike, count in _counts(instructions).items():
                together[stage][alike] += count * len(pipeline.stands_for)
    return together


def _counts(instructions: Iterable[PlannedInstruction]) -> Counter[_Alike]:
    return Counter((item.kind, item.chunk, item.frequency_mhz) for item in instructions)


def _probe_counts(plan: ProbePlan, stage: int) -> Counter[_Alike]:
    """Rows come back again and again in a cycle: each is gone through once."""
    counts: Counter[_Alike] = Counter()
    for row_mhz, num_steps in Counter(row[stage] for row in plan.cycle_mhz).items():
        for (kind, _, chunk), clock_mhz in zip(plan.stages[stage], row_mhz, strict=True):
            counts[kind, chunk, clock_mhz] += num_steps
    return counts


def _times_s(
    profile: StageProfile | None,
    virtual_stages: VirtualStages,
    stage: int,
    wanted: Iterable[_Alike],
) -> Mapping[_Alike, float] | None:
    """Return what each of these takes, s; None: the profile does not have all of them."""
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
