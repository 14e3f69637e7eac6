"""Measured times of single instructions, laid over the DAG that was run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from flyball_server.planning.model.dag import NONE, DependencyDag
from flyball_server.planning.model.finish_times import FinishTimes
from flyball_server.planning.schedules._base import Instruction, Schedule


class InstructionTimes(NamedTuple):
    """One instruction as one rank ran it; microbatch None: the rank could not tell it."""

    kind: str
    microbatch: int | None
    chunk: int
    received_s: float
    computed_s: float


MeasuredStep = Sequence[Sequence[InstructionTimes]]
"""Per stage, what one of its ranks ran in one step, in the order of execution."""


@dataclass(frozen=True, kw_only=True)
class MeasuredPipeline:
    """Times of a pipeline at unchanging clocks.

    Attributes:
        computed_s: per node of the DAG, how long it computed, s.
        received_s: per node, how long its stage received its input before, waiting included, s;
            0 where it receives none.
    """

    computed_s: tuple[float, ...]
    received_s: tuple[float, ...]


def is_as_ordered(schedule: Schedule, stage: int, ran: Sequence[InstructionTimes]) -> bool:
    """Return whether a rank of this stage ran just what the order has, in that order."""
    ordered = schedule.stages[stage]
    return len(ran) == len(ordered) and all(
        (times.kind, times.chunk) == (kind, chunk) and times.microbatch in (None, microbatch)
        for times, (kind, microbatch, chunk) in zip(ran, ordered, strict=True)
    )


def pipeline_of_steps(
    schedule: Schedule, dag: DependencyDag, steps: Sequence[MeasuredStep]
) -> MeasuredPipeline:
    """The median over steps, for each node of the DAG.

    A node that stands for all microbatches of a steady-state period has their sum.

    Args:
        schedule: what all stages ran, as `is_as_ordered` has it.
        dag: of that schedule.
        steps: one at least, all at the same clocks.
    """
    node_of = {
        (stage, instruction): node
        for node, (stage, instruction) in enumerate(zip(dag.stage, dag.instruction, strict=True))
    }
    nodes = [
        node_of[stage, schedule.node_of(Instruction(*instruction))]
        for stage, instructions in enumerate(schedule.stages)
        for instruction in instructions
    ]
    times_s = np.zeros((2, len(steps), dag.num_nodes))
    for number, step in enumerate(steps):
        ran = [times for stage in step for times in stage]
        np.add.at(times_s[0, number], nodes, [times.computed_s for times in ran])
        np.add.at(times_s[1, number], nodes, [times.received_s for times in ran])
    computed_s, received_s = np.median(times_s, axis=1).tolist()
    return MeasuredPipeline(computed_s=tuple(computed_s), received_s=tuple(received_s))


def receives_from_neighbour(dag: DependencyDag, node: int) -> bool:
    """Return whether what this node works on comes from another stage."""
    source = dag.data_predecessor[node]
    return source != NONE and dag.stage[source] != dag.stage[node]


def slowest(dag: DependencyDag, pipelines: Sequence[MeasuredPipeline]) -> MeasuredPipeline:
    """Of data-parallel pipelines the one that is done last, by the computing times.

    Args:
        dag: of each of them.
        pipelines: one at least; of equal ones the first counts.
    """
    finish_times = FinishTimes(dag)
    return max(pipelines, key=lambda pipeline: max(finish_times.earliest_s(pipeline.computed_s)))
