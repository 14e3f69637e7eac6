"""The dependency DAG of a schedule: what each instruction waits for.

Along a stage every instruction waits for the instruction before it. Between virtual stages
`forward(v, m) -> forward(v+1, m)` and `backward(v+1, m) -> backward(v, m)`; on the last one
`forward -> backward`; `backward_input -> backward_weight`. So each instruction has at most two
predecessors: one in its stage's order, and one that makes its input. (Whatever else it needs of
its own stage stands before it there: `Schedule` sees to that.)
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Self

from flyball_pipeline.errors import PipelineError
from flyball_pipeline.instruction import GIVE_GRADIENT, Instruction, InstructionKind
from flyball_pipeline.schedule import Schedule, VirtualStages

NONE = -1  # "no predecessor" in the tuples below
AlikeNodes = tuple[int, InstructionKind, int]
"""Stage, kind and chunk."""


@dataclass(frozen=True, kw_only=True)
class DependencyDag:
    """Instructions as numbered nodes, stage after stage, each stage in its order.

    Attributes:
        stage: per node, its stage.
        instruction: per node, what it computes.
        order_predecessor: per node, the node before it on its stage, or NONE.
        data_predecessor: per node, the node that makes its input, or NONE.
        topological_order: all nodes, each after its predecessors.
        tail_s: part of an iteration outside its instructions (optimizer, all-reduce, loading), s.
            It counts before the first of them, which makes no difference to the others.
        transfer_s: per node, time from the end of the node that makes its input to its being
            there, s; empty: none.
    """

    stage: tuple[int, ...]
    instruction: tuple[Instruction, ...]
    order_predecessor: tuple[int, ...]
    data_predecessor: tuple[int, ...]
    topological_order: tuple[int, ...]
    tail_s: float = 0.0
    transfer_s: tuple[float, ...] = ()

    def with_delays(self, tail_s: float, hops_s: Sequence[float]) -> Self:
        """Return the DAG with a tail, and with transfers between stages.

        Args:
            tail_s: s.
            hops_s: time of a transfer between stage s and s + 1, either way, s; one value for all
                or one for each. Between other stages it takes as long as the longest.
        """
        if not any(hops_s):
            return replace(self, tail_s=tail_s)
        num_hops = max(self.stage)
        hops_s = tuple(hops_s) * num_hops if len(hops_s) == 1 else tuple(hops_s)

        def transfer_s(node: int, source: int) -> float:
            if source == NONE or self.stage[source] == self.stage[node]:
                return 0.0
            low, high = sorted((self.stage[source], self.stage[node]))
            return hops_s[low] if high == low + 1 else max(hops_s)

        sources = enumerate(self.data_predecessor)
        return replace(self, tail_s=tail_s, transfer_s=tuple(transfer_s(*each) for each in sources))

    @functools.cached_property
    def input_delay_s(self) -> tuple[float, ...]:
        """`transfer_s` with an entry for each node."""
        return self.transfer_s or (0.0,) * self.num_nodes

    @property
    def num_nodes(self) -> int:
        """Number of instructions of an iteration."""
        return len(self.stage)

    @functools.cached_property
    def last_of_stages(self) -> tuple[int, ...]:
        """Each stage's last node; what ends an iteration is among them."""
        followed = set(self.order_predecessor)
        return tuple(node for node in range(self.num_nodes) if node not in followed)

    @functools.cached_property
    def alike(self) -> tuple[tuple[AlikeNodes, ...], tuple[int, ...]]:
        """Group the nodes with the same points in the profile; per node its group."""
        keys = [
            (stage, instruction.kind, instruction.chunk)
            for stage, instruction in zip(self.stage, self.instruction, strict=True)
        ]
        number = {key: index for index, key in enumerate(dict.fromkeys(keys))}
        return tuple(number), tuple(map(number.__getitem__, keys))

    def nodes_of(self, schedule: Schedule) -> list[list[int]]:
        """Return, per stage of its schedule, the node of each instruction, in their order."""
        nodes = zip(self.stage, self.instruction, strict=True)
        number = {node: index for index, node in enumerate(nodes)}
        return [
            [number[stage, schedule.node_of(instruction)] for instruction in instructions]
            for stage, instructions in enumerate(schedule.stages)
        ]

    def predecessors(self, node: int) -> tuple[int, ...]:
        """Return the nodes that must finish before this node starts."""
        both = (self.order_predecessor[node], self.data_predecessor[node])
        return tuple(node for node in both if node != NONE)


