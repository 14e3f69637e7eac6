"""The relaxed problem by a primal-dual interior point that knows it is a network.

Mehrotra's predictor-corrector (SIAM J. Optim. 2(4), 1992) on: least cost of the arcs' parts z,
subject to t_head - t_tail = min_window + sum of z, 0 <= z <= length, BEGIN at 0, DEADLINE at T.
An arc's parts are in series, so eliminating them leaves one conductance per arc, and each step
is one sparse Laplacian system over the events. General codes do not see this structure. The
loops over the parts are compiled (`interior_parts`); here are the steps and the systems.
"""

# scipy and highspy have no types: what they return is unknown to a type checker.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false
# pyright: reportMissingTypeStubs=false

from __future__ import annotations

import numpy as np
from scipy import sparse
from scipy.sparse import linalg

from flyball_server.planning.cancellation import cancellation_point
from flyball_server.planning.frontier.event_network import (
    BEGIN,
    DEADLINE,
    EventNetwork,
    FloatArray,
    IndexArray,
)
from flyball_server.planning.frontier.interior_parts import (
    Iterate,
    Parts,
    complementarity_j,
    conductances,
    drifts_s,
    part_steps,
)
from flyball_server.planning.frontier.relaxation import RelaxedOptimum, relaxed_optimum
from flyball_server.planning.frontier.warm_start import KeptIterates

MAX_STEPS = 80
MAX_WARM_STEPS = 40  # a mixed start takes 8 to 20; after so many it is better to begin anew
# Complementarity, as a share of the energy: of iterates that are kept for mixing, and of mixes
# that are worth beginning from.
KEPT_BELOW, MIXED_BELOW = 3e-3, 3e-2
RELATIVE_GAP = 2e-5
RELATIVE_INFEASIBILITY = 1e-7
TO_THE_BOUNDARY = 0.99
FIXED_EVENTS = 2  # BEGIN and DEADLINE, the first two


class InteriorPointRelaxation:
    """See the module; a deadline between two solved ones is begun from a mix (`warm_start`)."""

    def __init__(self, network: EventNetwork) -> None:
        self._network = network
        is_part = network.length_s > 0
        self._is_bounded = is_part & np.isfinite(network.length_s)
        self._parts = Parts(
            slope_w=network.slope_w,
            length_s=network.length_s,
            last=is_part.sum(axis=1).astype(np.int64) - 1,
        )
        self._num_pairs = int(is_part.sum() + self._is_bounded.sum())
        incidence = _incidence(network)
        self._order = _elimination_order(incidence)
        self._incidence = incidence[:, self._order]
        self._reaches_deadline = (network.head == DEADLINE).astype(float)
        self._kept = KeptIterates()
        self._no_step = Iterate(
            time_s=np.zeros(network.num_events - FIXED_EVENTS),
            flow_w=np.zeros(len(network.tail)),
            part_s=np.zeros(is_part.shape),
            low_w=np.zeros(is_part.shape),
            high_w=np.zeros(is_part.shape),
        )

    def solve(self, deadline_s: float) -> RelaxedOptimum:
        """See `Relaxation`."""
        mixed = self._kept.mixed(deadline_s)
        if mixed is not None and self._is_below(MIXED_BELOW, mixed, deadline_s):
            found, is_near = self._iterated(mixed, deadline_s, MAX_WARM_STEPS)
            if is_near:
                return found
        found, _ = self._iterated(self._start(deadline_s), deadline_s, MAX_STEPS)
        return found  # the bound holds at any point; it may be weaker than asked for

    def _iterated(
        self, point: Iterate, deadline_s: float, max_steps: int
    ) -> tuple[RelaxedOptimum, bool]:
        """What so many steps from the point find, and whether it is as near as asked for."""
        to_keep: Iterate | None = None
        for _ in range(max_steps):
            cancellation_point()
            point = self._next(point, self._window_error_s(point, deadline_s))
            if to_keep is None and self._is_below(KEPT_BELOW, point, deadline_s):
                to_keep = point
            window_error_s = self._window_error_s(point, deadline_s)
            if np.abs(window_error_s).max() < RELATIVE_INFEASIBILITY * deadline_s:
                found = self._found(point, deadline_s)
                gap_j = self._energy_j(point, deadline_s) - found.lower_bound_j
                if gap_j < RELATIVE_GAP * abs(found.lower_bound_j):
                    self._kept.add(deadline_s, to_keep or point)
                    return found, True
        return self._found(point, deadline_s), False

    def _start(self, deadline_s: float) -> Iterate:
        """In the middle of everything; all prices half the mean gain of a slower clock."""
        gains_w = np.abs(self._network.slope_w[self._is_bounded])
        price_w = 0.5 * float(gains_w.mean()) if len(gains_w) else 1.0
        is_part, length_s = self._network.length_s > 0, self._network.length_s
        unbounded_s = np.where(is_part, deadline_s / 50, 0.0)
        return self._no_step._replace(
            flow_w=np.full(len(self._network.tail), price_w),
            part_s=np.where(self._is_bounded, length_s / 2, unbounded_s),
            low_w=np.where(is_part, price_w, 0.0),
            high_w=np.where(self._is_bounded, price_w, 0.0),
        )

    def _found(self, point: Iterate, deadline_s: float) -> RelaxedOptimum:
        event_time_s = np.empty(self._network.num_events)
        event_time_s[BEGIN], event_time_s[DEADLINE] = 0.0, deadline_s
        event_time_s[FIXED_EVENTS + self._order] = point.time_s
        return relaxed_optimum(self._network, deadline_s, event_time_s, point.flow_w)

    def _energy_j(self, point: Iterate, deadline_s: float) -> float:
        costs_j = (self._network.slope_w * point.part_s).sum()
        return self._network.energy_offset_j(deadline_s) + float(costs_j)

    def _window_error_s(self, point: Iterate, deadline_s: float) -> FloatArray:
        window_s = self._incidence @ point.time_s + deadline_s * self._reaches_deadline
        error_s: FloatArray = window_s - self._network.min_window_s - point.part_s.sum(axis=1)
        return error_s

    def _complementarity_j(self, point: Iterate) -> float:
        return complementarity_j(self._parts, point, self._no_step, 0.0, 0.0)

    def _is_below(self, share: float, point: Iterate, deadline_s: float) -> bool:
        return self._complementarity_j(point) < share * abs(self._energy_j(point, deadline_s))

    def _next(self, point: Iterate, window_error_s: FloatArray) -> Iterate:
        """One predictor step, which tells how far to centre, and one corrected step."""
        system = _NewtonSystem(self._parts, self._incidence, point, window_error_s)
        affine, primal, dual = system.step(0.0, self._no_step)
        before_j = self._complementarity_j(point)
        after_j = complementarity_j(self._parts, point, affine, primal, dual)
        wanted_j = (after_j / before_j) ** 3 * before_j / self._num_pairs
        corrected, primal, dual = system.step(wanted_j, affine)
        return point.moved(corrected, TO_THE_BOUNDARY * primal, TO_THE_BOUNDARY * dual)


