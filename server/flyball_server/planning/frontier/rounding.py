"""From event times to one clock per instruction: rounding down, then annealing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from flyball_server.planning.dag import NONE, DependencyDag
from flyball_server.planning.frontier import annealing, compiled
from flyball_server.planning.frontier.curves import ModelCurves
from flyball_server.planning.frontier.event_network import FloatArray, IndexArray
from flyball_server.planning.pipeline_model import Assignment

# A window is a difference of two sums of some hundred durations: its rounding error is below
# this, and a clock slower than the fastest is only taken where its window has SLOW_MARGIN_S to
# spare. So along any path the margins outweigh the errors, and the finished plan, summed up in
# the simulator's order, is never later than the deadline.
WINDOW_TOLERANCE_S = 1e-13
SLOW_MARGIN_S = 1e-10

# The last temperature, in mean cost steps between neighbouring clocks.
COLD_STEPS = 0.02
# A solver's windows may be a little too long; they are shrunk until the plan is in time.
SHRINKINGS = (0.0, 1e-9, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1.0)


@dataclass(frozen=True, kw_only=True)
class RoundedPlan:
    """One clock for each instruction.

    Attributes:
        finish_s: per node, by when it has finished, s; annealing can go on from here.
        cost_j: sum of the instructions' costs (energy beyond blocking power), J.
    """

    finish_s: FloatArray
    cost_j: float


class Rounding:
    """The rounding of one pipeline, for any deadline."""

    def __init__(self, dag: DependencyDag, curves: ModelCurves) -> None:
        self._tables = _node_tables(dag, curves)
        self._choices = _padded(
            [[point.choice for point in curve.staircase] for curve in curves.curves], 0
        ).astype(np.int64)
        self._mean_step_j = _mean_cost_step_j(curves)

    def fastest(self) -> RoundedPlan:
        """Each instruction at its fastest point."""
        return self._at_points(np.zeros(len(self._tables.order), dtype=np.int64))

    def round_down(self, finish_s: FloatArray, deadline_s: float) -> RoundedPlan:
        """Each instruction at the slowest clock with which it meets its finish.

        Args:
            finish_s: per node, s; shape (num_nodes,).
            deadline_s: the plan takes at most this long; not less than the fastest.
        """
        for shrinking in SHRINKINGS:
            plan = self._at(compiled.round_down(finish_s, shrinking, self._tables))
            if plan.finish_s.max() <= deadline_s:
                return plan
        return self.fastest()

    def stretch(self, plan: RoundedPlan, factor: float) -> RoundedPlan:
        """The plan with every finish that much later: all windows longer, clocks as they fit."""
        finish_s = plan.finish_s * factor
        return self._at(finish_s)

    def improve(
        self, plan: RoundedPlan, deadline_s: float, num_moves: int, *, hot_steps: float, seed: int
    ) -> RoundedPlan:
        """Anneal from the plan, at first at `hot_steps` mean cost steps; never worse."""
        if self._mean_step_j == 0:  # one useful clock for each instruction: nothing to choose
            return plan
        finish_s = plan.finish_s.copy()
        annealing.anneal(
            finish_s,
            deadline_s,
            self._tables,
            num_moves,
            hot_steps * self._mean_step_j,
            COLD_STEPS * self._mean_step_j,
            seed,
        )
        improved = self._at(finish_s)
        return improved if improved.cost_j < plan.cost_j else plan

    def assignment(self, plan: RoundedPlan) -> Assignment:
        """The plan as indices into the instructions' operating points."""
        points = compiled.points_of(plan.finish_s, self._tables)
        return [int(choice) for choice in self._choices[self._tables.curve_of_node, points]]

    def _at(self, finish_s: FloatArray) -> RoundedPlan:
        points = compiled.points_of(finish_s, self._tables)
        return RoundedPlan(finish_s=finish_s, cost_j=self._cost_j(points))

    def _cost_j(self, points: IndexArray) -> float:
        return float(self._tables.costs_j[self._tables.curve_of_node, points].sum())

    def _at_points(self, points: IndexArray) -> RoundedPlan:
        return RoundedPlan(
            finish_s=compiled.earliest_finish_s(points, self._tables),
            cost_j=self._cost_j(points),
        )


def _node_tables(dag: DependencyDag, curves: ModelCurves) -> compiled.NodeTables:
    predecessors = np.column_stack([dag.order_predecessor, dag.data_predecessor]).astype(np.int64)
    predecessors[predecessors == NONE] = compiled.NO_NODE
    times_s = _padded(
        [[point.time_s for point in curve.staircase] for curve in curves.curves], np.inf
    )
    times_s[:, 1:] += SLOW_MARGIN_S
    return compiled.NodeTables(
        order=np.array(dag.topological_order, dtype=np.int64),
        predecessors=predecessors,
        successors=_successors(predecessors),
        curve_of_node=np.array(curves.curve_of_node, dtype=np.int64),
        times_s=times_s,
        costs_j=_padded(
            [[point.cost_j for point in curve.staircase] for curve in curves.curves], 0.0
        ),
        num_points=np.array([len(curve.staircase) for curve in curves.curves], dtype=np.int64),
        tolerance_s=WINDOW_TOLERANCE_S,
    )


def _padded(rows: Sequence[Sequence[float]], filling: float) -> FloatArray:
    table = np.full((len(rows), max(map(len, rows))), filling, dtype=np.float64)
    for index, row in enumerate(rows):
        table[index, : len(row)] = row
    return table


def _successors(predecessors: IndexArray) -> IndexArray:
    following: list[list[int]] = [[] for _ in predecessors]
    for node in range(len(predecessors)):
        for before in {int(predecessors[node, which]) for which in range(2)} - {compiled.NO_NODE}:
            following[before].append(node)
    table = np.full((len(following), max(1, *map(len, following))), compiled.NO_NODE)
    for node, nodes in enumerate(following):
        table[node, : len(nodes)] = nodes
    return table.astype(np.int64)


def _mean_cost_step_j(curves: ModelCurves) -> float:
    """How much a step to the next slower clock saves, on average over all curves, J."""
    drops_j = sum(curve.staircase[0].cost_j - curve.staircase[-1].cost_j for curve in curves.curves)
    num_steps = sum(len(curve.staircase) - 1 for curve in curves.curves)
    return drops_j / max(1, num_steps)
