"""Forward and backward pass over a dependency DAG: earliest and latest finish times.

Times count from the begin of the tail that stands before the iteration's first instruction.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from flyball_pipeline.dag import DependencyDag


def forward_pass(dag: DependencyDag, finish_of: Callable[[int, float], float]) -> list[float]:
    """Per node, its finish if all start as early as they can, s.

    Args:
        dag: DAG to pass.
        finish_of: given a node and its earliest start in s, returns its finish in s; called in
            topological order.
    """
    order_predecessor, data_predecessor = dag.order_predecessor, dag.data_predecessor
    input_delay_s = dag.input_delay_s
    finish_s = [dag.tail_s] * (dag.num_nodes + 1)  # the last value stands for NONE
    for node in dag.topological_order:
        before = finish_s[order_predecessor[node]]
        source = finish_s[data_predecessor[node]] + input_delay_s[node]
        finish_s[node] = finish_of(node, before if before > source else source)
    finish_s.pop()
    return finish_s


def earliest_finish_s(dag: DependencyDag, durations_s: Sequence[float]) -> list[float]:
    """Per node, its finish if all start as early as they can, s."""
    return forward_pass(dag, lambda node, start_s: start_s + durations_s[node])


def latest_finish_s(
    dag: DependencyDag, durations_s: Sequence[float], iteration_time_s: float
) -> list[float]:
    """Per node, its latest finish in an iteration that takes no longer than this, s."""
    order_predecessor, data_predecessor = dag.order_predecessor, dag.data_predecessor
    input_delay_s = dag.input_delay_s
    latest_s = [iteration_time_s] * (dag.num_nodes + 1)  # the last value stands for NONE
    for node in reversed(dag.topological_order):
        latest_start_s = latest_s[node] - durations_s[node]
        before, source = order_predecessor[node], data_predecessor[node]
        latest_s[before] = min(latest_s[before], latest_start_s)
        latest_s[source] = min(latest_s[source], latest_start_s - input_delay_s[node])
    latest_s.pop()
    return latest_s
