"""Forward and backward pass over a dependency DAG: earliest and latest finish times.

Times count from the begin of the tail that stands before the iteration's first instruction.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from flyball_server.planning.model.dag import DependencyDag, IndexArray

FloatArray = NDArray[np.float64]


def forward_pass(dag: DependencyDag, finish_of: Callable[[int, float], float]) -> list[float]:
    """Per node, its finish if all start as early as they can, s.

    Args:
        dag: DAG to pass.
        finish_of: given a node and its earliest start in s, returns its finish in s; called in
            topological order.
    """
    order_predecessor, data_predecessor = dag.order_predecessor, dag.data_predecessor
    input_delay_s = dag.input_delay_s
    finish_s = [dag.tail_s] * (dag.num_nodes + 1)  # the last one stands for NONE
    for node in dag.topological_order:
        before = finish_s[order_predecessor[node]]
        source = finish_s[data_predecessor[node]] + input_delay_s[node]
        finish_s[node] = finish_of(node, before if before > source else source)
    finish_s.pop()
    return finish_s


def earliest_finish_s(dag: DependencyDag, durations_s: Sequence[float]) -> list[float]:
    """Per node, its finish if all start as early as they can, s."""
    return forward_pass(dag, lambda node, start_s: start_s + durations_s[node])


def forward_pass_of_many(
    dag: DependencyDag, num_plans: int, finish_of: Callable[[IndexArray, FloatArray], FloatArray]
) -> FloatArray:
    """Finishes of many plans of one DAG as `forward_pass` has them, s; (num_nodes, num_plans).

    Args:
        dag: DAG to pass.
        num_plans: number of plans.
        finish_of: given some nodes and their earliest starts in s, returns their finishes in s;
            shape (some nodes, num_plans).
    """
    finish_s = np.full((dag.num_nodes + 1, num_plans), dag.tail_s)  # the last one stands for NONE
    for nodes, before, source in dag.levels:
        input_s = finish_s[source]
        if dag.transfer_s:
            input_s += dag.input_delay_array_s[nodes]
        start_s = np.maximum(finish_s[before], input_s)
        finish_s[nodes] = finish_of(nodes, start_s)
    return finish_s[:-1]


def earliest_finishes_s(dag: DependencyDag, durations_s: FloatArray) -> FloatArray:
    """Per node and plan, its finish if all start as early as they can, s.

    Args:
        dag: DAG of all plans.
        durations_s: duration of each node in each plan, s; shape (num_nodes, num_plans).
    """
    return forward_pass_of_many(
        dag, durations_s.shape[1], lambda nodes, start_s: start_s + durations_s[nodes]
    )


def latest_finish_s(
    dag: DependencyDag, durations_s: Sequence[float], iteration_time_s: float
) -> list[float]:
    """Per node, its latest finish in an iteration that takes no longer than this, s."""
    order_predecessor, data_predecessor = dag.order_predecessor, dag.data_predecessor
    input_delay_s = dag.input_delay_s
    latest_s = [iteration_time_s] * (dag.num_nodes + 1)  # the last one stands for NONE
    for node in reversed(dag.topological_order):
        latest_start_s = latest_s[node] - durations_s[node]
        before, source = order_predecessor[node], data_predecessor[node]
        latest_s[before] = min(latest_s[before], latest_start_s)
        latest_s[source] = min(latest_s[source], latest_start_s - input_delay_s[node])
    latest_s.pop()
    return latest_s
