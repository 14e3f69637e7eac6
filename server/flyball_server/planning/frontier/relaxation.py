"""The relaxed problem: any mix of clocks on the hulls. Its optimum bounds every plan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from flyball_server.planning.frontier.event_network import (
    BEGIN,
    DEADLINE,
    EventNetwork,
    FloatArray,
)

# Multiples of prices that are searched, as powers of ten, in this many thirds of what is left.
MOST_POWERS, NUM_THIRDS = 9.0, 60


def certified_bound_j(network: EventNetwork, flow_w: FloatArray, deadline_s: float) -> float:
    """The lower bound that the flow proves for plans no slower than the deadline, J.

    Args:
        network: the pipeline.
        flow_w: per arc, a price of its time, J/s; negative ones are taken as 0; shape
            (num_arcs,).
        deadline_s: T, s.
    """
    unbounded = np.isinf(network.length_s)
    # Where a segment is endless, a price below its gain would allow endless profit.
    least_price_w = np.where(unbounded, -network.slope_w, 0.0).max(axis=1)
    price_w = np.maximum(np.maximum(flow_w, 0.0), least_price_w)
    finite_s = np.where(unbounded, 0.0, network.length_s)
    window_gain_j = (np.minimum(0.0, network.slope_w + price_w[:, None]) * finite_s).sum(axis=1)
    cheapest_j = float((window_gain_j + price_w * network.min_window_s).sum())
    excess_w = np.bincount(network.head, price_w, network.num_events) - np.bincount(
        network.tail, price_w, network.num_events
    )
    at_deadline_w = float(excess_w[DEADLINE])
    excess_w[[BEGIN, DEADLINE]] = 0.0
    misplaced_w = at_deadline_w + float(np.maximum(excess_w, 0.0).sum())
    return network.energy_offset_j(deadline_s) + cheapest_j - misplaced_w * deadline_s


def _best_bound_j(network: EventNetwork, flow_w: FloatArray, deadline_s: float) -> float:
    """The bound that the flow proves on hulls with all times as they are, J.

    Between times that nearly agree these are far steeper than what the solver saw. Multiples of
    its flow prove bounds too, and larger ones where the deadline lies between such times.
    """
    if network.exact is None:
        return certified_bound_j(network, flow_w, deadline_s)
    exact = network.exact

    def proven_j(power: float) -> float:
        return certified_bound_j(exact, 10.0**power * flow_w, deadline_s)

    low, high = 0.0, MOST_POWERS
    best_j = proven_j(low)
    for _ in range(NUM_THIRDS):  # the bound is concave in the multiple
        left, right = low + (high - low) / 3, high - (high - low) / 3
        left_j, right_j = proven_j(left), proven_j(right)
        best_j = max(best_j, left_j, right_j)
        low, high = (left, high) if left_j < right_j else (low, right)
    return best_j


@dataclass(frozen=True, kw_only=True)
class RelaxedOptimum:
    """The relaxed problem's solution for one deadline.

    Attributes:
        deadline_s: T, s.
        event_time_s: per event of the network, s; shape (num_events,).
        lower_bound_j: certified: no plan that takes at most T needs less, J.
        bound_slope_w: slope of the bound in T, J/s, not positive.
    """

    deadline_s: float
    event_time_s: FloatArray
    lower_bound_j: float
    bound_slope_w: float


class Relaxation(Protocol):
    """Solves one network's relaxed problem for one deadline after another.

    Contract, tested over both implementations by `tests/contract/test_relaxation.py`:

    - `solve` takes any deadline not below the fastest plan's iteration time;
    - windows of the event times are at least their minima, within 1e-6 of the deadline;
    - the bound is certified (`certificate`) and within 1e-4 of the optimum;
    - the same sequence of deadlines gives the same results.
    """

    def solve(self, deadline_s: float) -> RelaxedOptimum:
        """The optimum for plans that take at most `deadline_s`."""
        ...


def relaxed_optimum(
    network: EventNetwork, deadline_s: float, event_time_s: FloatArray, flow_w: FloatArray
) -> RelaxedOptimum:
    """Return what a solver found, with the bound that its flow certifies."""
    return RelaxedOptimum(
        deadline_s=deadline_s,
        event_time_s=event_time_s,
        lower_bound_j=_best_bound_j(network, flow_w, deadline_s),
        bound_slope_w=min(0.0, network.waiting_power_w - float(flow_w[-1])),
    )
