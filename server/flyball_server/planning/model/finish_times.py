"""Forward and backward pass over a dependency DAG: earliest and latest finish times.

Small DAGs are passed in Python, large ones by compiled code: the same additions in the same
order, so the same figures to the last bit.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from flyball_server.planning.frontier.compilation import compiled_function
from flyball_server.planning.model.dag import DependencyDag

FloatArray = NDArray[np.float64]
IndexArray = NDArray[np.int64]

# Number of nodes below which Python is about as fast, and nothing need be loaded.
COMPILED_FROM = 4_000


def earliest_finish_s(dag: DependencyDag, durations_s: Sequence[float]) -> list[float]:
    """Per node, its finish if all start as early as they can, s."""
    if dag.num_nodes >= COMPILED_FROM:
        durations = np.array(durations_s, dtype=np.float64)
        compiled_s: list[float] = earliest_of(
            dag.order_array, dag.predecessor_array, durations
        ).tolist()
        return compiled_s
    order_predecessor, data_predecessor = dag.order_predecessor, dag.data_predecessor
    finish_s = [0.0] * (dag.num_nodes + 1)  # the last one stands for NONE
    for node in dag.topological_order:
        before, source = finish_s[order_predecessor[node]], finish_s[data_predecessor[node]]
        finish_s[node] = (before if before > source else source) + durations_s[node]
    finish_s.pop()
    return finish_s


def latest_finish_s(
    dag: DependencyDag, durations_s: Sequence[float], iteration_time_s: float
) -> list[float]:
    """Per node, its latest finish in an iteration that takes no longer than this, s."""
    if dag.num_nodes >= COMPILED_FROM:
        durations = np.array(durations_s, dtype=np.float64)
        compiled_s: list[float] = latest_of(
            dag.order_array, dag.predecessor_array, durations, iteration_time_s
        ).tolist()
        return compiled_s
    latest_s = [iteration_time_s] * dag.num_nodes
    for node in reversed(dag.topological_order):
        latest_start_s = latest_s[node] - durations_s[node]
        for predecessor in dag.predecessors(node):
            latest_s[predecessor] = min(latest_s[predecessor], latest_start_s)
    return latest_s


@compiled_function
def earliest_of(order: IndexArray, predecessors: IndexArray, durations_s: FloatArray) -> FloatArray:
    """`earliest_finish_s` of arrays: the DAG's `order_array` and `predecessor_array`."""
    finish_s = np.zeros(len(durations_s) + 1)  # the last one stands for NONE, which is -1
    for node in order:
        before, source = finish_s[predecessors[0, node]], finish_s[predecessors[1, node]]
        finish_s[node] = (before if before > source else source) + durations_s[node]
    return finish_s[:-1]


@compiled_function
def latest_of(
    order: IndexArray, predecessors: IndexArray, durations_s: FloatArray, iteration_time_s: float
) -> FloatArray:
    """`latest_finish_s` of the same arrays."""
    finish_s = np.full(len(durations_s), iteration_time_s)
    for node in order[::-1]:
        start_s = finish_s[node] - durations_s[node]
        for which in range(2):
            before = predecessors[which, node]
            if before >= 0 and start_s < finish_s[before]:
                finish_s[before] = start_s
    return finish_s
