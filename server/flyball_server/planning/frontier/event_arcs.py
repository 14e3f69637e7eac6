"""The events of a pipeline and the arcs between them as arrays: compiled, for plans in a moment.

The same network as `event_network` has it (that module says why finishes and starts are merged),
without costs, so that it serves whatever the instructions take, and in milliseconds where the
other takes a tenth of a second. Events and arcs are numbered otherwise.
"""

# Inside compiled code a subscript is one number; numpy's types cannot say so.
# pyright: reportReturnType=false, reportArgumentType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from flyball_server.planning.frontier.compilation import compiled_function
from flyball_server.planning.frontier.event_network import IndexArray
from flyball_server.planning.model.dag import DependencyDag

BEGIN, END = 0, 1
"""Events of every pipeline: time 0, and the iteration's end."""


class EventArcs(NamedTuple):
    """Arcs between events; those of instructions first, then those that only keep order.

    Attributes:
        tail, head: per arc, the events it runs between; shape (num_arcs,).
        order: the events in topological order, BEGIN first and END last; shape (num_events,).
        in_first, in_arcs: of event e the arcs that end there are
            `in_arcs[in_first[e] : in_first[e + 1]]`.
        out_first, out_arcs: likewise those that begin there.
    """

    tail: IndexArray
    head: IndexArray
    order: IndexArray
    in_first: IndexArray
    in_arcs: IndexArray
    out_first: IndexArray
    out_arcs: IndexArray


def event_arcs(dag: DependencyDag) -> EventArcs:
    """The events and arcs of a pipeline."""
    predecessors = dag.predecessor_array
    start_event, finish_event, num_events = _events(predecessors)
    before, after = _order_arcs(predecessors, start_event, finish_event)
    tail = np.concatenate([start_event, before])
    head = np.concatenate([finish_event, after])
    in_first, in_arcs = _grouped(head, num_events)
    out_first, out_arcs = _grouped(tail, num_events)
    order = _topological_order(head, in_first, out_first, out_arcs)
    # Nothing follows END, but other events may have been found ready after it.
    order = np.concatenate([order[order != END], [END]])
    return EventArcs(
        tail=tail,
        head=head,
        order=order,
        in_first=in_first,
        in_arcs=in_arcs,
        out_first=out_first,
        out_arcs=out_arcs,
    )


def _grouped(events: IndexArray, num_events: int) -> tuple[IndexArray, IndexArray]:
    """The arcs by one of their events, and where each event's begin."""
    counts = np.bincount(events, minlength=num_events)
    first = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    return first, np.argsort(events, kind="stable").astype(np.int64)


@compiled_function
def _root(parent: IndexArray, item: int) -> int:
    while parent[item] != item:
        parent[item] = parent[parent[item]]
        item = parent[item]
    return item


@compiled_function
def _is_merged(predecessors: IndexArray, roots: IndexArray) -> NDArray[np.bool_]:
    """Per group, by its root: whether each of its finishes precedes each of its starts."""
    num_nodes = predecessors.shape[1]
    num_finishes = np.zeros(2 * num_nodes, np.int64)
    for node in range(num_nodes):
        num_finishes[roots[node]] += 1
    is_merged = np.ones(2 * num_nodes, np.bool_)
    for node in range(num_nodes):
        first, second = predecessors[0, node], predecessors[1, node]
        count = (first >= 0) + (second >= 0 and second != first)
        if count != num_finishes[roots[num_nodes + node]]:
            is_merged[roots[num_nodes + node]] = False
    return is_merged


@compiled_function
def _events(predecessors: IndexArray) -> tuple[IndexArray, IndexArray, int]:
    """Per node its start and finish event, and the number of events."""
    num_nodes = predecessors.shape[1]
    parent: IndexArray = np.arange(2 * num_nodes)  # a node's finish, and num_nodes on, its start
    is_followed = np.zeros(num_nodes, np.bool_)
    for node in range(num_nodes):
        for which in range(2):
            before = predecessors[which, node]
            if before >= 0:
                parent[_root(parent, before)] = _root(parent, num_nodes + node)
                is_followed[before] = True
    roots = np.empty(2 * num_nodes, np.int64)
    for item in range(2 * num_nodes):
        roots[item] = _root(parent, item)
    is_merged = _is_merged(predecessors, roots)
    event_of_root = np.full(2 * num_nodes, -1)
    start_event, finish_event = np.zeros(num_nodes, np.int64), np.ones(num_nodes, np.int64)
    num_events = 2
    for item in range(2 * num_nodes):
        node, root = item % num_nodes, roots[item]
        if item < num_nodes and not is_followed[node]:
            continue  # it may end the iteration
        if item >= num_nodes and predecessors[0, node] < 0 and predecessors[1, node] < 0:
            continue  # it may begin it
        event = event_of_root[root] if is_merged[root] else -1
        if event < 0:
            event = num_events
            event_of_root[root] = event
            num_events += 1
        if item < num_nodes:
            finish_event[node] = event
        else:
            start_event[node] = event
    return start_event, finish_event, num_events


@compiled_function
def _order_arcs(
    predecessors: IndexArray, start_event: IndexArray, finish_event: IndexArray
) -> tuple[IndexArray, IndexArray]:
    """Tails and heads of the arcs from finishes to the starts that wait for them."""
    num_nodes = predecessors.shape[1]
    tail, head = np.empty(2 * num_nodes, np.int64), np.empty(2 * num_nodes, np.int64)
    count = 0
    for node in range(num_nodes):
        for which in range(2):
            before = predecessors[which, node]
            if before < 0 or (which == 1 and before == predecessors[0, node]):
                continue
            if finish_event[before] != start_event[node]:
                tail[count], head[count] = finish_event[before], start_event[node]
                count += 1
    return tail[:count], head[:count]


@compiled_function
def _topological_order(
    head: IndexArray, in_first: IndexArray, out_first: IndexArray, out_arcs: IndexArray
) -> IndexArray:
    """Kahn's algorithm, ready events first in, first out."""
    num_events = len(in_first) - 1
    num_waiting = in_first[1:] - in_first[:-1]
    order = np.empty(num_events, np.int64)
    count = 0
    for event in range(num_events):
        if num_waiting[event] == 0:
            order[count] = event
            count += 1
    done = 0
    while done < count:
        event = order[done]
        done += 1
        for place in range(out_first[event], out_first[event + 1]):
            after = head[out_arcs[place]]
            num_waiting[after] -= 1
            if num_waiting[after] == 0:
                order[count] = after
                count += 1
    return order[:count]
