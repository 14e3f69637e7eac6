"""From what ranks posted on a plan version to looks at its pipeline, for reconfiguration."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

from flyball_server.jobs.records import PlanRecord, RankRecord, StepDetail
from flyball_server.jobs.store import JobReader
from flyball_server.planning.measured_pipeline import (
    InstructionTimes,
    MeasuredPipeline,
    MeasuredStep,
    is_as_ordered,
    pipeline_of_steps,
    slowest,
)
from flyball_server.planning.pipeline_model import PipelineModel

# Of a version's steps, whatever the store still has: a run that started over has later ones too.
MOST_STEPS = 64

_Ran = tuple[InstructionTimes, ...]
_Pipeline = list[list[int]]


def measured_looks(
    reader: JobReader, plan: PlanRecord, model: PipelineModel, *, steps_per_look: int
) -> list[MeasuredPipeline]:
    """Looks at a version that is in force, in the order of time.

    Each is made of so many steps that all ranks measured, and ran in the version's order; the
    version's first step is left out. Of data-parallel pipelines it is the slowest.

    Args:
        reader: of the moment.
        plan: a version whose first step is named.
        model: of its order.
        steps_per_look: steps whose median a look is, at least 1.
    """
    ranks = reader.list_ranks(plan.job_id)
    first_step = (plan.first_step or 0) + 1
    details = reader.list_step_details(plan.job_id, first_step)
    if not details:
        return []
    complete = set(complete_steps(reader, plan, len(ranks), first_step=details[0].step))
    ran_by_step: dict[int, dict[int, _Ran]] = defaultdict(dict)
    for detail in details:
        if detail.step in complete and detail.instructions is not None:
            ran_by_step[detail.step][detail.rank] = _instruction_times(detail)
    usable = [ran for _, ran in sorted(ran_by_step.items()) if _is_usable(model, ranks, ran)]
    pipelines = _whole_pipelines(model, ranks)
    return [
        _look(model, pipelines, usable[end - steps_per_look : end])
        for end in range(steps_per_look, len(usable) + 1, steps_per_look)
        if pipelines
    ]


def complete_steps(
    reader: JobReader, plan: PlanRecord, num_ranks: int, *, first_step: int
) -> list[int]:
    """Steps among MOST_STEPS from this one on that all ranks ran on this version."""
    num_by_step = Counter(
        record.step
        for record in reader.list_steps(plan.job_id, first_step, first_step + MOST_STEPS)
        if record.plan_version == plan.version
    )
    return [step for step, num_posted in num_by_step.items() if num_posted == num_ranks]


def _instruction_times(detail: StepDetail) -> _Ran:
    return tuple(
        InstructionTimes(kind, microbatch, chunk, received_s, computed_s)
        for kind, microbatch, chunk, _, computed_s, received_s, _ in detail.instructions or ()
    )


def _is_usable(model: PipelineModel, ranks: Sequence[RankRecord], ran: dict[int, _Ran]) -> bool:
    return all(
        rank.rank in ran and is_as_ordered(model.schedule, rank.stage, ran[rank.rank])
        for rank in ranks
    )


def _whole_pipelines(model: PipelineModel, ranks: Sequence[RankRecord]) -> list[_Pipeline]:
    """Data-parallel pipelines, each as the numbers of the ranks of each of its stages."""
    pipelines: dict[int, _Pipeline] = {}
    for rank in ranks:
        stages = pipelines.setdefault(rank.dp_rank, [[] for _ in model.schedule.stages])
        stages[rank.stage].append(rank.rank)
    return [stages for stages in pipelines.values() if all(stages)]


def _look(
    model: PipelineModel, pipelines: Sequence[_Pipeline], steps: Sequence[dict[int, _Ran]]
) -> MeasuredPipeline:
    measured = [
        pipeline_of_steps(
            model.schedule,
            model.dag,
            [ran for step in steps for ran in _by_stages(stages, step)],
        )
        for stages in pipelines
    ]
    return slowest(model.dag, measured)


def _by_stages(stages: _Pipeline, ran: dict[int, _Ran]) -> list[MeasuredStep]:
    """One step of one pipeline, once for each of the ranks that a stage of it has.

    They work on the same instructions at the same time, so each counts like a step of its own.
    """
    most = max(map(len, stages))
    return [[ran[ranks[turn % len(ranks)]] for ranks in stages] for turn in range(most)]
