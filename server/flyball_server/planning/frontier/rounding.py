"""From event times to one clock per instruction: rounding down, then annealing."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from flyball_pipeline.paths import earliest_finish_s
from flyball_server.planning.frontier.annealing import Annealing, EventTimes, PointTable
from flyball_server.planning.frontier.curves import CostCurve, ModelCurves
from flyball_server.planning.frontier.event_network import EventNetwork
from flyball_server.planning.model.array_dag import (
    ArrayDag,
    FloatArray,
    IndexArray,
    earliest_finishes_s,
    every_row,
    forward_pass_of_many,
)
from flyball_server.planning.model.pipeline_model import Assignment
from flyball_server.planning.model.simulator import critical_path

# Of the slowest iteration. A window is a difference of two sums of durations; its rounding error
# is below this.
WINDOW_TOLERANCE = 1e-13

# Temperatures in mean cost steps between neighbouring clocks: the first from a rounding (and a
# share of the height of a hill), the first from a neighbour's plan, and the last.
HOT_STEPS, HOT_HILLS, WARM_STEPS, COLD_STEPS = 0.5, 0.5, 0.2, 0.05
# In a tiny pipeline, of up to so many instructions, each change of a clock is a high step:
# annealing begins so much hotter.
TINY_INSTRUCTIONS, HOTTER = 64, 4.0
# Up to here all plans of a pipeline are tried: their number, times that of the instructions.
MAX_TRIED = 400_000
# A solver's windows may be a little too long; they are shrunk until the plan is in time.
SHRINKINGS = (0.0, 1e-9, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1.0)


@dataclass(frozen=True, kw_only=True)
class RoundedPlans:
    """Plans of one pipeline, with one clock for each instruction.

    Attributes:
        event_s: per plan and event of `EventTimes`, by when its instructions have finished, s;
            annealing can go on from here; shape (num_plans, num_events + 1).
        cost_j: per plan, energy of the iteration, J; shape (num_plans,).
    """

    event_s: FloatArray
    cost_j: FloatArray

    def __len__(self) -> int:
        return len(self.cost_j)

    @property
    def end_s(self) -> FloatArray:
        """Per plan, when the last instruction has finished, s; shape (num_plans,)."""
        end_s: FloatArray = self.event_s.max(axis=1)
        return end_s

    def some(self, plans: Sequence[int] | slice | IndexArray) -> RoundedPlans:
        """Return the plans of these indices."""
        return RoundedPlans(event_s=self.event_s[plans], cost_j=self.cost_j[plans])

    def or_better(self, others: RoundedPlans) -> RoundedPlans:
        """Return each plan, or the other plan in its place that costs less."""
        is_better = others.cost_j < self.cost_j
        return RoundedPlans(
            event_s=np.where(is_better[:, None], others.event_s, self.event_s),
            cost_j=np.where(is_better, others.cost_j, self.cost_j),
        )


class Rounding:
    """The rounding of one pipeline, for any deadline.

    Args:
        dag: DAG whose nodes get clocks.
        curves: time-energy curve of each node.
        network: the pipeline's events.

    Attributes:
        slowest_time_s: iteration time with every instruction at its slowest point, s.
        mean_step_j: how much a step to the next slower clock saves on average, J.
    """

    def __init__(self, dag: ArrayDag, curves: ModelCurves, network: EventNetwork) -> None:
        self._dag = dag
        staircases = [curve.staircase for curve in curves.curves]
        self._choices = np.array([point.choice for staircase in staircases for point in staircase])
        slowest_s = np.array([staircase[-1].time_s for staircase in staircases])[curves.curve_array]
        self.slowest_time_s = float(earliest_finishes_s(dag, slowest_s[:, None]).max())
        self._events = EventTimes(dag, network, curves)
        tolerance_s = WINDOW_TOLERANCE * self.slowest_time_s
        self._points = PointTable(curves.curves, tolerance_s=tolerance_s)
        self._waiting_power_w = float(network.waiting_power_w)
        self._annealing = Annealing(self._events, self._points, self._waiting_power_w)
        self.mean_step_j = _mean_cost_step_j(curves)
        self._hot_j = max(HOT_STEPS * self.mean_step_j, HOT_HILLS * _mean_hill_j(curves))
        if dag.num_nodes <= TINY_INSTRUCTIONS:
            self._hot_j *= HOTTER

    def fastest(self) -> RoundedPlans:
        """One plan, with each instruction at its fastest point."""
        return self.at_points(self._points.first[self._events.curve][None, :])

    @functools.cached_property
    def _every(self) -> tuple[IndexArray, RoundedPlans] | None:
        """All plans of a tiny pipeline, by points and measured; None: there are too many."""
        curve = self._events.curve
        first = self._points.first[curve]
        counts: list[int] = (self._points.first[curve + 1] - first).tolist()
        if math.prod(counts) * len(counts) > MAX_TRIED:
            return None
        points = first + every_row(counts)
        return points, self.at_points(points)

    def best(self, deadline_s: float) -> IndexArray | None:
        """Return the points of the best of all plans; None: there are too many to try each.

        Args:
            deadline_s: not less than the fastest.
        """
        if self._every is None:
            return None
        points, plans = self._every
        end_s = plans.end_s
        costs_j = np.where(end_s <= max(deadline_s, end_s.min()), plans.cost_j, np.inf)
        cheapest = np.flatnonzero(costs_j == costs_j.min())
        best: IndexArray = points[cheapest[end_s[cheapest].argmin()]]
        return best

    def round_down(self, finish_s: FloatArray, deadlines_s: FloatArray) -> RoundedPlans:
        """Each instruction at the slowest clock with which it meets its finish.

        An instruction that cannot meet it runs at its fastest clock. What one leaves unused,
        those after it can use.

        Args:
            finish_s: per plan and node, s; shape (num_plans, num_nodes).
            deadlines_s: a plan takes at most this long; not less than the fastest; shape
                (num_plans,).
        """
        curve, table = self._events.curve[:, None], self._points
        fastest = table.first[curve]
        event_s = np.repeat(self.fastest().event_s, len(deadlines_s), axis=0)
        late = np.arange(len(deadlines_s))
        for shrinking in SHRINKINGS:

            def finish_of(
                nodes: IndexArray,
                start_s: FloatArray,
                share: float = 1.0 - shrinking,
                wanted_s: FloatArray = finish_s.T[:, late],
            ) -> FloatArray:
                points = table.points(curve[nodes], (wanted_s[nodes] - start_s) * share)
                finish_s: FloatArray = table.times_s[np.maximum(points, fastest[nodes])]
                finish_s += start_s
                return finish_s

            rounded_s = forward_pass_of_many(self._dag, len(late), finish_of)
            is_in_time = rounded_s.max(axis=0) <= deadlines_s[late]
            event_s[late[is_in_time]] = self._events.of_nodes(rounded_s[:, is_in_time].T)
            late = late[~is_in_time]
            if not len(late):
                break
        return self._at(event_s)

    def stretch(self, plans: RoundedPlans, factor: FloatArray) -> RoundedPlans:
        """The plans with every finish that much later: all windows longer, clocks as they fit."""
        event_s = plans.event_s * factor[:, None]
        event_s[:, -1] = self._events.begin_s
        return self._at(event_s)

    def improve(
        self,
        plans: RoundedPlans,
        deadlines_s: FloatArray,
        num_steps: int,
        *,
        is_hot: bool,
        seed: int,
    ) -> RoundedPlans:
        """Anneal from each plan; none gets worse.

        Args:
            plans: to begin with.
            deadlines_s: per plan, its longest time; shape (num_plans,).
            num_steps: number of annealing steps.
            is_hot: for a rounding; else the plan's order is worth keeping, as a neighbour's is.
            seed: seed of the random numbers.
        """
        if self.mean_step_j == 0 or num_steps == 0:  # one useful clock each: nothing to choose
            return plans
        event_s = plans.event_s.copy()
        hot_j = self._hot_j if is_hot else WARM_STEPS * self.mean_step_j
        temperatures_j = (hot_j, COLD_STEPS * self.mean_step_j)
        self._annealing.anneal(event_s, deadlines_s, num_steps, temperatures_j, seed)
        return plans.or_better(self._at(event_s))

    def points(self, plans: RoundedPlans) -> IndexArray:
        """Per plan and instruction its clock, an index into the table of points."""
        return self._points.points(self._events.curve, self._events.windows_s(plans.event_s))

    def in_time(self, points: IndexArray, deadline_s: float) -> IndexArray:
        """Return a plan's points, with faster ones where rounding errors make it late.

        Args:
            points: per instruction, an index into the table of points; shape (num_nodes,).
            deadline_s: not less than the fastest.
        """
        points, fastest = points.copy(), self._points.first[self._events.curve]
        while True:
            durations_s: list[float] = self._points.times_s[points].tolist()
            finish_s = earliest_finish_s(self._dag, durations_s)
            path = critical_path(self._dag, durations_s, finish_s)
            slower = [node for node in path if points[node] > fastest[node]]
            if max(finish_s) <= deadline_s or not slower:
                return points
            points[slower[-1]] -= 1

    def at_points(self, points: IndexArray) -> RoundedPlans:
        """Each instruction at its measured point, as early as it can.

        Args:
            points: per plan and instruction, an index into the table of points; shape
                (num_plans, num_nodes).
        """
        finish_s = earliest_finishes_s(self._dag, self._points.times_s[points.T])
        return self._costing(self._events.of_nodes(finish_s.T), points)

    def assignments(self, points: IndexArray) -> list[Assignment]:
        """Per plan, the points as indices into the instructions' operating points."""
        assignments: list[Assignment] = self._choices[points].tolist()
        return assignments

    def _at(self, event_s: FloatArray) -> RoundedPlans:
        points = self._points.points(self._events.curve, self._events.windows_s(event_s))
        return self._costing(event_s, points)

    def _costing(self, event_s: FloatArray, points: IndexArray) -> RoundedPlans:
        costs_j = self._points.costs_j(self._events.curve, points).sum(axis=1)
        cost_j = costs_j + self._waiting_power_w * event_s.max(axis=1)
        return RoundedPlans(event_s=event_s, cost_j=cost_j)


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
