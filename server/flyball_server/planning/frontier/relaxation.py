"""The relaxed problem: any mix of clocks on the hulls. Its optimum bounds every plan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from flyball_server.planning.frontier.event_network import BEGIN, DEADLINE, EventNetwork
from flyball_server.planning.model.array_dag import FloatArray

# Multiples of prices that are searched, as powers of ten, in this many thirds of what is left.
MOST_POWERS, NUM_THIRDS = 9.0, 60


def certified_bound(
    network: EventNetwork, flow_w: FloatArray, deadline_s: float
) -> tuple[float, float]:
    """Return the lower bound that the flow proves for plans no slower than the deadline, J.

    Also its slope in the deadline, J/s: the same flow proves the bound along that straight line
    for every other deadline.

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
    bound_j = network.energy_offset_j(deadline_s) + cheapest_j - misplaced_w * deadline_s
    return bound_j, network.waiting_power_w - misplaced_w


def _best_bound(
    network: EventNetwork, flow_w: FloatArray, deadline_s: float
) -> tuple[float, float]:
    """The bound that the flow proves on hulls with all times as they are, J, and its slope, J/s.

    Between times that nearly agree these are far steeper than what the solver saw. Multiples of
    its flow prove bounds too, and larger ones where the deadline lies between such times.
    """
    if network.exact is None:
        return certified_bound(network, flow_w, deadline_s)
    exact = network.exact

    def proven(power: float) -> tuple[float, float]:
        return certified_bound(exact, 10.0**power * flow_w, deadline_s)

    low, high = 0.0, MOST_POWERS
    best = proven(low)
    for _ in range(NUM_THIRDS):  # the bound is concave in the multiple
        left, right = low + (high - low) / 3, high - (high - low) / 3
        at_left, at_right = proven(left), proven(right)
        best = max(best, at_left, at_right)
        low, high = (left, high) if at_left < at_right else (low, right)
    return best


@dataclass(frozen=True, kw_only=True)
class RelaxedOptimum:
    """The relaxed problem's solution for one deadline.

    Attributes:
        deadline_s: T, s.
        event_time_s: per event of the network, s; shape (num_events,).
        lower_bound_j: certified: no plan that takes at most T needs less, J.
        bound_slope_w: slope in T of a line through it that is a certified bound at every other
            deadline, J/s.
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
        """Return the optimum for plans that take at most `deadline_s`."""
        ...


def relaxed_optimum(
    network: EventNetwork, deadline_s: float, event_time_s: FloatArray, flow_w: FloatArray
) -> RelaxedOptimum:
    """Return a solver's optimum with the bound that its flow certifies."""
    bound_j, slope_w = _best_bound(network, flow_w, deadline_s)
    return RelaxedOptimum(
        deadline_s=deadline_s,
        event_time_s=event_time_s,
        lower_bound_j=bound_j,
        bound_slope_w=slope_w,
    )


def sandwich_error_j(left: RelaxedOptimum, right: RelaxedOptimum) -> float:
    """Largest error of a mix of two optima between their deadlines, J.

    The optimum's energy lies below the chord of the two and above both lines of their bounds:
    height of that triangle.
    """
    width_s = right.deadline_s - left.deadline_s
    bend = right.bound_slope_w - left.bound_slope_w
    if bend <= 0:
        return 0.0
    chord_w = (right.lower_bound_j - left.lower_bound_j) / width_s
    share = min(1.0, max(0.0, (right.bound_slope_w - chord_w) / bend))
    return max(0.0, (chord_w - left.bound_slope_w) * share * width_s)


def mixed_optimum(left: RelaxedOptimum, right: RelaxedOptimum, deadline_s: float) -> RelaxedOptimum:
    """A mix of two optima for a deadline between theirs: event times and a certified bound.

    Windows of a mix are mixes of windows, so it is as feasible as they are; its bound is the
    higher one of the two lines.
    """
    share = (deadline_s - left.deadline_s) / (right.deadline_s - left.deadline_s)
    event_time_s = (1 - share) * left.event_time_s + share * right.event_time_s
    event_time_s[DEADLINE] = deadline_s
    bound_j, slope_w = max(
        (
            relaxed.lower_bound_j + relaxed.bound_slope_w * (deadline_s - relaxed.deadline_s),
            relaxed.bound_slope_w,
        )
        for relaxed in (left, right)
    )
    return RelaxedOptimum(
        deadline_s=deadline_s,
        event_time_s=event_time_s,
        lower_bound_j=bound_j,
        bound_slope_w=slope_w,
    )
