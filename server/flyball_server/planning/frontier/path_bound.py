"""A lower bound on the energy of every plan: found in milliseconds, looser than the relaxed one.

Weak duality, as in `certificate`, with prices along a few whole paths through the pipeline: one
for each stage, which runs through all of the stage's instructions and, before and after them, the
longest way there is at the highest clocks. No path may take longer than the iteration. So for any
prices p >= 0 (J/s), one for each path, with f the sum of the prices that meet in an instruction,
every plan that takes at most T needs at least

    sum over instructions of min over durations d of (cost(d) + f d)  +  (W - sum of p) tau,

W being the blocking power of all ranks and tau the iteration time for which that is least: T where
the prices' sum is above W, else the shortest there is.

The price of a path is the one at which the stage's instructions just fill what the rest of it
leaves them in an iteration of some length. That length is T while the prices' sum is then not
below W; of a later T, the length with which the sum is W. So the bound does not fall with a T
that no plan would use. What it does not see is that a stage waits for others within its
instructions: some percent.

A bound that is never 0 or below: an iteration takes no less than any of its stages is busy, so
W tau is at least what the ranks would draw while they are busy if they only waited, which is what
`cost` leaves out of the instructions' energies. So no plan needs less than all instructions do,
each at the point at which it needs least.
"""

# Inside compiled code a subscript is one number; numpy's types cannot say so.
# pyright: reportReturnType=false, reportArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from flyball_server.planning.frontier.compilation import compiled_function
from flyball_server.planning.frontier.curves import CostCurve, ModelCurves
from flyball_server.planning.frontier.event_network import FloatArray, IndexArray
from flyball_server.planning.model.dag import DependencyDag
from flyball_server.planning.model.pipeline_model import PipelineModel

# Of the times between the fastest and the deadline.
NUM_HALVINGS = 20


def path_bound_j(model: PipelineModel, curves: ModelCurves, deadline_s: float) -> float:
    """No plan that takes at most so long needs less than this, J; above 0.

    Args:
        model: the pipeline.
        curves: what its nodes can run at.
        deadline_s: T, not less than the fastest iteration, s.
    """
    paths = _Paths(model.dag, curves, sum(model.stage_blocking_power_w))
    prices_w = paths.prices_w(deadline_s)
    return max(least_busy_j(model), paths.bound_j(prices_w, deadline_s))


def least_busy_j(model: PipelineModel) -> float:
    """Return a lower bound: each instruction at its own least-energy point, J."""
    least_j: dict[int, float] = {}
    total_j = 0.0
    for points in model.points:
        least_of_points_j = least_j.get(id(points))
        if least_of_points_j is None:
            least_of_points_j = min(point.energy_j for point in points)
            least_j[id(points)] = least_of_points_j
        total_j += least_of_points_j
    return total_j


