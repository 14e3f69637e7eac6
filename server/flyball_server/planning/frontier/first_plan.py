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
from typing import NamedTuple

import numpy as np

from flyball_server.planning.cancellation import cancellation_point
from flyball_server.planning.frontier.compilation import compiled_function
from flyball_server.planning.frontier.curves import CostCurve, ModelCurves, model_curves
from flyball_server.planning.frontier.event_arcs import BEGIN, END, EventArcs
from flyball_server.planning.frontier.event_network import FloatArray, IndexArray
from flyball_server.planning.frontier.path_bound import path_bound_j
from flyball_server.planning.frontier.rounding import RoundedPlan, Rounding
from flyball_server.planning.model.finish_times import FinishTimes
from flyball_server.planning.model.pipeline_model import Assignment, PipelineModel

# Inside compiled code a subscript is one number; numpy's types cannot say so.
# pyright: reportReturnType=false, reportArgumentType=false, reportUnknownVariableType=false


# Of one curve; so that a slope is found without a search.
NUM_STEPS = 128
# Beyond 1 a step goes on past the least, which spreads a change faster over many stages.
RELAXATION = 1.2
# Of a way between event times, until its cheapest point is known.
NUM_HALVINGS = 8
_NO_CURVE = -1


class ArcCosts(NamedTuple):
    """Costs of windows of the arcs.

    Attributes:
        curve: per arc, a row of the tables below; below 0 for one that only keeps order.
        least_s: per row, the shortest window, s.
        step_s: per row, s from one entry of `slope_w` to the next; 0 where nothing can be gained.
        slope_w: per row, how the cost changes with the window, J/s, not positive and rising, from
            the shortest window on; shape (num_curves, NUM_STEPS + 1).
        waiting_power_w: what each second of the iteration costs, W.
    """

    curve: IndexArray
    least_s: FloatArray
    step_s: FloatArray
    slope_w: FloatArray
    waiting_power_w: float


def arc_costs(curves: ModelCurves, arcs: EventArcs, waiting_power_w: float) -> ArcCosts:
    """Return what the arcs of a pipeline with these curves cost."""
    num_nodes = len(curves.curve_of_node)
    curve = np.full(len(arcs.tail), _NO_CURVE, dtype=np.int64)
    curve[:num_nodes] = curves.curve_of_node
    rows = [_slopes_w(one) for one in curves.curves]
    return ArcCosts(
        curve=curve,
        least_s=np.array([one.hull[0].time_s for one in curves.curves]),
        step_s=np.array([step_s for step_s, _ in rows]),
        slope_w=np.array([slope_w for _, slope_w in rows]),
        waiting_power_w=float(waiting_power_w),
    )


def _slopes_w(curve: CostCurve) -> tuple[float, FloatArray]:
    """The distance of its entries, s, and a row of `slope_w`; the last entry is 0."""
    times_s = np.array([point.time_s for point in curve.hull])
    costs_j = np.array([point.cost_j for point in curve.hull])
    if len(times_s) == 1:
        return 0.0, np.zeros(NUM_STEPS + 1)
    lengths_s = np.diff(times_s)
    middles_s = (times_s[1:] + times_s[:-1]) / 2
    end_s = times_s[-1] + lengths_s[-1] / 2
    step_s = (end_s - times_s[0]) / NUM_STEPS
    slope_w = np.interp(
        times_s[0] + step_s * np.arange(NUM_STEPS + 1),
        np.append(middles_s, end_s),
        np.append(np.diff(costs_j) / lengths_s, 0.0),
    )
    slope_w[-1] = 0.0
    return float(step_s), slope_w


@compiled_function
def _least_window_s(arc: int, costs: ArcCosts) -> float:
    curve = costs.curve[arc]
    return 0.0 if curve < 0 else costs.least_s[curve]


@compiled_function
def earliest_s(arcs: EventArcs, costs: ArcCosts) -> FloatArray:
    """Per event, when it is with all windows at their shortest; shape (num_events,)."""
    time_s = np.zeros(len(arcs.order))
    for event in arcs.order:
        for place in range(arcs.in_first[event], arcs.in_first[event + 1]):
            arc = arcs.in_arcs[place]
            ready_s = time_s[arcs.tail[arc]] + _least_window_s(arc, costs)
            time_s[event] = max(time_s[event], ready_s)
    return time_s


@compiled_function
def latest_s(arcs: EventArcs, costs: ArcCosts, deadline_s: float) -> FloatArray:
    """Per event, by when it must be for the end to be at the deadline; shape (num_events,)."""
    time_s = np.full(len(arcs.order), deadline_s)
    for event in arcs.order[::-1]:
        for place in range(arcs.out_first[event], arcs.out_first[event + 1]):
            arc = arcs.out_arcs[place]
            wanted_s = time_s[arcs.head[arc]] - _least_window_s(arc, costs)
            time_s[event] = min(time_s[event], wanted_s)
    return time_s


@compiled_function
def brought_within(
    time_s: FloatArray, latest_s: FloatArray, arcs: EventArcs, costs: ArcCosts
) -> FloatArray:
    """The event times, brought within what the shortest windows and the deadline leave them."""
    within_s = np.zeros(len(time_s))
    for event in arcs.order:
        if event == BEGIN:
            continue
        ready_s = 0.0
        for place in range(arcs.in_first[event], arcs.in_first[event + 1]):
            arc = arcs.in_arcs[place]
            ready_s = max(ready_s, within_s[arcs.tail[arc]] + _least_window_s(arc, costs))
        within_s[event] = max(ready_s, min(time_s[event], latest_s[event]))
    return within_s


# The helpers take arrays, not tuples of them, whose references would be counted at every arc.


