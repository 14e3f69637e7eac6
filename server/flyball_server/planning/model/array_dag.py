"""The dependency DAG with numpy arrays, for passes over many plans at once."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from flyball_pipeline.dag import NONE, DependencyDag

IndexArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]


def every_row(num_choices: Sequence[int]) -> IndexArray:
    """Return all rows with a choice in each column, the first column's changing first.

    Args:
        num_choices: number of choices of each column; the first is 0.
    """
    strides = np.cumprod([1, *num_choices[:-1]])
    rows: IndexArray = np.arange(math.prod(num_choices))[:, None] // strides % num_choices
    return rows


@dataclass(frozen=True, kw_only=True)
class ArrayDag(DependencyDag):
    """DependencyDag whose edges are arrays too."""

    @functools.cached_property
    def input_delay_array_s(self) -> FloatArray:
        """`input_delay_s`; shape (num_nodes, 1)."""
        return np.array(self.input_delay_s)[:, None]

    @functools.cached_property
    def predecessor_array(self) -> IndexArray:
        """`order_predecessor` and `data_predecessor`; shape (2, num_nodes)."""
        return np.array([self.order_predecessor, self.data_predecessor], dtype=np.int64)

    @functools.cached_property
    def levels(self) -> tuple[tuple[IndexArray, IndexArray, IndexArray], ...]:
        """Groups of nodes that wait for nodes of earlier groups alone.

        Of each its nodes, and for each of these the node before it on its stage, and the one that
        makes its input; NONE where there is none.
        """
        level = [0] * (self.num_nodes + 1)  # the last value stands for NONE
        level[NONE] = -1
        for node in self.topological_order:
            before, source = self.order_predecessor[node], self.data_predecessor[node]
            level[node] = 1 + max(level[before], level[source])
        of_node = np.array(level[:-1])
        nodes = np.argsort(of_node, kind="stable")
        groups = np.split(nodes, np.cumsum(np.bincount(of_node))[:-1])
        before, source = self.predecessor_array
        return tuple((group, before[group], source[group]) for group in groups)


def array_dag(dag: DependencyDag) -> ArrayDag:
    """Return the DAG with arrays."""
    return ArrayDag(**{field.name: getattr(dag, field.name) for field in fields(dag)})


def forward_pass_of_many(
    dag: ArrayDag, num_plans: int, finish_of: Callable[[IndexArray, FloatArray], FloatArray]
) -> FloatArray:
    """Finishes of many plans of one DAG as `forward_pass` has them, s; (num_nodes, num_plans).

    Args:
        dag: DAG to pass.
        num_plans: number of plans.
        finish_of: given some nodes and their earliest starts in s, returns their finishes in s;
            shape (some nodes, num_plans).
    """
    finish_s = np.full((dag.num_nodes + 1, num_plans), dag.tail_s)  # the last value stands for NONE
    for nodes, before, source in dag.levels:
        input_s = finish_s[source]
        if dag.transfer_s:
            input_s += dag.input_delay_array_s[nodes]
        start_s = np.maximum(finish_s[before], input_s)
        finish_s[nodes] = finish_of(nodes, start_s)
    return finish_s[:-1]


def earliest_finishes_s(dag: ArrayDag, durations_s: FloatArray) -> FloatArray:
    """Per node and plan, its finish if all start as early as they can, s.

    Args:
        dag: DAG of all plans.
        durations_s: duration of each node in each plan, s; shape (num_nodes, num_plans).
    """
    return forward_pass_of_many(
        dag, durations_s.shape[1], lambda nodes, start_s: start_s + durations_s[nodes]
    )
