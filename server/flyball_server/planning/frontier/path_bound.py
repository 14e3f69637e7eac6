"""A lower bound on the energy of every plan: found in milliseconds, looser than the relaxed one.

Weak duality, as in `certificate`, with prices along a few whole paths through the pipeline: one
for each stage, which runs through all of the stage's instructions and, before and after them, the
longest way there is at the highest clocks. No path may take longer than the iteration. So for any
prices p >= 0 (J/s), one for each path, with f the sum of the prices that meet in an instruction,
every plan that takes at most T needs at least

    sum over instructions of min over durations d of (cost(d) + f d)  +  (W - sum of p) tau,

W being the blocking power of all ranks and tau the iteration time for which that is least: T where
the prices' sum is above W, else the shortest there is. The price of a path is the one at which the
stage's instructions just fill what the rest of it leaves them. What the bound does not see is that
a stage waits for others within its instructions: some percent.
"""

# Inside compiled code a subscript is one number; numpy's types cannot say so.
# pyright: reportReturnType=false, reportArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from flyball_server.planning.dag import DependencyDag
from flyball_server.planning.frontier.compilation import compiled_function
from flyball_server.planning.frontier.curves import CostCurve, ModelCurves
from flyball_server.planning.frontier.event_network import FloatArray, IndexArray


def path_bound_j(
    dag: DependencyDag, curves: ModelCurves, deadline_s: float, waiting_power_w: float
) -> float:
    """No plan that takes at most so long needs less than this, J.

    Args:
        dag: the pipeline.
        curves: what its nodes can run at.
        deadline_s: T, not less than the fastest iteration, s.
        waiting_power_w: blocking power of all ranks, W.
    """
    curve_of_node = np.array(curves.curve_of_node, dtype=np.int64)
    fastest_s = np.array([curve.hull[0].time_s for curve in curves.curves])[curve_of_node]
    order = np.array(dag.topological_order, dtype=np.int64)
    predecessors = np.array([dag.order_predecessor, dag.data_predecessor], dtype=np.int64)
    finish_s = _finish_s(order, predecessors, fastest_s)
    after = _longest_after(order, predecessors, fastest_s)
    flow_w = np.zeros(dag.num_nodes)
    sum_w = 0.0
    for chain in _chains(dag):
        way = np.array(
            [
                *_way_before(int(chain[0]), predecessors, finish_s),
                *_way_after(int(chain[-1]), after),
            ],
            dtype=np.int64,
        )
        left_s = deadline_s - float(fastest_s[way].sum())
        price_w = _price_w(curves.curves, curve_of_node[chain], left_s)
        flow_w[chain] += price_w
        flow_w[way] += price_w
        sum_w += price_w
    iteration_s = deadline_s if sum_w > waiting_power_w else float(finish_s.max())
    cheapest_j = _cheapest_j(curves.curves, curve_of_node, flow_w)
    return cheapest_j + (waiting_power_w - sum_w) * iteration_s


def _chains(dag: DependencyDag) -> list[IndexArray]:
    """The nodes of each stage, in its order."""
    stages = np.array(dag.stage, dtype=np.int64)
    ends = np.flatnonzero(np.diff(stages)) + 1  # nodes stand stage after stage
    return list(np.split(np.arange(dag.num_nodes), ends))


def _price_w(curves: Sequence[CostCurve], chain: IndexArray, left_s: float) -> float:
    """The price of time at which instructions of these curves fill what is left for them, J/s."""
    which, counts = np.unique(chain, return_counts=True)
    slopes_w: list[float] = []
    added_s: list[float] = []
    for number, count in zip(which, counts, strict=True):
        hull = curves[int(number)].hull
        left_s -= int(count) * hull[0].time_s
        for before, after in itertools.pairwise(hull):
            length_s = after.time_s - before.time_s
            slopes_w.append((before.cost_j - after.cost_j) / length_s)
            added_s.append(int(count) * length_s)
    steepest = np.argsort(-np.array(slopes_w), kind="stable")
    filled_s = np.cumsum(np.array(added_s)[steepest])
    does_not_fit = np.flatnonzero(filled_s > left_s)
    return slopes_w[int(steepest[does_not_fit[0]])] if len(does_not_fit) else 0.0


def _cheapest_j(
    curves: Sequence[CostCurve], curve_of_node: IndexArray, flow_w: FloatArray
) -> float:
    """Over all nodes, the least of cost and price of a duration, J."""
    total_j = 0.0
    for number, curve in enumerate(curves):
        prices_w, counts = np.unique(flow_w[curve_of_node == number], return_counts=True)
        times_s = np.array([point.time_s for point in curve.hull])
        costs_j = np.array([point.cost_j for point in curve.hull])
        cheapest_j = (costs_j[:, None] + times_s[:, None] * prices_w[None, :]).min(axis=0)
        total_j += float((cheapest_j * counts).sum())
    return total_j


@compiled_function
def _finish_s(order: IndexArray, predecessors: IndexArray, duration_s: FloatArray) -> FloatArray:
    """Per node, when it finishes if all start as early as they can, s."""
    finish_s = np.zeros(len(duration_s))
    for node in order:
        start_s = 0.0
        for which in range(2):
            if predecessors[which, node] >= 0:
                start_s = max(start_s, finish_s[predecessors[which, node]])
        finish_s[node] = start_s + duration_s[node]
    return finish_s


@compiled_function
def _longest_after(
    order: IndexArray, predecessors: IndexArray, duration_s: FloatArray
) -> IndexArray:
    """Per node, the node after it on the longest way to the end; -1: none."""
    after = np.full(len(duration_s), -1)
    after_s = np.zeros(len(duration_s))
    for node in order[::-1]:
        from_here_s = after_s[node] + duration_s[node]
        for which in range(2):
            before = predecessors[which, node]
            if before >= 0 and from_here_s > after_s[before]:
                after[before], after_s[before] = node, from_here_s
    return after


def _way_before(node: int, predecessors: IndexArray, finish_s: FloatArray) -> list[int]:
    """The nodes of the longest way to this one, without it."""
    way: list[int] = []
    while True:
        before = [int(one) for one in predecessors[:, node] if one >= 0]
        if not before:
            return way
        node = max(before, key=lambda one: finish_s[one])
        way.append(node)


def _way_after(node: int, after: IndexArray) -> list[int]:
    """The nodes of the longest way from this one to the end, without it."""
    way: list[int] = []
    while after[node] >= 0:
        node = int(after[node])
        way.append(node)
    return way
