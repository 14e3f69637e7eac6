"""The compiled inner loop of the parametric simplex: from one deadline's basis to another's.

A basis is two trees of arcs whose windows are exactly at a corner of their hulls, one rooted at
BEGIN, the other at END; every event is in one of them. The other arcs are each within a segment
of their hull, and their price of time is that segment's slope. As the deadline moves, the tree of
END moves with it, and only windows between the trees change. The first of them to reach a corner
enters the trees; along the path that it closes from BEGIN to END the prices change until one
reaches its corner's steepest or flattest slope, and that arc leaves.
"""

# Inside compiled code a subscript is one number; numpy's types cannot say so.
# pyright: reportReturnType=false, reportArgumentType=false, reportAssignmentType=false

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from flyball_server.planning.frontier.compilation import compiled_function
from flyball_server.planning.frontier.event_network import BEGIN, END, FloatArray, IndexArray

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
    """Where a walk stands; changed in place.

    Attributes:
        is_in_tree: per arc.
        corner: per arc, the corner it is at, or outside the trees the one its segment begins at.
        flow_w: per arc, its price of time, J/s.
        time_s: per event; shape (num_events,).
        tree: per event, OF_BEGIN or OF_END.
        parent: per event, the arc towards its tree's root, NO_ARC at the roots.
        price_w: of the deadline, J/s: what flows from BEGIN to END; shape (1,).
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
        max_pivots: after so many it gives up.
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
    """How far END can move before a window between the trees reaches a corner, and whose."""
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
    """How much the flow along the path can change before an arc of it must leave the trees.

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
