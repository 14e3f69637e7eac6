"""The relaxed problem by a network simplex whose parameter is the deadline.

Its optimum is piecewise linear in the deadline, so from one deadline's basis the next one's is a
few pivots away (`parametric_walk`). The first basis is known without solving anything: each
instruction at its slowest, each event at its longest path.

Equal stages make most pivots ties. So every window is shortened by an own random share of
`PERTURBATION`, and every event takes an own tiny flow: then there are no ties, and no cycles. The
event times are those of the unperturbed windows, and the bound is certified in any case.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from flyball_server.planning.cancellation import cancellation_point
from flyball_server.planning.frontier.compilation import compiled_function
from flyball_server.planning.frontier.event_network import (
    BEGIN,
    DEADLINE,
    END,
    EventNetwork,
    FloatArray,
    IndexArray,
)
from flyball_server.planning.frontier.relaxation import RelaxedOptimum, relaxed_optimum

# Inside compiled code a subscript is one number; numpy's types cannot say so.
# pyright: reportReturnType=false, reportArgumentType=false, reportAssignmentType=false


NO_ARC = -1
OF_BEGIN, OF_END = 0, 1

REACHED, BLOCKED, AT_PRICE, TOO_MANY_PIVOTS = 0, 1, 2, 3
"""Why a walk ended; blocked: no plan is faster."""


class ArcTables(NamedTuple):
    """The network's arcs without the last one, END -> DEADLINE, as arrays for compiled code.

    Attributes:
        tail, head: shape (num_arcs,).
        arcs_of_event, first_of_event: the arcs at event e are `arcs_of_event[first_of_event[e] :
            first_of_event[e + 1]]`.
        last_corner: per arc; its corners are 0, the fastest, to this one.
        corner_s: per arc and corner, the window there, s.
        gain_w: per arc and corner, what a second more gains from there on, J/s; 0 at the last.
    """

    tail: IndexArray
    head: IndexArray
    arcs_of_event: IndexArray
    first_of_event: IndexArray
    last_corner: IndexArray
    corner_s: FloatArray
    gain_w: FloatArray


class Basis(NamedTuple):
    """State of a walk; changed in place.

    Attributes:
        is_in_tree: per arc.
        corner: per arc, the corner it is at, or outside the trees the one its segment begins at.
        flow_w: per arc, its price of time, J/s.
        time_s: per event; shape (num_events,).
        tree: per event, OF_BEGIN or OF_END.
        parent: per event, the arc towards its tree's root, NO_ARC at the roots.
        price_w: price of the deadline, J/s: flow from BEGIN to END; shape (1,).
    """

    is_in_tree: NDArray[np.bool_]
    corner: IndexArray
    flow_w: FloatArray
    time_s: FloatArray
    tree: IndexArray
    parent: IndexArray
    price_w: FloatArray


class Leaving(NamedTuple):
    """The first arc on a path whose flow reaches a slope of its corner.

    Attributes:
        change_w: after how much more, or less, flow along the path; infinite: no arc ever does.
        arc: which.
        is_rising: its flow rises.
        tree: it is in; of no meaning for the entering arc.
    """

    change_w: float
    arc: int
    is_rising: bool
    tree: int


@compiled_function
def walk(
    deadline_s: float, stop_price_w: float, max_pivots: int, basis: Basis, arcs: ArcTables
) -> tuple[int, int]:
    """Move END to the deadline.

    Args:
        deadline_s: faster or slower than where the walk stands.
        stop_price_w: a walk to a faster deadline ends where a second is worth as much.
        max_pivots: limit beyond which it fails.
        basis: changed in place.
        arcs: the network.

    Returns:
        Why it ended, and the arc about to enter the trees, or NO_ARC.
    """
    direction = 1.0 if deadline_s > basis.time_s[END] else -1.0
    for _ in range(max_pivots):
        way_s = (deadline_s - basis.time_s[END]) * direction
        step_s, entering = _first_at_corner(way_s, direction, basis, arcs)
        _move_end(direction * step_s, basis)
        if entering == NO_ARC:
            return REACHED, NO_ARC
        # Towards faster deadlines more flows from BEGIN to END.
        leaving = _first_at_slope(entering, -direction, basis, arcs)
        missing_w = stop_price_w - basis.price_w[0]
        if direction < 0 and missing_w <= leaving.change_w and not np.isinf(missing_w):
            _push(entering, max(0.0, missing_w), basis, arcs)
            return AT_PRICE, entering
        if np.isinf(leaving.change_w):
            return BLOCKED, entering
        _push(entering, -direction * leaving.change_w, basis, arcs)
        _exchange(entering, leaving, direction, basis, arcs)
    return TOO_MANY_PIVOTS, NO_ARC


@compiled_function
def event_times_s(deadline_s: float, basis: Basis, arcs: ArcTables) -> FloatArray:
    """Per event its time with every arc of the trees exactly at its corner, s."""
    time_s = np.zeros(len(basis.time_s))
    time_s[END] = deadline_s
    stack = np.empty(len(time_s), np.int64)
    stack[0], stack[1] = BEGIN, END
    count = 2
    while count > 0:
        count -= 1
        event = stack[count]
        for index in range(arcs.first_of_event[event], arcs.first_of_event[event + 1]):
            arc = arcs.arcs_of_event[index]
            other = arcs.tail[arc] + arcs.head[arc] - event
            if basis.parent[other] == arc and basis.parent[event] != arc:
                window_s = arcs.corner_s[arc, basis.corner[arc]]
                time_s[other] = time_s[event] + (window_s if arcs.tail[arc] == event else -window_s)
                stack[count] = other
                count += 1
    return time_s


@compiled_function
def _first_at_corner(
    way_s: float, direction: float, basis: Basis, arcs: ArcTables
) -> tuple[float, int]:
    """Return how far END can move before a window between the trees reaches a corner, and whose."""
    step_s, entering = way_s, NO_ARC
    for arc in range(len(arcs.tail)):
        head_tree = basis.tree[arcs.head[arc]]
        if head_tree == basis.tree[arcs.tail[arc]]:
            continue
        corner = basis.corner[arc]
        window_s = basis.time_s[arcs.head[arc]] - basis.time_s[arcs.tail[arc]]
        if (head_tree == OF_END) == (direction < 0):
            room_s = window_s - arcs.corner_s[arc, corner]
        elif corner < arcs.last_corner[arc]:
            room_s = arcs.corner_s[arc, corner + 1] - window_s
        else:
            continue
        if room_s < step_s:
            step_s, entering = room_s, arc
    return max(0.0, step_s), entering


@compiled_function
def _move_end(shift_s: float, basis: Basis) -> None:
    for event in range(len(basis.time_s)):
        if basis.tree[event] == OF_END:
            basis.time_s[event] += shift_s


@compiled_function
def _ends(entering: int, basis: Basis, arcs: ArcTables) -> tuple[int, int]:
    """The arc's event in the tree of BEGIN, and the one in that of END."""
    tail, head = arcs.tail[entering], arcs.head[entering]
    return (tail, head) if basis.tree[tail] == OF_BEGIN else (head, tail)


