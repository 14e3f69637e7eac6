"""The dependency DAG as a network of event times, the form in which the bound is computed.

An arc is an instruction: it runs from the event at which it may start to the event by which it
has finished, and its window (the time between them) buys a cost that falls along its convex
hull. An instruction that waits for another's finish starts at an event not before it. Where
every finish of a group precedes every start of it (in the steady state of 1F1B always), the
group is one event: finishing early gains nothing, so nothing is lost, and the network has half
the events. Elsewhere an arc without cost keeps the order; it is as long as a transfer takes. A tail
is such an arc too, from BEGIN to the first instruction.

The last arc, END -> DEADLINE, is what an iteration saves by ending early: the blocking power of
all ranks. So the cost of a network is the iteration's energy, and beyond the least-energy time
the bound stays at its minimum by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from flyball_server.planning.frontier.curves import CostPoint, ModelCurves
from flyball_server.planning.model.array_dag import ArrayDag, FloatArray, IndexArray
from flyball_server.planning.model.pipeline_model import PipelineModel

BEGIN, DEADLINE, END = 0, 1, 2
"""Events of every network: time 0, the given deadline, and the iteration's end."""

Hull = tuple[CostPoint, ...]


@dataclass(frozen=True, kw_only=True)
class EventNetwork:
    """Arcs between events, each with a convex cost that falls as its window grows.

    An arc's window is its minimum plus the sum of its segments' parts; a part of segment k costs
    `slope[k]` (not positive, rising with k) per second.

    Attributes:
        num_events: BEGIN, DEADLINE and END included.
        num_instructions: number of the DAG's nodes, which are the first arcs, in their order.
        tail, head: per arc, the events it runs between; shape (num_arcs,).
        min_window_s: per arc, s; shape (num_arcs,).
        slope_w: per arc and segment, J/s; shape (num_arcs, num_segments).
        length_s: per arc and segment, s; infinite for a last segment, 0 where there is none.
        fixed_cost_j: cost of all instructions at their fastest point, J.
        waiting_power_w: blocking power of all ranks, W.
        exact: the same network on hulls with all times as they are, where these are others:
            solvers cannot bear their slopes, but bounds are computed with them.
    """

    num_events: int
    num_instructions: int
    tail: IndexArray
    head: IndexArray
    min_window_s: FloatArray
    slope_w: FloatArray
    length_s: FloatArray
    fixed_cost_j: float
    waiting_power_w: float
    exact: EventNetwork | None = None

    def energy_offset_j(self, deadline_s: float) -> float:
        """Return what to add to the arcs' costs to have the iteration's energy, J."""
        return self.fixed_cost_j + self.waiting_power_w * deadline_s

    def without_waiting(self) -> EventNetwork:
        """Return the network with a last arc that saves nothing."""
        slope_w = self.slope_w.copy()
        slope_w[-1, 0] = 0.0
        exact = self.exact.without_waiting() if self.exact else None
        return replace(self, slope_w=slope_w, waiting_power_w=0.0, exact=exact)


def build_network(model: PipelineModel, curves: ModelCurves) -> EventNetwork:
    """Return the network of a pipeline."""
    start_event, finish_event, order_arcs, num_events = _events(model.dag)
    num_nodes = model.dag.num_nodes
    arcs = [
        *((start, finish, 0.0) for start, finish in zip(start_event, finish_event, strict=True)),
        *order_arcs,
        (END, DEADLINE, 0.0),
    ]
    tail = np.array([tail for tail, _, _ in arcs], dtype=np.int64)
    head = np.array([head for _, head, _ in arcs], dtype=np.int64)
    order_s = np.array([least_s for _, _, least_s in arcs[num_nodes:]])
    waiting_power_w = sum(model.stage_blocking_power_w)

    def network(hulls: Sequence[Hull], exact: EventNetwork | None) -> EventNetwork:
        slope_w, length_s, min_window_s = _segments(hulls, curves, len(arcs))
        min_window_s[num_nodes:] = order_s
        slope_w[-1, 0] = -waiting_power_w
        return EventNetwork(
            num_events=num_events,
            num_instructions=num_nodes,
            tail=tail,
            head=head,
            min_window_s=min_window_s,
            slope_w=slope_w,
            length_s=length_s,
            fixed_cost_j=sum(hulls[curve][0].cost_j for curve in curves.curve_of_node),
            waiting_power_w=waiting_power_w,
            exact=exact,
        )

    hulls = [curve.hull for curve in curves.curves]
    exact_hulls = [curve.exact_hull for curve in curves.curves]
    exact = network(exact_hulls, None) if exact_hulls != hulls else None
    return network(hulls, exact)


