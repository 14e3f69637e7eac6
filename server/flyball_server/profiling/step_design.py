"""Which instructions of a step can run slower, so that it still ends within the slowdown cap.

Stages are taken one after the other: first those whose wanted instructions take the most extra
time, of about equal ones those with the least float. A stage's node may finish later by the
float it then has, and by what is left of the allowance, a share that grows over the iteration in
stairs, so that slow instructions are spread over it. Going through the DAG in topological order,
a node is slowed where it still finishes by then. As the latest finish of a node is never after
that of its successors less their times, every node that is not slowed keeps its own limit: the
cap holds by construction, after two passes through the DAG for each stage.
"""

# Inside compiled code a subscript is one number; numpy's types cannot say so.
# pyright: reportReturnType=false, reportArgumentType=false

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flyball_server.planning.frontier.compilation import compiled_function
from flyball_server.planning.model.dag import NONE, build_dag
from flyball_server.planning.schedules._base import Schedule
from flyball_server.profiling.mixed_model import FloatArray

IndexArray = NDArray[np.int64]

# Extra times that differ by less than this factor are served alike.
_ABOUT_EQUAL = 1.3


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
class SlowedStep:
    """One step's design.

    Attributes:
        is_slow: which of the wanted nodes run slower; shape (num_nodes,).
        iteration_time_s: with their slower times, s.
    """

    is_slow: NDArray[np.bool_]
    iteration_time_s: float


def slow_nodes(
    graph: StepGraph, durations_s: FloatArray, slower_s: FloatArray, deadline_s: float
) -> SlowedStep:
    """Slow as many wanted nodes as the deadline bears.

    Args:
        graph: the nodes.
        durations_s: of the nodes at the highest clocks, s; shape (num_nodes,).
        slower_s: per node, its time at the clock wanted for it, s; 0 where none is wanted.
        deadline_s: for the iteration, not before its end at the highest clocks, s.
    """
    durations_s = durations_s.copy()
    is_slow = np.zeros(len(durations_s), dtype=np.bool_)
    finish_s = graph.finish_s(durations_s)
    for stage in _stages_in_turn(graph, durations_s, slower_s, finish_s):
        nodes = np.flatnonzero(graph.stage == stage)
        wanted_s = np.zeros(len(durations_s))
        wanted_s[nodes] = slower_s[nodes]
        slowed, finish_s = _slowed(
            graph.order,
            graph.predecessors,
            durations_s,
            wanted_s,
            _limits_s(graph, durations_s, wanted_s, finish_s, deadline_s),
        )
        is_slow |= slowed
        durations_s = np.where(slowed, wanted_s, durations_s)
    return SlowedStep(is_slow=is_slow, iteration_time_s=float(finish_s.max()))


def _stages_in_turn(
    graph: StepGraph, durations_s: FloatArray, slower_s: FloatArray, finish_s: FloatArray
) -> list[int]:
    """The stages with wanted nodes, in the order in which they are served."""
    latest_s = _latest_s(graph.order, graph.predecessors, durations_s, float(finish_s.max()))
    num_stages = int(graph.stage[-1]) + 1
    extra_s = np.zeros(num_stages)
    np.maximum.at(extra_s, graph.stage, np.where(slower_s > 0, slower_s - durations_s, 0.0))
    floats_s = np.bincount(graph.stage, latest_s - finish_s, num_stages)

    def turn(stage: int) -> tuple[float, float]:
        return (-round(math.log(extra_s[stage]) / math.log(_ABOUT_EQUAL)), floats_s[stage])

    return sorted(np.flatnonzero(extra_s > 0).tolist(), key=turn)


def _limits_s(
    graph: StepGraph,
    durations_s: FloatArray,
    wanted_s: FloatArray,
    finish_s: FloatArray,
    deadline_s: float,
) -> FloatArray:
    """By when each node has to finish, s: a stair for about each slow node of the stage."""
    end_s = float(finish_s.max())
    allowance_s = max(0.0, deadline_s - end_s)
    stair_s = float((wanted_s - durations_s).max())
    num_stairs = max(1, int(allowance_s / stair_s)) if stair_s > 0 else 1
    stair = np.floor(finish_s / end_s * num_stairs + 0.5) / num_stairs
    latest_s = _latest_s(graph.order, graph.predecessors, durations_s, end_s)
    limits_s: FloatArray = latest_s + allowance_s * np.minimum(stair, 1.0)
    return limits_s


@compiled_function
def _finish_s(order: IndexArray, predecessors: IndexArray, durations_s: FloatArray) -> FloatArray:
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
