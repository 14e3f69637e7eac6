"""The certificate: a lower bound on the energy of every plan, from any flow through the network.

Weak duality. Give each arc a price of time f >= 0 (J/s). For every choice of event times and
windows the iteration's energy is at least

    sum over arcs of min over windows w of (cost(w) + f w)  -  sum over events of r t,

where r is what flows into an event beyond what flows out of it, and t its time. BEGIN is at 0,
DEADLINE at T. Any other event may be placed within [0, T], so an excess r > 0 costs at most r T
and a lack costs nothing. So the bound holds for *any* f, optimal or not, conserved or not; a
solver's error can only make it weaker, never wrong.
"""

from __future__ import annotations

import numpy as np

from flyball_server.planning.frontier.event_network import (
    BEGIN,
    DEADLINE,
    EventNetwork,
    FloatArray,
)


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
