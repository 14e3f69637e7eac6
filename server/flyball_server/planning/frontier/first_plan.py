"""A first plan for a deadline, in a fraction of a second where the whole search takes many.

For what cannot wait: a GPU of a large pipeline has become slow, and clocks from before make every
iteration longer. Event times from a few places to begin (in the middle of what the highest clocks
leave; the clocks that run now, stretched or squeezed to the deadline; and where an iteration had
better end before the deadline, at several ends) are improved by sweeps (`relaxing_sweeps`) and
rounded. Some percent above the optimum; nearer where little has changed.
Its certificate is the `path_bound`, which is looser than the whole search's.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from flyball_server.planning.cancellation import cancellation_point
from flyball_server.planning.frontier.curves import model_curves
from flyball_server.planning.frontier.event_arcs import END, EventArcs
from flyball_server.planning.frontier.event_network import FloatArray, IndexArray
from flyball_server.planning.frontier.path_bound import path_bound_j
from flyball_server.planning.frontier.relaxing_sweeps import (
    arc_costs,
    brought_within,
    cheapest_between,
    earliest_s,
    latest_s,
    sweep,
)
from flyball_server.planning.frontier.rounding import RoundedPlan, Rounding
from flyball_server.planning.model.finish_times import FinishTimes
from flyball_server.planning.model.pipeline_model import Assignment, PipelineModel

# From each place to begin, then in so many turns on from the best: on 64 stages x 256 microbatches
# a sweep takes 2 ms, and four times as many bring half a percent.
NUM_SWEEPS, NUM_MORE_TURNS = 12, 3
# Of the fastest iteration: where the deadline allows more than these, they are tried too. Most
# profiles need least within them, and which end is best cannot be told before the sweeps.
SHORTER_ENDS = (1.1, 1.2, 1.4)
# An end that is less than this later than another is not tried besides it.
MUCH = 1.03


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
        slowest_time_s: with every one at its slowest clock of any use, s.
    """

    def __init__(self, model: PipelineModel, arcs: EventArcs) -> None:
        self._model, self._dag, self._arcs = model, model.dag, arcs
        self._finish_times = FinishTimes(model.dag)
        self._curves = model_curves(model)
        self._power_w = sum(model.stage_blocking_power_w)
        self._new_rounding = functools.partial(Rounding, model.dag, self._curves, self._power_w)
        self._rounding = self._new_rounding(is_wary=False)
        self._costs = arc_costs(self._curves, arcs, self._power_w)
        self.fastest_time_s = self._rounding.fastest().end_s
        self.slowest_time_s = self._rounding.slowest_time_s
        least_s = earliest_s(arcs, self._costs)
        self._middle_s = (least_s + latest_s(arcs, self._costs, float(least_s[END]))) / 2

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
            lower_bound_j=path_bound_j(self._model, self._curves, deadline_s),
        )

    def iteration_time_s(self, assignment: Assignment) -> float:
        """What an assignment takes, to the last bit as the simulator has it, s."""
        return max(self._finish_times.earliest_s(self._model.durations_s(assignment)))

    def _searched(
        self, rounding: Rounding, deadline_s: float, running_s: Sequence[Sequence[float]]
    ) -> IndexArray:
        """Per node, the row of its staircase."""
        best, best_time_s = rounding.fastest(), self._middle_s
        for begin_s in self._begins(deadline_s, running_s):
            for num_sweeps in (0, NUM_SWEEPS):
                time_s = self._swept(begin_s, num_sweeps)
                rounded = self._rounded(rounding, time_s, deadline_s)
                if rounded.cost_j < best.cost_j:
                    best, best_time_s = rounded, time_s
        for _ in range(NUM_MORE_TURNS):
            best_time_s = self._swept(self._ended_early(best_time_s), NUM_SWEEPS)
        last = self._rounded(rounding, best_time_s, deadline_s)
        return rounding.points(min(best, last, key=lambda plan: plan.cost_j))

    def _begins(
        self, deadline_s: float, running_s: Sequence[Sequence[float]]
    ) -> Iterator[FloatArray]:
        """Event times to begin from."""
        fastest_s = float(self._middle_s[END])
        late_s = self._stretched(self._middle_s, deadline_s)
        yield late_s
        early_s = self._ended_early(late_s)
        if MUCH * early_s[END] < late_s[END]:
            yield early_s
        for factor in SHORTER_ENDS:
            if MUCH * factor * fastest_s < early_s[END]:
                yield self._stretched(self._middle_s, factor * fastest_s)
        for durations_s in running_s:
            yield self._ended_early(self._stretched(self._events_s(durations_s), deadline_s))

    def _stretched(self, time_s: FloatArray, end_s: float) -> FloatArray:
        """The event times stretched or squeezed to another end, as far as windows allow."""
        wanted_s = time_s * (end_s / time_s[END])
        most_s = latest_s(self._arcs, self._costs, end_s)
        return brought_within(wanted_s, most_s, self._arcs, self._costs)

    def _ended_early(self, time_s: FloatArray) -> FloatArray:
        return cheapest_between(self._middle_s, time_s, self._arcs, self._costs)

    def _swept(self, time_s: FloatArray, num_sweeps: int) -> FloatArray:
        cancellation_point()
        swept_s = time_s.copy()
        sweep(swept_s, num_sweeps, self._arcs, self._costs)
        return swept_s

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
