"""From event times to one clock per instruction: rounding down, then annealing."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from flyball_server.planning.frontier.annealing import Annealing, EventTimes, PointTable
from flyball_server.planning.frontier.curves import CostCurve, ModelCurves
from flyball_server.planning.frontier.event_network import EventNetwork, FloatArray
from flyball_server.planning.model.dag import DependencyDag
from flyball_server.planning.model.finish_times import earliest_finish_s, forward_pass
from flyball_server.planning.model.pipeline_model import Assignment

# Of the slowest iteration. A window is a difference of two sums of durations; its rounding error
# is below this.
WINDOW_TOLERANCE = 1e-13
# Of it too: what a wary rounding wants a window to have to spare for a clock slower than the
# fastest. Then along any path the margins outweigh the errors, and the finished plan, summed up
# in the simulator's order, is not later than the deadline.
WARY_MARGIN = 1e-9

# Temperatures in mean cost steps between neighbouring clocks: the first from a rounding (and a
# share of the height of a hill), the first from a neighbour's plan, and the last.
HOT_STEPS, HOT_HILLS, WARM_STEPS, COLD_STEPS = 0.5, 0.5, 0.2, 0.05
# With few instructions each change of a clock is a high step: up to so many begin so much hotter.
FEW_INSTRUCTIONS, HOTTER = 64, 4.0
# A solver's windows may be a little too long; they are shrunk until the plan is in time.
SHRINKINGS = (0.0, 1e-9, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1.0)


@dataclass(frozen=True, kw_only=True)
class RoundedPlan:
    """One clock for each instruction.

    Attributes:
        event_s: per event of `EventTimes`, by when its instructions have finished, s; annealing
            can go on from here.
        cost_j: energy of the iteration, J.
    """

    event_s: FloatArray
    cost_j: float

    @property
    def end_s(self) -> float:
        """Return when the last of them has finished, s."""
        return float(self.event_s.max())


class Rounding:
    """The rounding of one pipeline, for any deadline.

    Args:
        dag: DAG whose nodes get clocks.
        curves: time-energy curve of each node.
        network: the pipeline's events.
        is_wary: never late by rounding errors, at the price of plans that would just be in time.
    """

    def __init__(
        self, dag: DependencyDag, curves: ModelCurves, network: EventNetwork, *, is_wary: bool
    ) -> None:
        self._dag, self._curve_of_node = dag, curves.curve_of_node
        self._measured_s = [[point.time_s for point in one.staircase] for one in curves.curves]
        slowest_s = [times_s[-1] for times_s in self._measured_s]
        self.slowest_time_s = max(
            earliest_finish_s(dag, [slowest_s[curve] for curve in curves.curve_of_node])
        )
        margin_s = WARY_MARGIN * self.slowest_time_s if is_wary else 0.0
        self._tolerance_s = WINDOW_TOLERANCE * self.slowest_time_s
        self._wanted_s = [
            [times_s[0], *(time_s + margin_s for time_s in times_s[1:])]
            for times_s in self._measured_s
        ]
        self._choices = [[point.choice for point in one.staircase] for one in curves.curves]
        self._events = EventTimes(dag, network, curves)
        self._points = PointTable(curves.curves, margin_s=margin_s, tolerance_s=self._tolerance_s)
        self._waiting_power_w = float(network.waiting_power_w)
        self._annealing = Annealing(self._events, self._points, self._waiting_power_w)
        self._mean_step_j = _mean_cost_step_j(curves)
        self._hot_j = max(HOT_STEPS * self._mean_step_j, HOT_HILLS * _mean_hill_j(curves))
        if dag.num_nodes <= FEW_INSTRUCTIONS:
            self._hot_j *= HOTTER

    def fastest(self) -> RoundedPlan:
        """Each instruction at its fastest point."""
        return self.at_points([0] * self._dag.num_nodes)

    def round_down(self, finish_s: FloatArray, deadline_s: float) -> RoundedPlan:
        """Each instruction at the slowest clock with which it meets its finish.

        An instruction that cannot meet it runs at its fastest clock. What one leaves unused,
        those after it can use.

        Args:
            finish_s: per node, s; shape (num_nodes,).
            deadline_s: the plan takes at most this long; not less than the fastest.
        """
        wanted_s: list[float] = finish_s.tolist()
        curve_of_node, times_s, tolerance_s = self._curve_of_node, self._wanted_s, self._tolerance_s
        for shrinking in SHRINKINGS:
            share = 1.0 - shrinking

            def finish_of(node: int, start_s: float, share: float = share) -> float:
                of_curve_s = times_s[curve_of_node[node]]
                window_s = (wanted_s[node] - start_s) * share + tolerance_s
                fitting = bisect.bisect_right(of_curve_s, window_s)
                return start_s + of_curve_s[fitting - 1 if fitting else 0]

            rounded_s = forward_pass(self._dag, finish_of)
            if max(rounded_s) <= deadline_s:
                return self._at(self._events.of_nodes(rounded_s))
        return self.fastest()

    def stretch(self, plan: RoundedPlan, factor: float) -> RoundedPlan:
        """The plan with every finish that much later: all windows longer, clocks as they fit."""
        return self._at(plan.event_s * factor)

    def improve(
        self,
        plans: Sequence[RoundedPlan],
        deadlines_s: Sequence[float],
        num_steps: int,
        *,
        is_hot: bool,
        seed: int,
    ) -> list[RoundedPlan]:
        """Anneal from each plan; none gets worse.

        Args:
            plans: to begin with.
            deadlines_s: per plan, its longest time.
            num_steps: number of annealing steps.
            is_hot: for a rounding; else the plan's order is worth keeping, as a neighbour's is.
            seed: seed of the random numbers.
        """
        if self._mean_step_j == 0 or num_steps == 0:  # one useful clock each: nothing to choose
            return list(plans)
        event_s = np.array([plan.event_s for plan in plans])
        hot_j = self._hot_j if is_hot else WARM_STEPS * self._mean_step_j
        temperatures_j = (hot_j, COLD_STEPS * self._mean_step_j)
        self._annealing.anneal(event_s, np.array(deadlines_s), num_steps, temperatures_j, seed)
        improved = map(self._at, event_s)
        return [
            min(pair, key=lambda plan: plan.cost_j) for pair in zip(plans, improved, strict=True)
        ]

    def points(self, plan: RoundedPlan) -> list[int]:
        """Per instruction the plan's clock, as a row of its staircase."""
        curve = self._events.curve
        points = self._points.points(curve, self._events.windows_s(plan.event_s))
        rows: list[int] = (points - self._points.first[curve]).tolist()
        return rows

    def at_points(self, points: Sequence[int]) -> RoundedPlan:
        """Each instruction at its measured point, as early as it can."""
        durations_s = [
            self._measured_s[curve][point]
            for curve, point in zip(self._curve_of_node, points, strict=True)
        ]
        event_s = self._events.of_nodes(earliest_finish_s(self._dag, durations_s))
        curve = self._events.curve
        costs_j = self._points.costs_j(curve, self._points.first[curve] + np.array(points))
        return RoundedPlan(event_s=event_s, cost_j=self._cost_j(costs_j, event_s))

    def assignment(self, points: Sequence[int]) -> Assignment:
        """The points as indices into the instructions' operating points."""
        return [
            self._choices[curve][point]
            for curve, point in zip(self._curve_of_node, points, strict=True)
        ]

    def _at(self, event_s: FloatArray) -> RoundedPlan:
        curve = self._events.curve
        points = self._points.points(curve, self._events.windows_s(event_s))
        costs_j = self._points.costs_j(curve, points)
        return RoundedPlan(event_s=event_s, cost_j=self._cost_j(costs_j, event_s))

    def _cost_j(self, costs_j: FloatArray, event_s: FloatArray) -> float:
        return float(costs_j.sum()) + self._waiting_power_w * float(event_s.max())


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
