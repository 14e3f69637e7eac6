"""Data-parallel pipelines side by side, as one model: no edges between them, one iteration time."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from flyball_pipeline.dag import NONE
from flyball_pipeline.schedule import Schedule, VirtualStages
from flyball_server.planning.model.array_dag import ArrayDag
from flyball_server.planning.model.clocked_instructions import ClockRequest
from flyball_server.planning.model.pipeline_model import Assignment, PipelineModel

ItemT = TypeVar("ItemT")


def join_pipelines(models: Sequence[PipelineModel]) -> PipelineModel:
    """Pipelines side by side as one model: the one's stages and nodes after the other's.

    Args:
        models: at least one, which is returned as it is; all run the same schedule with as many
            microbatches, and change clocks as fast.
    """
    if len(models) == 1:
        return models[0]
    return PipelineModel(
        schedule=Schedule(
            name=models[0].schedule.name,
            num_microbatches=models[0].schedule.num_microbatches,
            stages=_chained(model.schedule.stages for model in models),
            virtual_stages=_joint_virtual_stages([model.schedule for model in models]),
            weight_versions=_chained(model.schedule.weight_versions or () for model in models)
            or None,
        ),
        dag=_joint_dag(models),
        points=_chained(model.points for model in models),
        blocking_power_w=_chained(model.blocking_power_w for model in models),
        num_ranks=_chained(model.num_ranks for model in models),
        transitions=models[0].transitions,
        requests={
            first + instruction: replace(request, after=first + request.after)
            for first, model in zip(_first_instructions(models), models, strict=True)
            for instruction, request in model.requests.items()
        },
    )


def _first_instructions(models: Sequence[PipelineModel]) -> list[int]:
    """Return the number that each pipeline's first instruction has in the joint model."""
    if not any(model.transitions for model in models):
        return [0] * len(models)
    return _offsets([model.clocked.num_instructions for model in models])


def with_joint_requests(
    models: Sequence[PipelineModel], requests: Mapping[int, ClockRequest]
) -> list[PipelineModel]:
    """Return the pipelines with their parts of the joint model's requests."""
    return [
        model.with_requests(
            {
                instruction - first: replace(request, after=request.after - first)
                for instruction, request in requests.items()
                if first <= instruction < first + model.clocked.num_instructions
            }
        )
        if requests
        else model
        for first, model in zip(_first_instructions(models), models, strict=True)
    ]


def split_assignment(
    models: Sequence[PipelineModel], assignment: Sequence[int]
) -> list[Assignment]:
    """Each pipeline's part of an assignment of the joint model."""
    nodes = iter(assignment)
    return [list(itertools.islice(nodes, model.dag.num_nodes)) for model in models]


def _joint_dag(models: Sequence[PipelineModel]) -> ArrayDag:
    """Return the disjoint union of the pipelines' DAGs."""
    dags = [model.dag for model in models]
    first_stage = _offsets([model.schedule.num_stages for model in models])
    first_node = _offsets([dag.num_nodes for dag in dags])

    def shifted(per_pipeline: Sequence[Sequence[int]], by: Sequence[int]) -> tuple[int, ...]:
        return tuple(
            NONE if number == NONE else number + offset
            for numbers, offset in zip(per_pipeline, by, strict=True)
            for number in numbers
        )

    return ArrayDag(
        stage=shifted([dag.stage for dag in dags], first_stage),
        instruction=_chained(dag.instruction for dag in dags),
        order_predecessor=shifted([dag.order_predecessor for dag in dags], first_node),
        data_predecessor=shifted([dag.data_predecessor for dag in dags], first_node),
        topological_order=shifted([dag.topological_order for dag in dags], first_node),
        tail_s=dags[0].tail_s,
        transfer_s=_chained(dag.transfer_s for dag in dags),
    )


def _joint_virtual_stages(schedules: Sequence[Schedule]) -> VirtualStages:
    """Return the one pipeline's virtual stages after the other's."""
    first = _offsets([schedule.num_stages * schedule.num_chunks for schedule in schedules])
    return tuple(
        tuple(virtual + offset for virtual in of_stage)
        for schedule, offset in zip(schedules, first, strict=True)
        for of_stage in schedule.virtual_stages
    )


def _offsets(counts: Sequence[int]) -> list[int]:
    """Return how many come before each."""
    return [0, *itertools.accumulate(counts[:-1])]


def _chained(parts: Iterable[Iterable[ItemT]]) -> tuple[ItemT, ...]:
    return tuple(itertools.chain.from_iterable(parts))
