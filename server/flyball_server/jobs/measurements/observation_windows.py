"""From what ranks posted on a plan version to looks at its pipeline, for reconfiguration."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice

from flyball_server.jobs.records import PlanRecord, RankRecord, StepDetail
from flyball_server.jobs.store.contract import JobReader
from flyball_server.planning.model.measured_pipeline import (
    InstructionTimes,
    MeasuredPipeline,
    MeasuredStep,
    is_as_ordered,
    pipeline_of_steps,
    slowest,
)
from flyball_server.planning.model.pipeline_model import PipelineModel

# Of a version's steps, whatever the store still has: a run that started over has later ones too.
MOST_STEPS = 64

_Ran = tuple[InstructionTimes, ...]
_Pipeline = list[list[int]]


def measured_looks(
    reader: JobReader,
    plan: PlanRecord,
    model: PipelineModel,
    *,
    steps_per_look: int,
    most_looks: int,
) -> list[MeasuredPipeline]:
    """The first looks at a version that is in force, in the order of time.

    Each is made of so many steps that all ranks measured, and ran in the version's order; the
    version's first step is left out. Of data-parallel pipelines it is the slowest.

    Args:
        reader: of the moment.
        plan: a version whose first step is named.
        model: of its order.
        steps_per_look: steps whose median a look is, at least 1.
        most_looks: no step is read that these do not need.
    """
    ranks = reader.list_ranks(plan.job_id)
    pipelines = _whole_pipelines(model, ranks)
    if not pipelines:
        return []
    all_usable = (
        ran for ran in _ran_steps(reader, plan, len(ranks)) if _is_usable(model, ranks, ran)
    )
    usable = list(islice(all_usable, most_looks * steps_per_look))
    return [
        _look(model, pipelines, usable[end - steps_per_look : end])
        for end in range(steps_per_look, len(usable) + 1, steps_per_look)
    ]


def _ran_steps(reader: JobReader, plan: PlanRecord, num_ranks: int) -> Iterator[dict[int, _Ran]]:
    """What the ranks ran, by rank, in one complete step after another; read one by one."""
    kept = reader.list_step_details(plan.job_id, (plan.first_step or 0) + 1, limit=1)
    if not kept:
        return
    for step in complete_steps(reader, plan, num_ranks, first_step=kept[0].step):
        yield {
            detail.rank: _instruction_times(detail)
            for detail in reader.list_step_details(plan.job_id, step, limit=num_ranks)
            if detail.step == step and detail.instructions is not None
        }


def complete_steps(
    reader: JobReader, plan: PlanRecord, num_ranks: int, *, first_step: int
) -> list[int]:
    """Steps among MOST_STEPS from this one on that all ranks ran on this version, rising."""
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