@compiled_function
def _entry_at(
    curve: int, window_s: float, least_s: FloatArray, step_s: FloatArray
) -> tuple[int, float]:
    """Return the place of such a slope in its row: the entry before, and the share after."""
    if curve < 0 or step_s[curve] == 0.0:
        return NUM_STEPS, 0.0
    place = max(0.0, (window_s - least_s[curve]) / step_s[curve])
    if place >= NUM_STEPS:
        return NUM_STEPS, 0.0
    entry = int(place)
    return entry, place - entry


@compiled_function
def _slope_around(  # noqa: PLR0917 - compiled code takes no keywords
    time_s: float,
    places: tuple[int, int],
    of_event: IndexArray,
    other_end: IndexArray,
    times_s: FloatArray,
    curves: IndexArray,
    tables: tuple[FloatArray, FloatArray, FloatArray],
    sign: float,
) -> tuple[float, float, float]:
    """Return what an event's arcs on one side cost more for each second that it is later, J/s.

    Also how that changes, J/s2, and the time that the shortest windows on this side allow, s:
    the earliest with sign 1, the side before; the latest with sign -1, the side after.
    """
    least_s, step_s, slope_w = tables
    sum_w, bend_w, limit_s = 0.0, 0.0, -sign * np.inf
    for place in range(places[0], places[1]):
        arc = of_event[place]
        curve = curves[arc]
        other_s = times_s[other_end[arc]]
        entry, share = _entry_at(curve, sign * (time_s - other_s), least_s, step_s)
        if entry < NUM_STEPS:
            rise_w = slope_w[curve, entry + 1] - slope_w[curve, entry]
            sum_w += sign * (slope_w[curve, entry] + share * rise_w)
            bend_w += rise_w / step_s[curve]
        shortest_s = least_s[curve] if curve >= 0 else 0.0
        limit_s = sign * max(sign * limit_s, sign * other_s + shortest_s)
    return sum_w, bend_w, limit_s


@compiled_function
def sweep(time_s: FloatArray, num_sweeps: int, arcs: EventArcs, costs: ArcCosts) -> None:
    """Improve the event times in place, forwards and backwards by turns; the end stays.

    Args:
        time_s: per event, with windows that are long enough; shape (num_events,).
        num_sweeps: over all events.
        arcs: the pipeline.
        costs: of its windows.
    """
    tail, head, order, in_first, in_arcs, out_first, out_arcs = arcs
    curves, tables = costs.curve, (costs.least_s, costs.step_s, costs.slope_w)
    for number in range(num_sweeps):
        for place in range(len(order)):
            event = order[place if number % 2 == 0 else len(order) - 1 - place]
            if event in (BEGIN, END):
                continue
            now_s = time_s[event]
            before = (in_first[event], in_first[event + 1])
            before_w, before_bend_w, least_s = _slope_around(
                now_s, before, in_arcs, tail, time_s, curves, tables, 1.0
            )
            after = (out_first[event], out_first[event + 1])
            after_w, after_bend_w, most_s = _slope_around(
                now_s, after, out_arcs, head, time_s, curves, tables, -1.0
            )
            slope_w, bend_w = before_w + after_w, before_bend_w + after_bend_w
            if bend_w > 0.0:
                now_s -= RELAXATION * slope_w / bend_w
            elif slope_w != 0.0:
                now_s = least_s if slope_w > 0.0 else most_s
            time_s[event] = max(least_s, min(most_s, now_s))


@compiled_function
def _rise_w(
    from_s: FloatArray, to_s: FloatArray, share: float, arcs: EventArcs, costs: ArcCosts
) -> float:
    """Return how the cost changes on the way from the one to the other, J for the whole way."""
    rise_j: float = costs.waiting_power_w * (to_s[END] - from_s[END])
    for arc in range(len(costs.curve)):
        curve = costs.curve[arc]
        if curve < 0:
            continue
        window_s = from_s[arcs.head[arc]] - from_s[arcs.tail[arc]]
        longer_s = to_s[arcs.head[arc]] - to_s[arcs.tail[arc]] - window_s
        entry, part = _entry_at(curve, window_s + share * longer_s, costs.least_s, costs.step_s)
        if entry < NUM_STEPS:
            before_w, after_w = costs.slope_w[curve, entry], costs.slope_w[curve, entry + 1]
            rise_j += longer_s * (before_w + part * (after_w - before_w))
    return rise_j


@compiled_function
def cheapest_between(
    from_s: FloatArray, to_s: FloatArray, arcs: EventArcs, costs: ArcCosts
) -> FloatArray:
    """The event times of least energy on the straight way from the one to the other.

    On it the energy is convex, and windows that are long enough at both ends are so throughout.
    """
    low, high = 0.0, 1.0
    if _rise_w(from_s, to_s, high, arcs, costs) <= 0.0:
        return to_s.copy()
    for _ in range(NUM_HALVINGS):
        share = (low + high) / 2
        if _rise_w(from_s, to_s, share, arcs, costs) > 0.0:
            high = share
        else:
            low = share
    return from_s + low * (to_s - from_s)


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
        """Return what an assignment takes, to the last bit as the simulator has it, s."""
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
        """Return when the events are with such durations, in the middle of their floats."""
        finish_s = np.array(self._finish_times.earliest_s(durations_s))
        latest_finish_s = np.array(self._finish_times.latest_s(durations_s, float(finish_s.max())))
        time_s = np.zeros(len(self._arcs.order))
        heads = self._arcs.head[: self._dag.num_nodes]
        np.maximum.at(time_s, heads, (finish_s + latest_finish_s) / 2)
        return time_s

    def _rounded(self, rounding: Rounding, time_s: FloatArray, deadline_s: float) -> RoundedPlan:
        finish_s = time_s[self._arcs.head[: self._dag.num_nodes]]
        return rounding.round_down(finish_s, deadline_s)
