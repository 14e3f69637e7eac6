"""The relaxed problem: any mix of clocks on the hulls. Its optimum bounds every plan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from flyball_server.planning.frontier.certificate import certified_bound_j
from flyball_server.planning.frontier.event_network import EventNetwork, FloatArray


@dataclass(frozen=True, kw_only=True)
class RelaxedOptimum:
    """The relaxed problem's solution for one deadline.

    Attributes:
        deadline_s: T, s.
        event_time_s: per event of the network, s; shape (num_events,).
        lower_bound_j: certified: no plan that takes at most T needs less, J.
        bound_slope_w: how the bound changes with T, J/s, not positive.
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
    """What a solver found, with the bound that its flow certifies."""
    return RelaxedOptimum(
        deadline_s=deadline_s,
        event_time_s=event_time_s,
        lower_bound_j=certified_bound_j(network, flow_w, deadline_s),
        bound_slope_w=min(0.0, network.waiting_power_w - float(flow_w[-1])),
    )
