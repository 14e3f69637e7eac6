"""Simulated annealing over finish times, for many plans of one pipeline at once.

The state is a finish time for each event, not a clock: the window between an instruction's start
and its finish decides the clock, the cheapest that fits. So every state is a feasible plan, and a
shifted event changes the cost of its own instructions alone. Events are those of
`event_network`: instructions that the same others wait for finish at one event. An instruction
starts with the last event that it waits for.

A step shifts all events of a maximal independent set: no two of them share an instruction, so
each is shifted as if it were alone. Of a few random shifts, and none, each event gets one with
the Boltzmann probability of its cost (Gumbel's maximum). A shift makes the window of one of the
event's instructions fit one of its points exactly. Ending the iteration early is worth the
blocking power of all ranks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from flyball_pipeline.dag import NONE
from flyball_server.planning.cancellation import cancellation_point
from flyball_server.planning.frontier.curves import CostCurve, ModelCurves
from flyball_server.planning.frontier.event_network import END, EventNetwork
from flyball_server.planning.model.array_dag import ArrayDag, BoolArray, FloatArray, IndexArray

# Random shifts of an event in a step, beside none.
NUM_SHIFTS = 7
# Independent sets that the steps take in turn.
MAX_SETS = 60
# The sets take turns in how often their patches grow: not at all to NUM_SIZES - 1 times. Each
# neighbour of a patch joins it with this chance.
NUM_SIZES, JOIN_CHANCE = 4, 0.5
# Most of the shifts aim at the next corner of a hull, however far: between two corners there can
# be many points that cost more than either. The others aim at one of the nearest points.
CORNER_SHARE = 0.6
MAX_CLOCK_JUMP = 4
GREEDY_SHARE = 0.1  # of the steps, at the end, accept no loss
_INFEASIBLE_J = 1e18


class PointTable:
    """The staircases of a pipeline's curves, one after the other.

    Args:
        curves: the curves.
        tolerance_s: rounding error of a window, s.

    Attributes:
        times_s: rising within each curve; shape (num points of all curves,).
        first: per curve, the index of its fastest point; one more for the end.
    """

    def __init__(self, curves: Sequence[CostCurve], *, tolerance_s: float) -> None:
        counts = np.array([len(curve.staircase) for curve in curves])
        self.first = np.concatenate([[0], np.cumsum(counts)])
        self.times_s = np.array([point.time_s for curve in curves for point in curve.staircase])
        # Before each curve's points stands what a window below its fastest one costs.
        costs_j = [
            [_INFEASIBLE_J, *(point.cost_j for point in curve.staircase)] for curve in curves
        ]
        self._costs_j = np.concatenate(costs_j)
        # One sorted array for all: each curve has a stretch of its own.
        self._tolerance_s = tolerance_s
        self._stretch_s = 2 * float(self.times_s.max())
        curve_of_point = np.repeat(np.arange(len(curves)), counts)
        self._keys = curve_of_point * self._stretch_s + self.times_s
        each_s = np.split(self.times_s, self.first[1:-1])
        self._aims_s = np.concatenate(list(map(_aims_s, curves, each_s)))

    def points(self, curve: IndexArray, window_s: FloatArray) -> IndexArray:
        """Return the slowest point that fits each window, an index into `times_s`.

        One that is before the curve's first: none fits.

        Args:
            curve: per window; broadcast against `window_s`.
            window_s: any shape.
        """
        at_s = np.clip(window_s + self._tolerance_s, 0.0, 0.99 * self._stretch_s)
        at_s += curve * self._stretch_s
        points: IndexArray = self._keys.searchsorted(at_s, side="right")
        points -= 1
        return points

    def costs_j(self, curve: IndexArray, points: IndexArray) -> FloatArray:
        """Cost of each point, J; a very high one where no point fitted."""
        costs_j: FloatArray = self._costs_j.take(points + curve + 1)
        return costs_j

    def aims_s(self, points: IndexArray, draws: np.random.Generator) -> FloatArray:
        """Time of a random point of the same curve near each of these, s; nan where there is none.

        Args:
            points: any shape.
            draws: random numbers.
        """
        jump = draws.integers(-MAX_CLOCK_JUMP, MAX_CLOCK_JUMP + 1, points.shape)
        is_to_corner = draws.random(points.shape) < CORNER_SHARE
        times_s: FloatArray = self._aims_s[
            points, np.where(is_to_corner, np.where(jump > 0, -1, -2), jump + MAX_CLOCK_JUMP)
        ]
        return times_s


def _aims_s(curve: CostCurve, times_s: FloatArray) -> FloatArray:
    """Per point of a curve, times that a shift may aim at, s; nan where there is no such point.

    First those of the nearest points, then of the next corner to the faster and the slower side.
    """
    choices = {point.choice for point in curve.hull}
    is_corner = np.array([point.choice in choices for point in curve.staircase])
    corners = np.append(np.flatnonzero(is_corner), NONE)  # the last: there is none
    places = np.arange(len(times_s))
    faster, slower = (np.searchsorted(corners[:-1], places, side) for side in ("left", "right"))
    nearest = [places + jump for jump in range(-MAX_CLOCK_JUMP, MAX_CLOCK_JUMP + 1)]
    aimed = np.column_stack([*nearest, corners[faster - 1], corners[slower]])
    is_point = (aimed >= 0) & (aimed < len(times_s))
    return np.where(is_point, times_s[np.where(is_point, aimed, 0)], np.nan)


class EventTimes:
    """The pipeline's instructions between events.

    Args:
        dag: the pipeline.
        network: its events; those at which an instruction finishes are states here.
        curves: its curves.

    Attributes:
        num_events: number of these events. A state has one more entry, the begin.
        begin_s: time of the begin, s.
        finish: per node, the event at which it finishes.
        starts: per node, the two events that it waits for, `num_events` where there are fewer;
            shape (num_nodes, 2).
        delay_s: per node, time after each of these in s; None: none has any; shape (num_nodes, 2).
        curve: per node, its curve.
        is_sink: per event, whether nothing waits for it.
    """

    def __init__(self, dag: ArrayDag, network: EventNetwork, curves: ModelCurves) -> None:
        finish = network.head[: dag.num_nodes].copy()
        is_sink = finish == END
        finish[is_sink] = network.num_events + np.arange(int(is_sink.sum()))
        # Renumbered in their order.
        self.finish = (np.cumsum(np.bincount(finish) > 0) - 1)[finish]
        self.num_events = int(self.finish.max()) + 1
        self._by_finish = np.argsort(self.finish, kind="stable")
        counts = np.bincount(self.finish)
        self._first_of_events = np.cumsum(counts) - counts
        self.begin_s = dag.tail_s
        self.delay_s: FloatArray | None = None
        if dag.transfer_s:
            self.delay_s = np.column_stack([np.zeros(dag.num_nodes), dag.transfer_s])
        before = dag.predecessor_array.T
        self.starts = np.where(before == NONE, self.num_events, self.finish[before])
        self.starts[self.starts[:, 0] == self.starts[:, 1], 1] = self.num_events
        self.curve = curves.curve_array
        self.is_sink = np.ones(self.num_events + 1, dtype=np.bool_)
        self.is_sink[self.starts.ravel()] = False
        self.is_sink[self.num_events] = False
        pairs = [
            np.column_stack([self.finish, self.starts[:, 0]]),
            np.column_stack([self.finish, self.starts[:, 1]]),
            self.starts,
        ]
        both_ways = np.concatenate([*pairs, *(pair[:, ::-1] for pair in pairs)])
        self._neighbours = both_ways[(both_ways < self.num_events).all(axis=1)]

    def of_nodes(self, finish_s: FloatArray) -> FloatArray:
        """Return the states in which each event is its nodes' last finish.

        Args:
            finish_s: per plan and node, s; shape (num_plans, num_nodes).
        """
        event_s = np.full((len(finish_s), self.num_events + 1), self.begin_s)
        by_event_s = finish_s[:, self._by_finish]
        event_s[:, :-1] = np.maximum.reduceat(by_event_s, self._first_of_events, axis=1)
        return event_s

    def windows_s(self, event_s: FloatArray) -> FloatArray:
        """Per node, its window, s; `event_s` may be of many plans, one in each row."""
        starts_s = event_s[..., self.starts]
        if self.delay_s is not None:
            starts_s += self.delay_s
        start_s = starts_s.max(axis=-1)
        window_s: FloatArray = event_s[..., self.finish] - start_s
        return window_s

    def patches(self, draws: np.random.Generator, num_growths: int) -> IndexArray:
        """Random patches of events, of which no two share an instruction.

        One sink at most is in a patch, so that one patch at most decides when the iteration ends.

        Args:
            draws: random numbers.
            num_growths: how often a patch takes in some of its neighbours; 0: single events.

        Returns:
            Per event its patch, numbered from 0 on, the one with the sink last; -1: none.
        """
        one, other = self._neighbours.T
        sinks = np.flatnonzero(self.is_sink)
        can_move = ~self.is_sink[: self.num_events]
        can_move[draws.choice(sinks)] = True
        seeds = _independent(one, other, can_move, draws)
        patch = np.where(seeds, np.arange(self.num_events), NONE)
        for _ in range(num_growths):
            joins = (patch[one] == NONE) & can_move[one] & (patch[other] != NONE)
            joins &= draws.random(len(one)) < JOIN_CHANCE
            patch[one[joins]] = patch[other[joins]]
        one, other = patch[one], patch[other]
        is_between = (one != NONE) & (other != NONE) & (one != other)
        chosen = _independent(one[is_between], other[is_between], seeds, draws)
        patch[~chosen[patch] | (patch == NONE)] = NONE
        numbers = np.flatnonzero(chosen)
        at_sink = patch[sinks].max()
        numbers = np.append(numbers[numbers != at_sink], numbers[numbers == at_sink])
        number_of = np.full(self.num_events + 1, NONE)
        number_of[numbers] = np.arange(len(numbers))
        return number_of[patch]


def _independent(
    one: IndexArray, other: IndexArray, is_open: BoolArray, draws: np.random.Generator
) -> BoolArray:
    """Per item, whether it is in a random maximal set of open items without a pair (Luby)."""
    is_open, num_items = is_open.copy(), len(is_open)
    is_chosen = np.zeros(num_items, dtype=np.bool_)
    rank = draws.permutation(num_items)
    while is_open.any():
        open_rank = np.where(is_open, rank, num_items)
        least = np.full(num_items, num_items)
        np.minimum.at(least, one, open_rank[other])
        is_added = is_open & (open_rank < least)
        is_chosen |= is_added
        is_open &= ~is_added
        is_open[one[is_added[other]]] = False
    return is_chosen


class _Patches:
    """Patches that a step shifts, and the instructions whose windows that changes.

    Attributes:
        patch: per event, its patch; -1: it is not shifted.
        num_patches: number of patches.
        shifted: events that are shifted.
        sink: the event of the last patch that ends the iteration; None: no patch has one.
        other_sinks: the others.
        finish, starts: per instruction, its events.
        delay_s: per instruction, time after each of `starts`, s; None: none; shape (2, num_nodes).
        curve: per instruction.
        place: per instruction, the patch that it belongs to.
        moves: whether the patch shifts its finish, and the two events that it waits for;
            shape (3, num_nodes).
    """

    def __init__(self, times: EventTimes, draws: np.random.Generator, num_growths: int) -> None:
        self.patch = np.append(times.patches(draws, num_growths), NONE)
        self.num_patches = int(self.patch.max()) + 1
        self.shifted = np.flatnonzero(self.patch != NONE)
        sinks = np.flatnonzero(times.is_sink & (self.patch != NONE))
        self.sink = int(sinks[0]) if len(sinks) else None
        self.other_sinks = np.flatnonzero(times.is_sink & (self.patch == NONE))
        of_nodes = self.patch[np.column_stack([times.finish, times.starts])]
        place = of_nodes.max(axis=1)
        moves = of_nodes != NONE
        nodes = np.flatnonzero((place != NONE) & ~moves.all(axis=1))
        nodes = nodes[np.argsort(place[nodes], kind="stable")]
        self.finish, self.starts = times.finish[nodes], times.starts[nodes].T
        self.delay_s = None if times.delay_s is None else times.delay_s[nodes].T
        self.curve, self.place, self.moves = times.curve[nodes], place[nodes], moves[nodes].T
        counts = np.bincount(self.place, minlength=self.num_patches)
        self._first, self._num_nodes = np.cumsum(counts) - counts, counts

    def random_nodes(self, draws: np.random.Generator, num_plans: int) -> IndexArray:
        """Indices of instructions, NUM_SHIFTS for each plan and patch."""
        share = draws.random((num_plans, self.num_patches, NUM_SHIFTS))
        return (share * self._num_nodes[:, None]).astype(np.int64) + self._first[:, None]

    def sums(self, values: FloatArray) -> FloatArray:
        """Per patch, the sum over its instructions; axis 1 of (num_plans, num_nodes, ...)."""
        sums: FloatArray = np.add.reduceat(values, self._first, axis=1)
        return sums


class Annealing:
    """Annealing of plans of one pipeline, each for its own deadline.

    Args:
        times: the pipeline's events.
        points: the pipeline's points.
        waiting_power_w: blocking power of all ranks, W.
    """

    def __init__(self, times: EventTimes, points: PointTable, waiting_power_w: float) -> None:
        self._times, self._points = times, points
        self._waiting_power_w = waiting_power_w
        self._sets: list[_Patches] = []

    def anneal(
        self,
        event_s: FloatArray,
        deadline_s: FloatArray,
        num_steps: int,
        temperatures_j: tuple[float, float],
        seed: int,
    ) -> None:
        """Improve states in place.

        Args:
            event_s: a feasible state of each plan; shape (num_plans, num_events + 1).
            deadline_s: per plan, no event is later.
            num_steps: it alone bounds the work, so that the same input gives the same result.
            temperatures_j: the first and the last.
            seed: seed of the random numbers.
        """
        draws = np.random.default_rng(seed)
        hot_j, cold_j = temperatures_j
        num_hot = math.ceil(num_steps * (1 - GREEDY_SHARE))
        for step in range(num_steps):
            cancellation_point()
            temperature_j = 0.0
            if step < num_hot:
                temperature_j = hot_j * (cold_j / hot_j) ** (step / num_hot)
            self._step(self._patches(step), event_s, deadline_s, temperature_j, draws)

    def _patches(self, step: int) -> _Patches:
        index = step % MAX_SETS
        if index == len(self._sets):
            draws = np.random.default_rng(index)
            self._sets.append(_Patches(self._times, draws, index % NUM_SIZES))
        return self._sets[index]

    def _step(
        self,
        patches: _Patches,
        event_s: FloatArray,
        deadline_s: FloatArray,
        temperature_j: float,
        draws: np.random.Generator,
    ) -> None:
        num_plans, place, curve = len(event_s), patches.place, patches.curve[:, None]
        finish_s = event_s[:, patches.finish, None]
        start_s, other_s = event_s[:, patches.starts[0], None], event_s[:, patches.starts[1], None]
        if patches.delay_s is not None:
            other_s = other_s + patches.delay_s[1][:, None]
        moves_finish, moves_start, moves_other = patches.moves[:, :, None]

        def costs_j(shift_s: FloatArray) -> tuple[IndexArray, FloatArray]:
            """Of shifts of the patches; shape (num_plans, num_patches, any)."""
            by_s = shift_s[:, place]
            begin_s = np.maximum(start_s + moves_start * by_s, other_s + moves_other * by_s)
            points = self._points.points(curve, finish_s + moves_finish * by_s - begin_s)
            sums_j = patches.sums(self._points.costs_j(curve, points))
            if patches.sink is not None:
                sink_s = event_s[:, patches.sink, None] + shift_s[:, -1]
                end_s = np.maximum(sink_s, others_s)
                is_late = sink_s > deadline_s[:, None]
                sums_j[:, -1] += np.where(is_late, _INFEASIBLE_J, self._waiting_power_w * end_s)
            return points, sums_j

        if patches.sink is not None:
            others_s = event_s[:, patches.other_sinks].max(axis=1, initial=0.0)[:, None]
        none_s = np.zeros((num_plans, patches.num_patches, 1))
        points, now_j = costs_j(none_s)
        chosen = patches.random_nodes(draws, num_plans)
        rows = np.arange(num_plans)[:, None, None]
        aims_s = self._points.aims_s(points[rows, chosen, 0], draws)
        window_s = (finish_s - np.maximum(start_s, other_s))[rows, chosen, 0]
        longer_s = np.where(np.isnan(aims_s), 0.0, aims_s - window_s)
        shift_s = np.where(patches.moves[0, chosen], longer_s, -longer_s)
        _, tried_j = costs_j(shift_s)
        all_s = np.concatenate([none_s, shift_s], axis=2)
        all_j = np.concatenate([now_j, tried_j], axis=2)
        if temperature_j > 0:
            # Three times as fast as draws.gumbel.
            all_j += temperature_j * np.log(-np.log1p(-draws.random(all_j.shape)))
        best = all_j.argmin(axis=2)
        best_s = np.take_along_axis(all_s, best[:, :, None], axis=2)[:, :, 0]
        event_s[:, patches.shifted] += best_s[:, patches.patch[patches.shifted]]
