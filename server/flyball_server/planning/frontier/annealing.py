"""The compiled inner loop of rounding: simulated annealing over finish times.

The state is a finish time for each instruction, not a clock: the window that its predecessors'
finishes leave it decides the clock, the cheapest that fits. So every state is a feasible plan,
a move changes the cost of a few neighbours only, and no longest path is ever computed again.

A move shifts one finish, often together with the other finishes that the same successor waits
for: in the steady state of 1F1B only that keeps both of the successor's inputs useful. Some
moves shift a whole patch of neighbouring finishes, so that only windows at its border change.
The shift is chosen so that some neighbour's window fits one of its clocks exactly. Ending the
iteration early is worth the blocking power of all ranks.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from flyball_server.planning.frontier.compilation import compiled_function
from flyball_server.planning.frontier.event_network import FloatArray, IndexArray

# Inside compiled code a subscript is one number; numpy's types cannot say so.
# pyright: reportReturnType=false, reportArgumentType=false


NO_NODE = -1


class NodeTables(NamedTuple):
    """The pipeline as arrays, for compiled code.

    Attributes:
        order: the nodes in topological order; shape (num_nodes,).
        predecessors: shape (num_nodes, 2), NO_NODE where there are fewer.
        successors: shape (num_nodes, most successors of a node), NO_NODE where there are fewer.
        curve_of_node: per node, a row of the tables below.
        times_s: rising along each row; shape (num_curves, most points), infinite past the last.
        costs_j: falling along each row, J; same shape.
        is_corner: per row and entry, whether it is a corner of the row's lower convex hull.
        num_points: per row, how many of its entries count.
        tolerance_s: rounding error of a window, s.
    """

    order: IndexArray
    predecessors: IndexArray
    successors: IndexArray
    curve_of_node: IndexArray
    times_s: FloatArray
    costs_j: FloatArray
    is_corner: NDArray[np.bool_]
    num_points: IndexArray
    tolerance_s: float


@compiled_function
def start_of(node: int, finish_s: FloatArray, tables: NodeTables) -> float:
    """Return when the node can start, s."""
    start_s = 0.0
    for which in range(2):
        before = tables.predecessors[node, which]
        if before != NO_NODE and finish_s[before] > start_s:
            start_s = finish_s[before]
    return start_s


@compiled_function
def slowest_fitting(curve: int, window_s: float, tables: NodeTables) -> int:
    """The slowest (so the cheapest) point of a curve that fits the window; -1 if none does."""
    low, high = 0, tables.num_points[curve]
    while low < high:
        middle = (low + high) // 2
        if tables.times_s[curve, middle] <= window_s:
            low = middle + 1
        else:
            high = middle
    return low - 1


@compiled_function
def point_of(node: int, finish_s: FloatArray, tables: NodeTables) -> int:
    """The cheapest point of the node that fits its window; -1 if none does."""
    window_s = finish_s[node] - start_of(node, finish_s, tables) + tables.tolerance_s
    return slowest_fitting(tables.curve_of_node[node], window_s, tables)


@compiled_function
def points_of(finish_s: FloatArray, tables: NodeTables) -> IndexArray:
    """`point_of` every node; shape (num_nodes,)."""
    points = np.empty(len(finish_s), np.int64)
    for node in range(len(finish_s)):
        points[node] = point_of(node, finish_s, tables)
    return points


@compiled_function
def earliest_finish_s(points: IndexArray, tables: NodeTables) -> FloatArray:
    """Per node, when it finishes if all run at these points as early as they can, s."""
    finish_s = np.zeros(len(points))
    for node in tables.order:
        duration_s = tables.times_s[tables.curve_of_node[node], points[node]]
        finish_s[node] = start_of(node, finish_s, tables) + duration_s
    return finish_s


@compiled_function
def round_down(wanted_finish_s: FloatArray, shrinking: float, tables: NodeTables) -> FloatArray:
    """Per node, when it finishes at the slowest clock with which it meets its wanted finish.

    What one node leaves unused, those after it can use. A node that cannot meet its finish runs
    at its fastest. Windows are shortened by the share `shrinking`.
    """
    finish_s = np.zeros(len(wanted_finish_s))
    for node in tables.order:
        curve = tables.curve_of_node[node]
        start_s = start_of(node, finish_s, tables)
        window_s = (wanted_finish_s[node] - start_s) * (1.0 - shrinking) + tables.tolerance_s
        point = max(0, slowest_fitting(curve, window_s, tables))
        finish_s[node] = start_s + tables.times_s[curve, point]
    return finish_s


# Inside compiled code a subscript is one number; numpy's types cannot say so.
# pyright: reportReturnType=false, reportArgumentType=false, reportUnknownVariableType=false


INFEASIBLE_J = 1e18
MAX_GROUP = 24
MAX_AFFECTED = 96
PATCH_SHARE = 0.3  # of the moves shift a patch of finishes
PATCH_GROWTH = 0.5  # chance that a patch grows once more
# Half the moves aim at the next corner of a hull, however far: between two corners there can be
# many points that cost more than either. The others aim at one of the nearest points.
CORNER_SHARE = 0.5
MAX_CLOCK_JUMP = 4
GREEDY_SHARE = 0.1  # of the moves, at the end, accept no loss


@compiled_function
def anneal(
    finish_s: FloatArray,
    deadline_s: float,
    tables: NodeTables,
    sinks: IndexArray,
    waiting_power_w: float,
    moves: tuple[int, int],
    num_moves: int,
    temperature_j: float,
    cooling: float,
    seed: int,
) -> float:
    """Improve `finish_s` in place, by some of an annealing's moves.

    All stretches of moves, one after the other in one thread, give what a single one does.

    Args:
        finish_s: per node, a feasible finish; shape (num_nodes,).
        deadline_s: no finish goes beyond it.
        tables: the pipeline.
        sinks: the nodes that nothing waits for; the last of them ends the iteration.
        waiting_power_w: power while all ranks wait, W.
        moves: which are tried now, from the first (0 begins the annealing) to before the second.
        num_moves: in all; it alone bounds the work, so that the same input gives the same result.
        temperature_j: before the first of these moves.
        cooling: factor of the temperature after each move.
        seed: seed of the random numbers.

    Returns:
        The temperature after the last of these moves, J.
    """
    if moves[0] == 0:
        np.random.seed(seed)
    cost_j = _costs_of_all(finish_s, tables)
    group, affected = np.empty(MAX_GROUP, np.int64), np.empty(MAX_AFFECTED, np.int64)
    old_finish_s, new_cost_j = np.empty(MAX_GROUP), np.empty(MAX_AFFECTED)
    end_s = _end_of(finish_s, sinks)
    # Most of a move stands here: a call for each would make the annealing a fifth slower.
    for move in range(moves[0], moves[1]):
        temperature_j *= cooling if move < num_moves * (1.0 - GREEDY_SHARE) else 0.0
        is_patch = np.random.random() < PATCH_SHARE
        group_size = _choose_patch(group, tables) if is_patch else _choose_group(group, tables)
        num_affected = _collect_affected(affected, group, group_size, tables)
        shift_s, is_fitting = _choose_shift(affected, num_affected, group_size, finish_s, tables)
        if not is_fitting:
            continue
        _copy(old_finish_s, finish_s, group, group_size)
        if not _shift(finish_s, group, group_size, shift_s, is_patch, deadline_s):
            continue
        new_end_s = _end_of(finish_s, sinks) if _has_sink(group, group_size, tables) else end_s
        change_j = waiting_power_w * (new_end_s - end_s)
        for index in range(num_affected):
            new_cost_j[index] = _cost_of(affected[index], finish_s, tables)
            change_j += new_cost_j[index] - cost_j[affected[index]]
        if change_j <= 0.0 or _is_accepted(change_j, temperature_j):
            end_s = new_end_s
            _copy_back(cost_j, new_cost_j, affected, num_affected)
        else:
            _copy_back(finish_s, old_finish_s, group, group_size)
    return temperature_j


@compiled_function
def _copy(values: FloatArray, of_nodes: FloatArray, nodes: IndexArray, count: int) -> None:
    for index in range(count):
        values[index] = of_nodes[nodes[index]]


@compiled_function
def _copy_back(of_nodes: FloatArray, values: FloatArray, nodes: IndexArray, count: int) -> None:
    for index in range(count):
        of_nodes[nodes[index]] = values[index]


@compiled_function
def _costs_of_all(finish_s: FloatArray, tables: NodeTables) -> FloatArray:
    cost_j = np.empty(len(finish_s))
    for node in range(len(finish_s)):
        cost_j[node] = _cost_of(node, finish_s, tables)
    return cost_j


@compiled_function
def _cost_of(node: int, finish_s: FloatArray, tables: NodeTables) -> float:
    point = point_of(node, finish_s, tables)
    if point < 0:
        return INFEASIBLE_J
    cost_j: float = tables.costs_j[tables.curve_of_node[node], point]
    return cost_j


@compiled_function
def _end_of(finish_s: FloatArray, sinks: IndexArray) -> float:
    end_s = 0.0
    for node in sinks:
        end_s = max(end_s, finish_s[node])
    return end_s


@compiled_function
def _has_sink(group: IndexArray, group_size: int, tables: NodeTables) -> bool:
    num_sinks = 0
    for index in range(group_size):
        num_sinks += tables.successors[group[index], 0] == NO_NODE
    return num_sinks > 0


@compiled_function
def _is_accepted(change_j: float, temperature_j: float) -> bool:
    if change_j >= INFEASIBLE_J / 2 or temperature_j == 0.0:
        return False
    return np.random.random() < math.exp(-change_j / temperature_j)


@compiled_function
def _include(items: IndexArray, count: int, item: int) -> int:
    if item == NO_NODE or count == len(items):
        return count
    for index in range(count):
        if items[index] == item:
            return count
    items[count] = item
    return count + 1


@compiled_function
def _choose_group(group: IndexArray, tables: NodeTables) -> int:
    """A node, and with a chance of a half each, the others that its successors wait for."""
    group[0] = np.random.randint(len(tables.predecessors))
    size = 1
    for slot in range(tables.successors.shape[1]):
        after = tables.successors[group[0], slot]
        if after != NO_NODE and np.random.random() < 0.5:
            size = _include(group, size, tables.predecessors[after, 0])
            size = _include(group, size, tables.predecessors[after, 1])
    return size


@compiled_function
def _choose_patch(group: IndexArray, tables: NodeTables) -> int:
    """A node and some of its neighbourhood, each with those its successors wait for."""
    group[0] = np.random.randint(len(tables.predecessors))
    size = 1
    while True:
        inside = group[np.random.randint(size)]
        for slot in range(tables.successors.shape[1]):
            after = tables.successors[inside, slot]
            if after != NO_NODE:
                size = _include(group, size, tables.predecessors[after, 0])
                size = _include(group, size, tables.predecessors[after, 1])
        if size > MAX_GROUP - 6 or np.random.random() > PATCH_GROWTH:
            return size
        inside = group[np.random.randint(size)]
        if np.random.random() < 0.5:
            chosen: int = np.random.randint(tables.successors.shape[1])
            size = _include(group, size, tables.successors[inside, chosen])
        else:
            size = _include(group, size, tables.predecessors[inside, np.random.randint(2)])


@compiled_function
def _collect_affected(
    affected: IndexArray, group: IndexArray, group_size: int, tables: NodeTables
) -> int:
    """The group first, whose windows end at the new time; then all that wait for it."""
    count = 0
    for index in range(group_size):
        count = _include(affected, count, group[index])
    for index in range(group_size):
        for slot in range(tables.successors.shape[1]):
            count = _include(affected, count, tables.successors[group[index], slot])
    return count


@compiled_function
def _choose_shift(
    affected: IndexArray,
    num_affected: int,
    group_size: int,
    finish_s: FloatArray,
    tables: NodeTables,
) -> tuple[float, bool]:
    """A shift after which some affected node's window fits a clock near its own exactly."""
    aimed = np.random.randint(num_affected)
    node = affected[aimed]
    curve = tables.curve_of_node[node]
    point = point_of(node, finish_s, tables)
    if np.random.random() < CORNER_SHARE:
        point = _next_corner(point, curve, tables)
    else:
        point += np.random.randint(-MAX_CLOCK_JUMP, MAX_CLOCK_JUMP + 1)
    if point < 0 or point >= tables.num_points[curve]:
        return 0.0, False
    start_s = start_of(node, finish_s, tables)
    longer_s = start_s + tables.times_s[curve, point] - finish_s[node]
    # The first group_size of the affected are the group: their windows end later by the shift.
    # All others' begin later by it.
    return (longer_s if aimed < group_size else -longer_s), True


@compiled_function
def _next_corner(point: int, curve: int, tables: NodeTables) -> int:
    """The corner of the curve's hull next to a point, on either side; past its end if none is."""
    step = 1 if np.random.random() < 0.5 else -1
    point += step
    while 0 <= point < tables.num_points[curve] and not tables.is_corner[curve, point]:
        point += step
    return point


@compiled_function
def _shift(
    finish_s: FloatArray,
    group: IndexArray,
    group_size: int,
    shift_s: float,
    is_patch: bool,
    deadline_s: float,
) -> bool:
    """Shift a patch as it is, or bring a group to one time; False where the deadline forbids."""
    for index in range(group_size):
        if finish_s[group[index]] + shift_s > deadline_s:
            return False
    together_s = finish_s[group[0]] + shift_s
    for index in range(group_size):
        if is_patch:
            finish_s[group[index]] += shift_s
        else:
            finish_s[group[index]] = together_s
    return True