@compiled_function
def _first_at_slope(entering: int, sign: float, basis: Basis, arcs: ArcTables) -> Leaving:
    """Return how much the flow along the path can change before an arc of it must leave the trees.

    Args:
        entering: the arc that closes the path.
        sign: 1 if more is to flow from BEGIN to END, -1 if less.
        basis: not changed.
        arcs: the network.
    """
    ends = _ends(entering, basis, arcs)
    is_rising = (sign > 0) == (arcs.tail[entering] == ends[0])
    # A rising price: the window has shrunk to its segment's begin; else grown to its end.
    corner = basis.corner[entering] + (0 if is_rising else 1)
    change_w: float = np.inf
    if not is_rising:
        change_w = basis.flow_w[entering] - arcs.gain_w[entering, corner]
    elif corner > 0:
        change_w = arcs.gain_w[entering, corner - 1] - basis.flow_w[entering]
    leaving, is_leaving_rising, tree_of_leaving = entering, is_rising, OF_BEGIN
    for tree in range(2):
        event = ends[tree]
        while basis.parent[event] != NO_ARC:
            arc = basis.parent[event]
            is_downward = arcs.head[arc] == event
            is_rising = (sign > 0) == (is_downward == (tree == OF_BEGIN))
            corner = basis.corner[arc]
            room_w: float = np.inf
            if not is_rising:
                room_w = basis.flow_w[arc] - arcs.gain_w[arc, corner]
            elif corner > 0:
                room_w = arcs.gain_w[arc, corner - 1] - basis.flow_w[arc]
            if room_w < change_w:
                change_w, leaving, is_leaving_rising = room_w, arc, is_rising
                tree_of_leaving = tree
            event = arcs.tail[arc] if is_downward else arcs.head[arc]
    return Leaving(max(0.0, change_w), leaving, is_leaving_rising, tree_of_leaving)


