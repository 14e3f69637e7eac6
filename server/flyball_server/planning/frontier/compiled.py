"""Compiled helpers of the rounding: what a node can do in the window its neighbours leave it."""

# numba has no types: what its decorator returns is unknown to a type checker.
# pyright: reportUntypedFunctionDecorator=false, reportUnknownMemberType=false
# pyright: reportMissingTypeStubs=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportReturnType=false

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

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
        num_points: per row, how many of its entries count.
        tolerance_s: rounding error of a window, s.
    """

    order: IndexArray
    predecessors: IndexArray
    successors: IndexArray
    curve_of_node: IndexArray
    times_s: FloatArray
    costs_j: FloatArray
    num_points: IndexArray
    tolerance_s: float


@njit(cache=True)
def start_of(node: int, finish_s: FloatArray, tables: NodeTables) -> float:
    """When the node can start, s."""
    start_s = 0.0
    for which in range(2):
        before = tables.predecessors[node, which]
        if before != NO_NODE and finish_s[before] > start_s:
            start_s = finish_s[before]
    return start_s


@njit(cache=True)
def point_of(node: int, finish_s: FloatArray, tables: NodeTables) -> int:
    """The cheapest (so the slowest) point of the node that fits its window; -1 if none does."""
    curve = tables.curve_of_node[node]
    window_s = finish_s[node] - start_of(node, finish_s, tables) + tables.tolerance_s
    low, high = 0, tables.num_points[curve]
    while low < high:
        middle = (low + high) // 2
        if tables.times_s[curve, middle] <= window_s:
            low = middle + 1
        else:
            high = middle
    return low - 1


@njit(cache=True)
def points_of(finish_s: FloatArray, tables: NodeTables) -> IndexArray:
    """`point_of` every node; shape (num_nodes,)."""
    points = np.empty(len(finish_s), np.int64)
    for node in range(len(finish_s)):
        points[node] = point_of(node, finish_s, tables)
    return points


@njit(cache=True)
def earliest_finish_s(points: IndexArray, tables: NodeTables) -> FloatArray:
    """Per node, when it finishes if all run at these points as early as they can, s."""
    finish_s = np.zeros(len(points))
    for node in tables.order:
        duration_s = tables.times_s[tables.curve_of_node[node], points[node]]
        finish_s[node] = start_of(node, finish_s, tables) + duration_s
    return finish_s