def _segments(
    hulls: Sequence[Hull], curves: ModelCurves, num_arcs: int
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Slopes, lengths and least windows of all arcs; those after the nodes' cost nothing."""
    num_nodes = len(curves.curve_of_node)
    num_segments = max(map(len, hulls))
    slope_w, length_s = np.zeros((2, num_arcs, num_segments))
    min_window_s = np.zeros(num_arcs)
    rows = [_hull_segments(hull, num_segments) for hull in hulls]
    of_node = np.array(curves.curve_of_node)
    slope_w[:num_nodes] = np.array([row[0] for row in rows])[of_node]
    length_s[:num_nodes] = np.array([row[1] for row in rows])[of_node]
    min_window_s[:num_nodes] = np.array([hull[0].time_s for hull in hulls])[of_node]
    length_s[num_nodes:, 0] = np.inf
    return slope_w, length_s, min_window_s


def _hull_segments(hull: Hull, num_segments: int) -> tuple[FloatArray, FloatArray]:
    slope_w, length_s = np.zeros((2, num_segments))
    for segment, (left, right) in enumerate(pairwise(hull)):
        length_s[segment] = right.time_s - left.time_s
        slope_w[segment] = (right.cost_j - left.cost_j) / length_s[segment]
    length_s[len(hull) - 1] = np.inf  # waiting after the slowest point gains nothing more
    return slope_w, length_s


_OrderArc = tuple[int, int, float]
"""Two events, and the least time between them in s."""


def _events(dag: ArrayDag) -> tuple[list[int], list[int], list[_OrderArc], int]:
    """Per node its start and finish event, the arcs that only keep order, the number of events."""
    start_event = [BEGIN] * dag.num_nodes
    finish_event = [END] * dag.num_nodes
    order_arcs: list[_OrderArc] = []
    num_events = END + 1
    if dag.tail_s:
        order_arcs.append((BEGIN, num_events, dag.tail_s))
        start_event = [num_events] * dag.num_nodes
        num_events += 1
    delay_s = dag.input_delay_s
    for finishes, starts in _handovers(dag):
        if all(
            not delay_s[node] and len(set(dag.predecessors(node))) == len(finishes)
            for node in starts
        ):
            for node in finishes:
                finish_event[node] = num_events
            for node in starts:
                start_event[node] = num_events
            num_events += 1
            continue
        for node in finishes:
            finish_event[node] = num_events
            num_events += 1
        for node in starts:
            start_event[node] = num_events
            num_events += 1
            order_arcs += [
                (
                    finish_event[before],
                    start_event[node],
                    delay_s[node] if before != dag.order_predecessor[node] else 0.0,
                )
                for before in set(dag.predecessors(node))
            ]
    return start_event, finish_event, order_arcs, num_events


def _handovers(dag: ArrayDag) -> list[tuple[list[int], list[int]]]:
    """Groups of finishes and starts that precedence connects (union-find over both)."""
    num_nodes = dag.num_nodes
    parent = list(range(2 * num_nodes))  # a node's finish, and num_nodes on, its start

    def root(item: int) -> int:
        while parent[item] != item:
            parent[item] = parent[parent[item]]
            item = parent[item]
        return item

    for node in range(num_nodes):
        for before in dag.predecessors(node):
            parent[root(before)] = root(num_nodes + node)
    groups: dict[int, tuple[list[int], list[int]]] = {}
    for item in range(2 * num_nodes):
        finishes, starts = groups.setdefault(root(item), ([], []))
        (finishes if item < num_nodes else starts).append(item % num_nodes)
    return [group for group in groups.values() if group[0] and group[1]]