@compiled_function
def _push(entering: int, change_w: float, basis: Basis, arcs: ArcTables) -> None:
    """More flow (less, if negative) from BEGIN over the entering arc to END."""
    ends = _ends(entering, basis, arcs)
    basis.flow_w[entering] += change_w if arcs.tail[entering] == ends[0] else -change_w
    for tree in range(2):
        event = ends[tree]
        while basis.parent[event] != NO_ARC:
            arc = basis.parent[event]
            is_downward = arcs.head[arc] == event
            basis.flow_w[arc] += change_w if is_downward == (tree == OF_BEGIN) else -change_w
            event = arcs.tail[arc] if is_downward else arcs.head[arc]
    basis.price_w[0] += change_w


@compiled_function
def _exchange(
    entering: int, leaving: Leaving, direction: float, basis: Basis, arcs: ArcTables
) -> None:
    """Put one arc into the trees in place of another; what it cuts off joins the other tree."""
    ends = _ends(entering, basis, arcs)
    has_grown = (arcs.tail[entering] == ends[0]) != (direction < 0)
    basis.corner[entering] += has_grown
    # From its corner the leaving arc's window goes on to the segment before, or after.
    basis.corner[leaving.arc] -= leaving.is_rising
    basis.flow_w[leaving.arc] = arcs.gain_w[leaving.arc, basis.corner[leaving.arc]]
    if leaving.arc == entering:
        return
    basis.is_in_tree[leaving.arc], basis.is_in_tree[entering] = False, True
    stack = np.empty(len(basis.tree), np.int64)
    stack[0] = ends[leaving.tree]
    basis.parent[stack[0]] = entering
    count = 1
    while count > 0:
        count -= 1
        event = stack[count]
        basis.tree[event] = 1 - leaving.tree
        for index in range(arcs.first_of_event[event], arcs.first_of_event[event + 1]):
            arc = arcs.arcs_of_event[index]
            if basis.is_in_tree[arc] and arc != basis.parent[event]:
                other = arcs.tail[arc] + arcs.head[arc] - event
                basis.parent[other] = arc
                stack[count] = other
                count += 1


PERTURBATION = 1e-8  # of a mean instruction
DEMAND = 1e-10  # of the median gain; a path's end has all its events' demands
SEED = 20231
MAX_PIVOTS_PER_CORNER = 30.0  # from the slowest to the fastest, one is usual
# Between two moments in which a solve can be ended: of 3000 instructions a tenth of a second.
PIVOTS_AT_A_STRETCH = 2_000


class ParametricRelaxation:
    """See the module.

    Raises:
        ArithmeticError: a walk to a deadline, or the first one, does not end.
    """

    def __init__(self, network: EventNetwork) -> None:
        self._network = network
        self._arcs = _arc_tables(network)
        random = np.random.default_rng(SEED)
        unit_s = float(network.min_window_s[: network.num_instructions].mean())
        shortening_s = PERTURBATION * unit_s * random.random((len(self._arcs.tail), 1))
        self._perturbed = self._arcs._replace(corner_s=self._arcs.corner_s - shortening_s)
        gains_w = self._arcs.gain_w[self._arcs.gain_w > 0]
        unit_w = float(np.median(gains_w)) if len(gains_w) else 1.0
        demand_w = DEMAND * unit_w * (0.5 + random.random(network.num_events))
        self._basis = _slowest_basis(self._perturbed, demand_w)
        num_corners = int((self._arcs.last_corner + 1).sum())
        self._max_pivots = int(MAX_PIVOTS_PER_CORNER * num_corners)
        self._least_energy = self._walk_to_least_energy()

    def solve(self, deadline_s: float) -> RelaxedOptimum:
        """See `Relaxation`."""
        time_s, flow_w = self._least_energy
        if deadline_s < time_s[END]:
            self._walk(deadline_s, math.inf)
            time_s = event_times_s(deadline_s, self._basis, self._arcs)
            flow_w = self._flow_w()
        time_s = time_s.copy()
        time_s[DEADLINE] = deadline_s
        return relaxed_optimum(self._network, deadline_s, time_s, flow_w)

    def _walk_to_least_energy(self) -> tuple[FloatArray, FloatArray]:
        """Event times and flows where a second is worth what waiting costs."""
        entering = self._walk(0.0, self._network.waiting_power_w)
        end_s = float(self._basis.time_s[END])
        time_s = event_times_s(end_s, self._basis, self._arcs)
        if entering != NO_ARC:  # END is where this arc's window is at its corner
            tail, head = self._arcs.tail[entering], self._arcs.head[entering]
            is_shrinking = self._basis.tree[head] == OF_END
            corner = self._basis.corner[entering] + (0 if is_shrinking else 1)
            missing_s = self._arcs.corner_s[entering, corner] - (time_s[head] - time_s[tail])
            end_s += float(missing_s if is_shrinking else -missing_s)
            time_s = event_times_s(end_s, self._basis, self._arcs)
        return time_s, self._flow_w()

    def _walk(self, deadline_s: float, stop_price_w: float) -> int:
        why, entering = TOO_MANY_PIVOTS, NO_ARC
        for first_pivot in range(0, self._max_pivots, PIVOTS_AT_A_STRETCH):
            cancellation_point()
            num_pivots = min(PIVOTS_AT_A_STRETCH, self._max_pivots - first_pivot)
            why, entering = walk(deadline_s, stop_price_w, num_pivots, self._basis, self._perturbed)
            if why != TOO_MANY_PIVOTS:
                break
        if why == TOO_MANY_PIVOTS:
            raise ArithmeticError(
                f"the simplex still moves after {self._max_pivots} pivots, at a deadline of"
                f" {deadline_s} s"
            )
        return entering if why == AT_PRICE else NO_ARC

    def _flow_w(self) -> FloatArray:
        return np.append(self._basis.flow_w, self._basis.price_w)