class _NewtonSystem:
    """The linear equations of one step: factorized once, solved for two right-hand sides."""

    def __init__(
        self,
        parts: Parts,
        incidence: sparse.csr_matrix,
        point: Iterate,
        window_error_s: FloatArray,
    ) -> None:
        self._parts, self._incidence, self._point = parts, incidence, point
        self._window_error_s = window_error_s
        self._conductance = conductances(parts, point)
        laplacian = incidence.T @ sparse.diags(self._conductance) @ incidence
        self._laplacian = _factorized(laplacian, ordering="NATURAL")

    def step(self, wanted_j: float, affine: Iterate) -> tuple[Iterate, float, float]:
        """The step after which, to first order, all equations hold.

        Every product of a size and its multiplier becomes `wanted_j`, less what the changes of
        `affine` multiply to. Also how far sizes, and multipliers, can go along the step.
        """
        wanted_s = self._window_error_s + drifts_s(self._parts, self._point, wanted_j, affine)
        time_s = self._laplacian.solve(
            self._incidence.T @ (self._point.flow_w - self._conductance * wanted_s)
        )
        flow_w = -self._conductance * (wanted_s + self._incidence @ time_s)
        part_s, low_w, high_w, primal, dual = part_steps(
            self._parts, self._point, wanted_j, affine, flow_w
        )
        step = Iterate(time_s=time_s, flow_w=flow_w, part_s=part_s, low_w=low_w, high_w=high_w)
        return step, primal, dual


def _factorized(laplacian: sparse.csr_matrix, *, ordering: str) -> linalg.SuperLU:
    return linalg.splu(
        laplacian.tocsc(),
        permc_spec=ordering,
        diag_pivot_thresh=0.0,
        options={"SymmetricMode": True},
    )


def _elimination_order(incidence: sparse.csr_matrix) -> IndexArray:
    """The free events in the order in which a step's system fills in little.

    It depends on which events share an arc and on nothing else, so it is found but once.
    """
    laplacian = incidence.T @ incidence
    order: IndexArray = np.argsort(_factorized(laplacian, ordering="MMD_AT_PLUS_A").perm_c)
    return order


def _incidence(network: EventNetwork) -> sparse.csr_matrix:
    """Arc x free event: -1 at its tail, +1 at its head; BEGIN and DEADLINE have no column."""
    arcs = np.arange(len(network.tail))
    rows, columns, values = [], [], []
    for events, sign in ((network.tail, -1.0), (network.head, 1.0)):
        free = events >= FIXED_EVENTS
        rows.append(arcs[free])
        columns.append(events[free] - FIXED_EVENTS)
        values.append(np.full(int(free.sum()), sign))
    return sparse.csr_matrix(
        (np.concatenate(values), (np.concatenate(rows), np.concatenate(columns))),
        shape=(len(arcs), network.num_events - FIXED_EVENTS),
    )
