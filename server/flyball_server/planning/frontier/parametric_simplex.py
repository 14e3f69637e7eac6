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

import numpy as np

from flyball_server.planning.cancellation import cancellation_point
from flyball_server.planning.frontier.event_network import (
    BEGIN,
    DEADLINE,
    END,
    EventNetwork,
    FloatArray,
    IndexArray,
)
from flyball_server.planning.frontier.parametric_walk import (
    AT_PRICE,
    NO_ARC,
    OF_BEGIN,
    OF_END,
    TOO_MANY_PIVOTS,
    ArcTables,
    Basis,
    event_times_s,
    walk,
)
from flyball_server.planning.frontier.relaxation import RelaxedOptimum, relaxed_optimum

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