def build_dag(schedule: Schedule) -> DependencyDag:
    """Return the DAG of a schedule's order.

    Of a steady-state period it has one node for each kind of a stage, as microbatch 0, which
    stands for all microbatches of the period, and no edge between stages
    (docs/theory.md, "Names", says why that is enough).

    Raises:
        PipelineError: the order deadlocks.
    """
    nodes = [dict.fromkeys(map(schedule.node_of, of_stage)) for of_stage in schedule.stages]
    return _dag_of(schedule, nodes)


def step_dag(schedule: Schedule) -> DependencyDag:
    """Return the DAG of a schedule's steps; of a steady-state period, a chain for each stage.

    The period lasts as long as its slowest stage, whatever the others wait for.

    Raises:
        PipelineError: the order deadlocks.
    """
    return _dag_of(schedule, schedule.stages)


def _dag_of(schedule: Schedule, of_stages: Sequence[Iterable[Instruction]]) -> DependencyDag:
    """Return the DAG of these nodes, given by stage, each stage's in its order."""
    nodes = [
        (stage, instruction) for stage, of_stage in enumerate(of_stages) for instruction in of_stage
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


def _data_predecessors(nodes: list[_Node], schedule: Schedule) -> list[int]:
    number: dict[tuple[int, tuple[InstructionKind, int, int]], int] = {
        node: index for index, node in enumerate(nodes)
    }
    alike = {(stage, kind, chunk) for stage, (kind, _, chunk) in nodes}
    sources = {group: _sources(group, schedule.virtual_stages) for group in alike}
    data_predecessor: list[int] = []
    for stage, (kind, microbatch, chunk) in nodes:
        predecessor = NONE
        for before, of_kind, its_chunk in sources[stage, kind, chunk]:
            # Microbatches are many, and a plain tuple is found as an Instruction is.
            predecessor = number.get((before, (of_kind, microbatch, its_chunk)), NONE)
            if predecessor != NONE:
                break
        data_predecessor.append(predecessor)
    return data_predecessor


def _sources(group: AlikeNodes, virtual_stages: VirtualStages) -> tuple[AlikeNodes, ...]:
    """Return the possible producers of such nodes' input; in a complete schedule each has one."""
    stage, kind, chunk = group
    virtual = virtual_stages[stage][chunk]
    if kind == InstructionKind.STEP:
        return ()
    if kind == InstructionKind.FORWARD:
        return () if virtual == 0 else (_place_of(virtual - 1, virtual_stages, kind),)
    if kind == InstructionKind.BACKWARD_WEIGHT:
        return ((stage, InstructionKind.BACKWARD_INPUT, chunk),)
    is_last = virtual == sum(map(len, virtual_stages)) - 1
    if kind == InstructionKind.RECOMPUTE or is_last:
        return ((stage, InstructionKind.FORWARD, chunk),)
    return tuple(_place_of(virtual + 1, virtual_stages, of_kind) for of_kind in GIVE_GRADIENT)


def _place_of(virtual: int, virtual_stages: VirtualStages, kind: InstructionKind) -> AlikeNodes:
    """Instructions of this kind on a virtual stage."""
    return next(
        (stage, kind, of_stage.index(virtual))
        for stage, of_stage in enumerate(virtual_stages)
        if virtual in of_stage
    )


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
        raise PipelineError(
            f"the order deadlocks: stage {stage} waits forever before {kind} of"
            f" microbatch {microbatch}",
            field="schedule",
        )
    return tuple(order)
