"""Compiled helpers of the rounding: what a node can do in the window its neighbours leave it."""

# Inside compiled code a subscript is one number; numpy's types cannot say so.
# pyright: reportReturnType=false, reportArgumentType=false

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from flyball_server.planning.frontier.compilation import compiled_function
from flyball_server.planning.frontier.event_network import FloatArray, IndexArray

NO_NODE = -1


class NodeTables(NamedTuple):
    """The pipeline as arrays, for compiled code.

    Attributes:
        order: the nodes in topological order; shape (num_nodes,).
        predecessors: shape (num_nodes, 2), NO_NODE where there are fewer.
        successors: shape (num_nodes, most successors of a node), likewise.
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
    """When the node can start, s."""
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
