"""Which instructions of a step can run slower, so that it still ends within the slowdown cap.

A node may finish later than in the quickest iteration by the float it has, and by a share of the
allowance that grows evenly over the iteration. Going through the DAG in topological order, a
node is slowed where it still finishes by then. As the latest finish of a node is never after
that of its successors less their times, every node that is not slowed keeps its own limit, and
the iteration ends within the allowance: one pass a step, and the cap holds by construction.
"""

# Inside compiled code a subscript is one number; numpy's types cannot say so.
# pyright: reportReturnType=false, reportArgumentType=false

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flyball_server.planning.dag import NONE, build_dag
from flyball_server.planning.frontier.compilation import compiled_function
from flyball_server.planning.schedules._base import Schedule
from flyball_server.profiling.mixed_model import FloatArray

IndexArray = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class StepGraph:
    """Instructions of an iteration as nodes, stage after stage, each stage in its order.

    Attributes:
        stage: per node; shape (num_nodes,).
        order: nodes, each after its predecessors; same shape.
        predecessors: NONE where there are fewer; shape (2, num_nodes).
    """

    stage: IndexArray
    order: IndexArray
    predecessors: IndexArray

    @classmethod
    def of_schedule(cls, schedule: Schedule) -> StepGraph:
        """The nodes of a schedule; of a steady-state period, a chain for each stage.

        The period lasts as long as its slowest stage, whatever the others wait for
        (`schedules/pipedream.py`).
        """
        lengths = [len(stage) for stage in schedule.stages]
        stage = np.repeat(np.arange(len(lengths)), lengths)
        if not schedule.is_periodic:
            dag = build_dag(schedule)
            return cls(
                stage=stage,
                order=np.array(dag.topological_order, dtype=np.int64),
                predecessors=np.array(
                    [dag.order_predecessor, dag.data_predecessor], dtype=np.int64
                ),
            )
        nodes = np.arange(len(stage))
        before = nodes - 1
        before[np.append(True, stage[1:] != stage[:-1])] = NONE
        return cls(
            stage=stage,
            order=nodes,
            predecessors=np.array([before, np.full(len(stage), NONE)]),
        )

    def finish_s(self, durations_s: FloatArray) -> FloatArray:
        """Per node, when it finishes if all start as early as they can, s."""
        return _finish_s(self.order, self.predecessors, durations_s)


@dataclass(frozen=True, kw_only=True)
class Allowance:
    """By when each node has to finish.

    Attributes:
        durations_s: of the nodes at the highest clocks; shape (num_nodes,).
        limit_s: latest finishes; same shape.
        iteration_time_s: at the highest clocks, s.
    """

    durations_s: FloatArray
    limit_s: FloatArray
    iteration_time_s: float

    @classmethod
    def of_graph(
        cls, graph: StepGraph, durations_s: FloatArray, allowance_s: float
    ) -> Allowance:
        """With an iteration that takes at most so much longer than at these durations."""
        finish_s = graph.finish_s(durations_s)
        iteration_time_s = float(finish_s.max())
        latest_s = _latest_s(graph.order, graph.predecessors, durations_s, iteration_time_s)
        return cls(
            durations_s=durations_s,
            limit_s=latest_s + allowance_s * finish_s / iteration_time_s,
            iteration_time_s=iteration_time_s,
        )


@dataclass(frozen=True, kw_only=True)
class SlowedStep:
    """One step's design.

    Attributes:
        is_slow: which of the wanted nodes run slower; shape (num_nodes,).
        iteration_time_s: with their slower times, s.
    """

    is_slow: NDArray[np.bool_]
    iteration_time_s: float


def slow_nodes(graph: StepGraph, allowance: Allowance, slower_s: FloatArray) -> SlowedStep:
    """Slow as many wanted nodes as the allowance bears, spread evenly over the iteration.

    Args:
        slower_s: per node, its time at the clock wanted for it, s; 0 or less where none is.
    """
    is_slow, finish_s = _slowed(
        graph.order, graph.predecessors, allowance.durations_s, slower_s, allowance.limit_s
    )
    return SlowedStep(is_slow=is_slow, iteration_time_s=float(finish_s.max()))


@compiled_function
def _finish_s(
    order: IndexArray, predecessors: IndexArray, durations_s: FloatArray
) -> FloatArray:
    finish_s = np.zeros(len(durations_s) + 1)  # the last one stands for NONE, which is -1
    for node in order:
        before, source = finish_s[predecessors[0, node]], finish_s[predecessors[1, node]]
        finish_s[node] = max(before, source) + durations_s[node]
    return finish_s[:-1]


@compiled_function
def _latest_s(
    order: IndexArray, predecessors: IndexArray, durations_s: FloatArray, end_s: float
) -> FloatArray:
    latest_s = np.full(len(durations_s) + 1, end_s)
    for node in order[::-1]:
        start_s = latest_s[node] - durations_s[node]
        for which in range(2):
            before = predecessors[which, node]
            if before != NONE and start_s < latest_s[before]:
                latest_s[before] = start_s
    return latest_s[:-1]


@compiled_function
def _slowed(
    order: IndexArray,
    predecessors: IndexArray,
    durations_s: FloatArray,
    slower_s: FloatArray,
    limit_s: FloatArray,
) -> tuple[NDArray[np.bool_], FloatArray]:
    finish_s = np.zeros(len(durations_s) + 1)
    is_slow = np.zeros(len(durations_s), np.bool_)
    for node in order:
        before, source = finish_s[predecessors[0, node]], finish_s[predecessors[1, node]]
        start_s = max(before, source)
        if slower_s[node] > 0 and start_s + slower_s[node] <= limit_s[node]:
            is_slow[node] = True
            finish_s[node] = start_s + slower_s[node]
        else:
            finish_s[node] = start_s + durations_s[node]
    return is_slow, finish_s[:-1]
