"""The dependency DAG of a schedule: what each instruction waits for.

Along a stage every instruction waits for the one before it. Between stages
`forward(s, m) -> forward(s+1, m)` and `backward(s+1, m) -> backward(s, m)`; on the last stage
`forward -> backward`; `backward_input -> backward_weight`. So each instruction has at most two
predecessors: one in its stage's order, and one that makes its input.
"""

from __future__ import annotations

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

    def predecessors(self, node: int) -> tuple[int, ...]:
        """The nodes that must finish before this one starts."""
        both = (self.order_predecessor[node], self.data_predecessor[node])
        return tuple(node for node in both if node != NONE)


def build_dag(schedule: Schedule) -> DependencyDag:
    """The DAG of a schedule's order.

    Raises:
        PlanningError: the order deadlocks, or a stage has more than one model chunk (their
            edges are other ones).
    """
    nodes = [
        (stage, instruction)
        for stage, instructions in enumerate(schedule.stages)
        for instruction in instructions
    ]
    if any(instruction.chunk for _, instruction in nodes):
        raise PlanningError("model chunks are not supported; use one per stage", field="schedule")
    number = {node: index for index, node in enumerate(nodes)}
    last_stage = schedule.num_stages - 1
    order_predecessor = [
        index - 1 if index and nodes[index - 1][0] == stage else NONE
        for index, (stage, _) in enumerate(nodes)
    ]
    data_predecessor = [
        _data_predecessor(number, stage, instruction, last_stage) for stage, instruction in nodes
    ]
    return DependencyDag(
        stage=tuple(stage for stage, _ in nodes),
        instruction=tuple(instruction for _, instruction in nodes),
        order_predecessor=tuple(order_predecessor),
        data_predecessor=tuple(data_predecessor),
        topological_order=_topological_order(nodes, order_predecessor, data_predecessor),
    )


def _data_predecessor(
    number: dict[tuple[int, Instruction], int],
    stage: int,
    instruction: Instruction,
    last_stage: int,
) -> int:
    kind, microbatch, chunk = instruction
    if kind is InstructionKind.FORWARD:
        sources = [] if stage == 0 else [(stage - 1, instruction)]
    elif kind is InstructionKind.BACKWARD_WEIGHT:
        sources = [(stage, Instruction(InstructionKind.BACKWARD_INPUT, microbatch, chunk))]
    elif kind is InstructionKind.RECOMPUTE or stage == last_stage:
        sources = [(stage, Instruction(InstructionKind.FORWARD, microbatch, chunk))]
    else:
        sources = [
            (stage + 1, Instruction(of_kind, microbatch, chunk))
            for of_kind in (InstructionKind.BACKWARD, InstructionKind.BACKWARD_INPUT)
        ]
    # A schedule is complete: one of the sources is always there, if there are any.
    return next(number[source] for source in sources if source in number) if sources else NONE


def _topological_order(
    nodes: list[tuple[int, Instruction]],
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
