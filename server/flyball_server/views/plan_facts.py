"""Facts about a plan version, read from its document once, since it never changes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from flyball_pipeline.errors import PipelineError
from flyball_pipeline.instruction import InstructionKind
from flyball_pipeline.schedule import VirtualStages
from flyball_profiles.stage_profile import ProfileError, StageProfile
from flyball_server.jobs.measurements.step_reading import predicted_iteration
from flyball_server.jobs.records import PlanRecord
from flyball_server.planning.documents.recorded_plan import model_of_plan
from flyball_server.planning.frontier.saving_sources import saving_sources
from flyball_server.planning.model.simulator import simulate
from flyball_server.planning.plan import (
    DataParallelPlan,
    FrequencyPlan,
    PlannedInstruction,
)
from flyball_server.planning.probe_plan import ProbePlan
from flyball_server.planning.stragglers.slowed_pipelines import slowed_model
from flyball_wire.read_models import PredictedIteration, SavingSources

# Kind, chunk and MHz of instructions that are alike.
_Alike = tuple[InstructionKind, int, int]


def mean_stage_clocks_mhz(
    plan: FrequencyPlan | DataParallelPlan | ProbePlan, profile: StageProfile | None
) -> tuple[float, ...]:
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
    """Count the stage's instructions; rows repeat in a cycle, so each is counted once."""
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


# The sum of the stages' energies is the plan's, unless it was made from another profile.
_RELATIVE_TOLERANCE = 1e-6


@dataclass(frozen=True, kw_only=True)
class StagePrediction:
    """Predicted iteration of one stage.

    Attributes:
        busy_s: total time of its instructions at the plan's clocks, s.
        energy_j: energy of these and of waiting for the rest of the iteration, J.
    """

    busy_s: float
    energy_j: float


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


def plan_facts(record: PlanRecord, profile: StageProfile | None) -> PlanFacts:
    """Return the facts of a version.

    Args:
        record: plan version.
        profile: the job's newest profile; None: no profile.
    """
    plan = record.plan
    if isinstance(plan, ProbePlan):
        return PlanFacts(stage_clocks_mhz=mean_stage_clocks_mhz(plan, profile))
    stages: tuple[StagePrediction, ...] = ()
    sources: SavingSources | None = None
    if isinstance(plan, FrequencyPlan) and profile is not None:
        stages, sources = _modelled(plan, profile)
    return PlanFacts(
        options=(plan.policy, plan.target),
        prediction=replace(predicted_iteration(plan), saving_sources=sources),
        stages=stages,
        stage_clocks_mhz=mean_stage_clocks_mhz(plan, profile),
    )


def _modelled(
    plan: FrequencyPlan, profile: StageProfile
) -> tuple[tuple[StagePrediction, ...], SavingSources | None]:
    """Return predictions by stage, and the sources of the plan's saving.

    Neither if the plan has another profile.
    """
    try:
        model, assignment = model_of_plan(profile, plan)
        model = slowed_model(model, plan.slowdowns, share=1.0) if plan.slowdowns else model
    except PipelineError:
        return (), None
    simulation = simulate(model, assignment)
    power_w = model.stage_blocking_power_w
    busy_s = [0.0] * plan.num_stages
    energy_j = [simulation.iteration_time_s * of_stage_w for of_stage_w in power_w]
    for stage, node_s, node_j in zip(
        model.dag.stage, simulation.busy_s, simulation.busy_j, strict=True
    ):
        busy_s[stage] += node_s
        energy_j[stage] += node_j - power_w[stage] * node_s
    if abs(sum(energy_j) - plan.energy_j) > _RELATIVE_TOLERANCE * plan.energy_j:
        return (), None
    predictions = tuple(
        StagePrediction(busy_s=busy, energy_j=energy)
        for busy, energy in zip(busy_s, energy_j, strict=True)
    )
    return predictions, saving_sources(model, simulation, plan.baseline_iteration_time_s)