class _Paths:
    """The paths of a pipeline, one for each stage.

    Args:
        dag: the pipeline.
        curves: what its nodes can run at.
        waiting_power_w: W, blocking power of all ranks.
    """

    def __init__(self, dag: DependencyDag, curves: ModelCurves, waiting_power_w: float) -> None:
        self._curves, self._waiting_power_w = curves.curves, waiting_power_w
        self._curve_of_node = curves.curve_array
        fastest_s = np.array([curve.hull[0].time_s for curve in curves.curves])[self._curve_of_node]
        order, predecessors = dag.order_array, dag.predecessor_array
        finish_s = _finish_s(order, predecessors, fastest_s)
        after = _longest_after(order, predecessors, fastest_s)
        self._fastest_s = float(finish_s.max())
        self._chains = _chains(dag)
        self._ways = [
            np.array(
                [
                    *_way_before(int(chain[0]), predecessors, finish_s),
                    *_way_after(int(chain[-1]), after),
                ],
                dtype=np.int64,
            )
            for chain in self._chains
        ]
        self._prices = [
            _Prices(curves.curves, self._curve_of_node[chain], float(fastest_s[way].sum()))
            for chain, way in zip(self._chains, self._ways, strict=True)
        ]

    def prices_w(self, deadline_s: float) -> FloatArray:
        """Prices with which the bound for a deadline is high, J/s; shape (num_stages,)."""
        late_w = self._filling_w(deadline_s)
        early_s, late_s = self._fastest_s, deadline_s
        early_w = self._filling_w(early_s)
        if late_w.sum() >= self._waiting_power_w:
            return late_w
        if early_w.sum() <= self._waiting_power_w:
            return early_w
        for _ in range(NUM_HALVINGS):
            between_s = (early_s + late_s) / 2
            between_w = self._filling_w(between_s)
            if between_w.sum() > self._waiting_power_w:
                early_s, early_w = between_s, between_w
            else:
                late_s, late_w = between_s, between_w
        share = (self._waiting_power_w - late_w.sum()) / (early_w.sum() - late_w.sum())
        mixed_w: FloatArray = late_w + share * (early_w - late_w)
        return mixed_w

    def _filling_w(self, iteration_s: float) -> FloatArray:
        return np.array([prices.at_w(iteration_s) for prices in self._prices])

    def bound_j(self, prices_w: FloatArray, deadline_s: float) -> float:
        """Return what the prices prove, whatever they are, J."""
        flow_w = np.zeros(len(self._curve_of_node))
        for chain, way, price_w in zip(self._chains, self._ways, prices_w, strict=True):
            flow_w[chain] += price_w
            flow_w[way] += price_w
        gain_w = self._waiting_power_w - float(prices_w.sum())
        iteration_s = deadline_s if gain_w < 0 else self._fastest_s
        return _cheapest_j(self._curves, self._curve_of_node, flow_w) + gain_w * iteration_s


class _Prices:
    """The prices of time at which a stage's instructions fill what its path leaves them.

    Args:
        curves: of the pipeline.
        chain: per instruction of the stage, its curve.
        way_s: what the rest of the path takes, s.
    """

    def __init__(self, curves: Sequence[CostCurve], chain: IndexArray, way_s: float) -> None:
        which, counts = np.unique(chain, return_counts=True)
        slopes_w: list[float] = []
        added_s: list[float] = []
        self._least_s = way_s
        for number, count in zip(which, counts, strict=True):
            hull = curves[int(number)].hull
            self._least_s += int(count) * hull[0].time_s
            for before, after in itertools.pairwise(hull):
                length_s = after.time_s - before.time_s
                slopes_w.append((before.cost_j - after.cost_j) / length_s)
                added_s.append(int(count) * length_s)
        steepest = np.argsort(-np.array(slopes_w), kind="stable")
        self._filled_s = np.cumsum(np.array(added_s)[steepest])
        self._slopes_w = np.append(np.array(slopes_w)[steepest], 0.0)

    def at_w(self, iteration_s: float) -> float:
        """The price in an iteration that takes so long, J/s."""
        left_s = iteration_s - self._least_s
        return float(self._slopes_w[np.searchsorted(self._filled_s, left_s, side="right")])


def _chains(dag: DependencyDag) -> list[IndexArray]:
    """The nodes of each stage, in its order."""
    stages = np.array(dag.stage, dtype=np.int64)
    ends = np.flatnonzero(np.diff(stages)) + 1  # nodes stand stage after stage
    return list(np.split(np.arange(dag.num_nodes), ends))


def _cheapest_j(
    curves: Sequence[CostCurve], curve_of_node: IndexArray, flow_w: FloatArray
) -> float:
    """Over all nodes, the least of cost and price of a duration, J."""
    total_j = 0.0
    by_curve = np.argsort(curve_of_node, kind="stable")
    ends = np.cumsum(np.bincount(curve_of_node, minlength=len(curves)))
    for curve, of_curve_w in zip(curves, np.split(flow_w[by_curve], ends[:-1]), strict=True):
        prices_w, counts = np.unique(of_curve_w, return_counts=True)
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