def _arc_tables(network: EventNetwork) -> ArcTables:
    tail, head = network.tail[:-1].copy(), network.head[:-1].copy()
    length_s = network.length_s[:-1]
    is_segment = np.isfinite(length_s) & (length_s > 0)
    length_s = np.where(is_segment, length_s, 0.0)
    ends = np.concatenate([tail, head])
    by_event = np.argsort(ends, kind="stable")
    return ArcTables(
        tail=tail,
        head=head,
        arcs_of_event=(by_event % len(tail)).astype(np.int64),
        first_of_event=np.searchsorted(ends[by_event], np.arange(network.num_events + 1)).astype(
            np.int64
        ),
        last_corner=is_segment.sum(axis=1).astype(np.int64),
        corner_s=network.min_window_s[:-1, None]
        + np.cumsum(np.column_stack([np.zeros(len(tail)), length_s[:, :-1]]), axis=1),
        gain_w=np.where(is_segment, -network.slope_w[:-1], 0.0),
    )


def _slowest_basis(arcs: ArcTables, demand_w: FloatArray) -> Basis:
    """All windows at their last corner, each event as early as that allows, END alone."""
    num_events = len(demand_w)
    slowest_s = arcs.corner_s[np.arange(len(arcs.tail)), arcs.last_corner]
    time_s, parent, order = _longest_paths(arcs, slowest_s, num_events)
    parent[END] = NO_ARC
    is_in_tree = np.zeros(len(arcs.tail), dtype=np.bool_)
    is_in_tree[parent[parent != NO_ARC]] = True
    tree = np.full(num_events, OF_BEGIN, dtype=np.int64)
    tree[END] = OF_END
    flow_w, below_w = np.zeros(len(arcs.tail)), demand_w.copy()
    for event in reversed(order):
        arc = parent[event]
        if arc != NO_ARC:
            flow_w[arc] = below_w[event]
            below_w[arcs.tail[arc]] += below_w[event]
    return Basis(
        is_in_tree=is_in_tree,
        corner=arcs.last_corner.copy(),
        flow_w=flow_w,
        time_s=time_s,
        tree=tree,
        parent=parent,
        price_w=np.zeros(1),
    )


def _longest_paths(
    arcs: ArcTables, length_s: FloatArray, num_events: int
) -> tuple[FloatArray, IndexArray, list[int]]:
    """Per event its earliest time and the arc that decides it, and the events in order."""
    time_s = np.zeros(num_events)
    parent = np.full(num_events, NO_ARC, dtype=np.int64)
    num_waiting = np.bincount(arcs.head, minlength=num_events)
    order = [BEGIN]
    for event in order:  # grows while it is walked
        for arc in arcs.arcs_of_event[arcs.first_of_event[event] : arcs.first_of_event[event + 1]]:
            if arcs.tail[arc] != event:
                continue
            after = int(arcs.head[arc])
            reached_s = time_s[event] + length_s[arc]
            if parent[after] == NO_ARC or reached_s > time_s[after]:
                time_s[after], parent[after] = reached_s, arc
            num_waiting[after] -= 1
            if num_waiting[after] == 0:
                order.append(after)
    return time_s, parent, order
