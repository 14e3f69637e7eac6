"""The dependency DAG of a schedule: what each instruction waits for.

Along a stage every instruction waits for the one before it. Between virtual stages
`forward(v, m) -> forward(v+1, m)` and `backward(v+1, m) -> backward(v, m)`; on the last one
`forward -> backward`; `backward_input -> backward_weight`. So each instruction has at most two
predecessors: one in its stage's order, and one that makes its input. (Whatever else it needs of
its own stage stands before it there: `Schedule` sees to that.)
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from flyball_profiles.stage_profile import InstructionKind
from flyball_server.planning.errors import PlanningError
from flyball_server.planning.schedules._base import Instruction, Schedule

NONE = -1  # "no predecessor" in the arrays below


@dataclass(frozen=True, kw_only=True)
class DependencyDag:
    """Instructions as numbered nodes, stage after stage, each stage in its order.

    Attributes:
        stage: per node, its stage.
        instruction: per node, what it computes.
        order_predecessor: per node, the node before it on its stage, or NONE.
        data_predecessor: per node, the node that makes its input, or NONE.
        topological_order: all nodes, each after its predecessors.
    """

    stage: tuple[int, ...]
    instruction: tuple[Instruction, ...]
    order_predecessor: tuple[int, ...]
    data_predecessor: tuple[int, ...]
    topological_order: tuple[int, ...]

    @property
    def num_nodes(self) -> int:
        """Number of instructions of an iteration."""
        return len(self.stage)

    @functools.cached_property
    def last_of_stages(self) -> tuple[int, ...]:
        """Each stage's last node; what ends an iteration is among them."""
        followed = set(self.order_predecessor)
        return tuple(node for node in range(self.num_nodes) if node not in followed)

    def predecessors(self, node: int) -> tuple[int, ...]:
        """The nodes that must finish before this one starts."""
        both = (self.order_predecessor[node], self.data_predecessor[node])
        return tuple(node for node in both if node != NONE)


def build_dag(schedule: Schedule) -> DependencyDag:
    """The DAG of a schedule's order.

    Of a steady-state period it has one node for each kind of a stage, as microbatch 0, which
    stands for all microbatches of the period, and no edge between stages
    (`schedules/pipedream.py` says why that is enough).

    Raises:
        PlanningError: the order deadlocks.
    """
    nodes = [
        (stage, instruction)
        for stage, instructions in enumerate(schedule.stages)
        for instruction in dict.fromkeys(map(schedule.node_of, instructions))
    ]
    order_predecessor = [
        index - 1 if index and nodes[index - 1][0] == stage else NONE
        for index, (stage, _) in enumerate(nodes)
    ]
    data_predecessor = (
        [NONE] * len(nodes) if schedule.is_periodic else _data_predecessors(nodes, schedule)
    )
    return DependencyDag(
        stage=tuple(stage for stage, _ in nodes),
        instruction=tuple(instruction for _, instruction in nodes),
        order_predecessor=tuple(order_predecessor),
        data_predecessor=tuple(data_predecessor),
        topological_order=_topological_order(nodes, order_predecessor, data_predecessor),
    )


_Node = tuple[int, Instruction]  # with its stage
_BACKWARDS = (InstructionKind.BACKWARD, InstructionKind.BACKWARD_INPUT)


def _data_predecessors(nodes: list[_Node], schedule: Schedule) -> list[int]:
    number = {node: index for index, node in enumerate(nodes)}
    virtual_stages = schedule.virtual_stages
    holder = {
        virtual: (stage, chunk)
        for stage, of_stage in enumerate(virtual_stages)
        for chunk, virtual in enumerate(of_stage)
    }

    def source_of(stage: int, instruction: Instruction) -> int:
        kind, microbatch, chunk = instruction
        virtual = virtual_stages[stage][chunk]
        own_forward = (stage, Instruction(InstructionKind.FORWARD, microbatch, chunk))
        if kind is InstructionKind.FORWARD:
            if virtual == 0:
                return NONE
            before, its_chunk = holder[virtual - 1]
            return number[before, Instruction(kind, microbatch, its_chunk)]
        if kind is InstructionKind.BACKWARD_WEIGHT:
            return number[stage, Instruction(InstructionKind.BACKWARD_INPUT, microbatch, chunk)]
        if kind is InstructionKind.RECOMPUTE or virtual == len(holder) - 1:
            return number[own_forward]
        after, its_chunk = holder[virtual + 1]
        sources = [(after, Instruction(of_kind, microbatch, its_chunk)) for of_kind in _BACKWARDS]
        # A schedule is complete: one of them is always there.
        return next(number[source] for source in sources if source in number)

    return [source_of(stage, instruction) for stage, instruction in nodes]


def _topological_order(
    nodes: list[_Node],
    order_predecessor: list[int],
    data_predecessor: list[int],
) -> tuple[int, ...]:
    """Kahn's algorithm, ready nodes first in, first out."""
    successors: list[list[int]] = [[] for _ in nodes]
    num_waiting = [0] * len(nodes)
    for predecessor_of in (order_predecessor, data_predecessor):
        for node, predecessor in enumerate(predecessor_of):
            if predecessor != NONE:
                successors[predecessor].append(node)
                num_waiting[node] += 1
    order = [node for node, count in enumerate(num_waiting) if count == 0]
    for node in order:  # grows while it is walked
        for successor in successors[node]:
            num_waiting[successor] -= 1
            if num_waiting[successor] == 0:
                order.append(successor)
    if len(order) < len(nodes):
        stage, (kind, microbatch, _) = nodes[num_waiting.index(max(num_waiting))]
        raise PlanningError(
            f"the order deadlocks: stage {stage} waits for ever before {kind} of"
            f" microbatch {microbatch}",
            field="schedule",
        )
    return tuple(order)
