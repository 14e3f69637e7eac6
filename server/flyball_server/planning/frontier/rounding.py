"""From event times to one clock per instruction: rounding down, then annealing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from flyball_server.planning.cancellation import cancellation_point
from flyball_server.planning.frontier import annealing
from flyball_server.planning.frontier.curves import CostCurve, ModelCurves
from flyball_server.planning.frontier.event_network import FloatArray, IndexArray
from flyball_server.planning.model.dag import NONE, DependencyDag
from flyball_server.planning.model.finish_times import earliest_finish_s
from flyball_server.planning.model.pipeline_model import Assignment

# Of the slowest iteration. A window is a difference of two sums of durations; its rounding error
# is below this.
WINDOW_TOLERANCE = 1e-13
# Of it too: what a wary rounding wants a window to have to spare for a clock slower than the
# fastest. Then along any path the margins outweigh the errors, and the finished plan, summed up
# in the simulator's order, is not later than the deadline.
WARY_MARGIN = 1e-9

# Temperatures in mean cost steps between neighbouring clocks: the first from a rounding, the
# first from a neighbour's plan, and the last.
HOT_STEPS, WARM_STEPS, COLD_STEPS = 1.0, 0.2, 0.15
# A solver's windows may be a little too long; they are shrunk until the plan is in time.
SHRINKINGS = (0.0, 1e-9, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1.0)
# Annealing moves between two moments in which a solve can be ended: a tenth of a second or two.
MOVES_AT_A_STRETCH = 200_000


@dataclass(frozen=True, kw_only=True)
class RoundedPlan:
    """One clock for each instruction.

    Attributes:
        finish_s: per node, by when it has finished, s; annealing can go on from here.
        cost_j: energy of the iteration, J.
    """

    finish_s: FloatArray
    cost_j: float

    @property
    def end_s(self) -> float:
        """Return when the last of them has finished, s."""
        return float(self.finish_s.max())


class Rounding:
    """The rounding of one pipeline, for any deadline.

    Args:
        dag: DAG whose nodes get clocks.
        curves: time-energy curve of each node.
        waiting_power_w: blocking power of all ranks, W.
        is_wary: never late by rounding errors, at the price of plans that would just be in time.
    """

    def __init__(
        self, dag: DependencyDag, curves: ModelCurves, waiting_power_w: float, *, is_wary: bool
    ) -> None:
        self.slowest_time_s = _slowest_time_s(dag, curves)
        self._tables = _node_tables(dag, curves, self.slowest_time_s, is_wary=is_wary)
        has_no_successor = self._tables.successors[:, 0] == annealing.NO_NODE
        self._sinks = np.flatnonzero(has_no_successor).astype(np.int64)
        self._waiting_power_w = float(waiting_power_w)
        self._choices = _padded(
            [[point.choice for point in curve.staircase] for curve in curves.curves], 0
        ).astype(np.int64)
        self._mean_step_j = _mean_cost_step_j(curves)
        self._hot_j = max(HOT_STEPS * self._mean_step_j, _mean_hill_j(curves))

    def fastest(self) -> RoundedPlan:
        """Each instruction at its fastest point."""
        return self.at_points(np.zeros(len(self._tables.order), dtype=np.int64))

    def round_down(self, finish_s: FloatArray, deadline_s: float) -> RoundedPlan:
        """Each instruction at the slowest clock with which it meets its finish.

        Args:
            finish_s: per node, s; shape (num_nodes,).
            deadline_s: the plan takes at most this long; not less than the fastest.
        """
        for shrinking in SHRINKINGS:
            plan = self._at(annealing.round_down(finish_s, shrinking, self._tables))
            if plan.end_s <= deadline_s:
                return plan
        return self.fastest()

    def stretch(self, plan: RoundedPlan, factor: float) -> RoundedPlan:
        """The plan with every finish that much later: all windows longer, clocks as they fit."""
        finish_s = plan.finish_s * factor
        return self._at(finish_s)

    def improve(
        self, plan: RoundedPlan, deadline_s: float, num_moves: int, *, is_hot: bool, seed: int
    ) -> RoundedPlan:
        """Anneal from the plan; never worse.

        Args:
            plan: to begin with.
            deadline_s: no plan is slower.
            num_moves: number of annealing moves.
            is_hot: for a rounding; else the plan's order is worth keeping, as a neighbour's is.
            seed: seed of the random numbers.
        """
        if self._mean_step_j == 0:  # one useful clock for each instruction: nothing to choose
            return plan
        finish_s = plan.finish_s.copy()
        temperature_j = self._hot_j if is_hot else WARM_STEPS * self._mean_step_j
        cooling = (COLD_STEPS * self._mean_step_j / temperature_j) ** (1.0 / max(1, num_moves))
        for first_move in range(0, num_moves, MOVES_AT_A_STRETCH):
            cancellation_point()
            temperature_j = annealing.anneal(
                finish_s,
                deadline_s,
                self._tables,
                self._sinks,
                self._waiting_power_w,
                (first_move, min(first_move + MOVES_AT_A_STRETCH, num_moves)),
                num_moves,
                temperature_j,
                cooling,
                seed,
            )
        improved = self._at(finish_s)
        return improved if improved.cost_j < plan.cost_j else plan

    def points(self, plan: RoundedPlan) -> IndexArray:
        """Per instruction the plan's clock, as a row of its staircase; shape (num_nodes,)."""
        return annealing.points_of(plan.finish_s, self._tables)

    def at_points(self, points: IndexArray) -> RoundedPlan:
        """Each instruction at its point, as early as it can."""
        finish_s = annealing.earliest_finish_s(points, self._tables)
        return RoundedPlan(finish_s=finish_s, cost_j=self._cost_j(points, finish_s))

    def assignment(self, points: IndexArray) -> Assignment:
        """The points as indices into the instructions' operating points."""
        choices: Assignment = self._choices[self._tables.curve_of_node, points].tolist()
        return choices

    def _at(self, finish_s: FloatArray) -> RoundedPlan:
        points = annealing.points_of(finish_s, self._tables)
        return RoundedPlan(finish_s=finish_s, cost_j=self._cost_j(points, finish_s))

    def _cost_j(self, points: IndexArray, finish_s: FloatArray) -> float:
        clocks_j = float(self._tables.costs_j[self._tables.curve_of_node, points].sum())
        return clocks_j + self._waiting_power_w * float(finish_s.max())


