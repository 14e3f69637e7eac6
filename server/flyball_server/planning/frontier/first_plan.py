"""A first plan for a deadline, in a fraction of a second where the whole search takes many.

For what cannot wait: a GPU of a large pipeline has become slow, and clocks from before make every
iteration longer. Event times from a few places to begin (in the middle of what the highest clocks
leave; the clocks that run now, stretched or squeezed to the deadline) are improved by sweeps
(`relaxing_sweeps`) and rounded. Some percent above the optimum; nearer where little has changed.
Its certificate is the `path_bound`, which is looser than the whole search's.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from flyball_server.planning.finish_times import FinishTimes
from flyball_server.planning.frontier.curves import model_curves
from flyball_server.planning.frontier.event_arcs import END, EventArcs
from flyball_server.planning.frontier.event_network import FloatArray, IndexArray
from flyball_server.planning.frontier.path_bound import path_bound_j
from flyball_server.planning.frontier.relaxing_sweeps import (
    arc_costs,
    brought_within,
    earliest_s,
    latest_s,
    sweep,
)
from flyball_server.planning.frontier.rounding import RoundedPlan, Rounding
from flyball_server.planning.pipeline_model import Assignment, PipelineModel

# From each place to begin, then on from the best: on 64 stages x 256 microbatches a sweep takes
# 2 ms, and four times as many bring half a percent.
NUM_SWEEPS, NUM_MORE_SWEEPS = 12, 36


@dataclass(frozen=True, kw_only=True)
class FirstPlan:
    """A plan that was made at once.

    Attributes:
        assignment: per node, an index into its operating points.
        lower_bound_j: no plan that meets the deadline needs less, J.
    """

    assignment: Assignment
    lower_bound_j: float


class FirstPlanner:
    """Makes first plans of one pipeline.

    Args:
        model: the pipeline.
        arcs: of its DAG.

    Attributes:
        fastest_time_s: iteration time with every instruction at its fastest, s.
    """

    def __init__(self, model: PipelineModel, arcs: EventArcs) -> None:
        self._dag, self._arcs = model.dag, arcs
        self._finish_times = FinishTimes(model.dag)
        self._curves = model_curves(model)
        self._power_w = sum(model.stage_blocking_power_w)
        self._new_rounding = functools.partial(Rounding, model.dag, self._curves, self._power_w)
        self._rounding = self._new_rounding(is_wary=False)
        self._costs = arc_costs(self._curves, arcs, self._power_w)
        self.fastest_time_s = self._rounding.fastest().end_s

    def plan(self, deadline_s: float, running_s: Sequence[Sequence[float]] = ()) -> FirstPlan:
        """A plan for a deadline not below `fastest_time_s`.

        Args:
            deadline_s: what it takes at most, s.
            running_s: durations of the nodes from which to begin as well, s: of clocks that run
                now, as they were planned, or as they have become.
        """
        deadline_s = min(deadline_s, self._rounding.slowest_time_s)
        points = self._searched(self._rounding, deadline_s, running_s)
        if self._rounding.at_points(points).end_s > deadline_s:  # by a rounding error
            points = self._searched(self._new_rounding(is_wary=True), deadline_s, running_s)
        return FirstPlan(
            assignment=self._rounding.assignment(points),
            lower_bound_j=path_bound_j(self._dag, self._curves, deadline_s, self._power_w),
        )

    def _searched(
        self, rounding: Rounding, deadline_s: float, running_s: Sequence[Sequence[float]]
    ) -> IndexArray:
        """Per node, the row of its staircase."""
        best = rounding.fastest()
        best_time_s: FloatArray | None = None
        for time_s in self._begins(deadline_s, running_s):
            for num_sweeps in (0, NUM_SWEEPS):
                sweep(time_s, deadline_s, num_sweeps, self._arcs, self._costs)
                rounded = self._rounded(rounding, time_s, deadline_s)
                if rounded.cost_j < best.cost_j:
                    best, best_time_s = rounded, time_s
        if best_time_s is not None:
            sweep(best_time_s, deadline_s, NUM_MORE_SWEEPS, self._arcs, self._costs)
            last = self._rounded(rounding, best_time_s, deadline_s)
            best = min(best, last, key=lambda plan: plan.cost_j)
        return rounding.points(best)

    def _begins(
        self, deadline_s: float, running_s: Sequence[Sequence[float]]
    ) -> Iterator[FloatArray]:
        """Event times to begin from."""
        least_s = earliest_s(self._arcs, self._costs)
        fastest_s = float(least_s[END])
        middle_s = (least_s + latest_s(self._arcs, self._costs, fastest_s)) / 2
        most_s = latest_s(self._arcs, self._costs, deadline_s)
        yield brought_within(middle_s * (deadline_s / fastest_s), most_s, self._arcs, self._costs)
        for durations_s in running_s:
            time_s = self._events_s(durations_s)
            time_s *= deadline_s / time_s[END]
            yield brought_within(time_s, most_s, self._arcs, self._costs)

    def _events_s(self, durations_s: Sequence[float]) -> FloatArray:
        """When the events are with such durations, in the middle of their floats."""
        finish_s = np.array(self._finish_times.earliest_s(durations_s))
        latest_finish_s = np.array(self._finish_times.latest_s(durations_s, float(finish_s.max())))
        time_s = np.zeros(len(self._arcs.order))
        heads = self._arcs.head[: self._dag.num_nodes]
        np.maximum.at(time_s, heads, (finish_s + latest_finish_s) / 2)
        return time_s

    def _rounded(self, rounding: Rounding, time_s: FloatArray, deadline_s: float) -> RoundedPlan:
        finish_s = time_s[self._arcs.head[: self._dag.num_nodes]]
        return rounding.round_down(finish_s, deadline_s)