def _node_tables(
    dag: DependencyDag, curves: ModelCurves, slowest_s: float, *, is_wary: bool
) -> annealing.NodeTables:
    predecessors = np.ascontiguousarray(dag.predecessor_array.T)
    predecessors[predecessors == NONE] = annealing.NO_NODE
    times_s = _padded(
        [[point.time_s for point in curve.staircase] for curve in curves.curves], np.inf
    )
    if is_wary:
        times_s[:, 1:] += WARY_MARGIN * slowest_s
    return annealing.NodeTables(
        order=dag.order_array,
        predecessors=predecessors,
        successors=_successors(predecessors),
        curve_of_node=curves.curve_array,
        times_s=times_s,
        costs_j=_padded(
            [[point.cost_j for point in curve.staircase] for curve in curves.curves], 0.0
        ),
        is_corner=_padded([_corners(curve) for curve in curves.curves], 0).astype(np.bool_),
        num_points=np.array([len(curve.staircase) for curve in curves.curves], dtype=np.int64),
        tolerance_s=WINDOW_TOLERANCE * slowest_s,
    )


def _corners(curve: CostCurve) -> list[bool]:
    """Per point of the staircase, whether it is one of the hull's."""
    choices = {point.choice for point in curve.hull}
    return [point.choice in choices for point in curve.staircase]


def _slowest_time_s(dag: DependencyDag, curves: ModelCurves) -> float:
    """The iteration time with every instruction at the slowest clock that is of any use, s."""
    slowest_s = [curve.staircase[-1].time_s for curve in curves.curves]
    durations_s = [slowest_s[curve] for curve in curves.curve_of_node]
    return max(earliest_finish_s(dag, durations_s))


def _padded(rows: Sequence[Sequence[float]], filling: float) -> FloatArray:
    table = np.full((len(rows), max(map(len, rows))), filling, dtype=np.float64)
    for index, row in enumerate(rows):
        table[index, : len(row)] = row
    return table


def _successors(predecessors: IndexArray) -> IndexArray:
    """Per node, those that wait for it, rising; NO_NODE where there are fewer than most have."""
    num_nodes = len(predecessors)
    is_another = np.ones(predecessors.shape, dtype=np.bool_)
    is_another[:, 1] = predecessors[:, 1] != predecessors[:, 0]
    after, which = np.nonzero((predecessors != annealing.NO_NODE) & is_another)
    before = predecessors[after, which]
    by_node = np.argsort(before, kind="stable")
    before, after = before[by_node], after[by_node]
    counts = np.bincount(before, minlength=num_nodes)
    place = np.arange(len(before)) - np.repeat(np.cumsum(counts) - counts, counts)
    table = np.full((num_nodes, max(1, int(counts.max(initial=0)))), annealing.NO_NODE)
    table[before, place] = after
    return table.astype(np.int64)


def _mean_cost_step_j(curves: ModelCurves) -> float:
    """Return how much a step to the next slower clock saves, on average over all curves, J."""
    drops_j = sum(curve.staircase[0].cost_j - curve.staircase[-1].cost_j for curve in curves.curves)
    num_steps = sum(len(curve.staircase) - 1 for curve in curves.curves)
    return drops_j / max(1, num_steps)


def _mean_hill_j(curves: ModelCurves) -> float:
    """Return the largest height of a staircase above its hull, averaged over all curves, J."""
    return sum(map(_hill_j, curves.curves)) / len(curves.curves)


def _hill_j(curve: CostCurve) -> float:
    hull_j = np.interp(
        [point.time_s for point in curve.staircase],
        [corner.time_s for corner in curve.hull],
        [corner.cost_j for corner in curve.hull],
    )
    costs_j = np.array([point.cost_j for point in curve.staircase])
    return float((costs_j - hull_j).max())
