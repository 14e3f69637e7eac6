"""The relaxed problem by a primal-dual interior point method for networks.

Mehrotra's predictor-corrector (SIAM J. Optim. 2(4), 1992) on: least cost of the arcs' parts z,
subject to t_head - t_tail = min_window + sum of z, 0 <= z <= length, BEGIN at 0, DEADLINE at T.
An arc's parts are in series, so eliminating them leaves one conductance per arc, and each step
is one sparse Laplacian system over the events. General codes do not see this structure.
"""

from __future__ import annotations

import bisect
from typing import NamedTuple

import numpy as np
from scipy import sparse
from scipy.sparse import linalg

from flyball_server.planning.cancellation import cancellation_point
from flyball_server.planning.frontier.event_network import BEGIN, DEADLINE, EventNetwork
from flyball_server.planning.frontier.relaxation import (
    RelaxedOptimum,
    certified_bound,
    relaxed_optimum,
)
from flyball_server.planning.model.array_dag import FloatArray, IndexArray

# scipy has no types: what it returns is unknown to a type checker.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false
# pyright: reportMissingTypeStubs=false

MAX_STEPS = 80
MAX_WARM_STEPS = 40  # beyond, a cold start is about as fast
# Complementarity, as a share of the energy: of iterates that are kept for mixing, and of mixes
# that are worth beginning from.
KEPT_BELOW, MIXED_BELOW = 3e-3, 3e-2
MAX_KEPT = 24  # an iterate of 64 stages x 256 microbatches is about 15 MB
RELATIVE_GAP = 2e-5
RELATIVE_INFEASIBILITY = 1e-7
TO_THE_BOUNDARY = 0.99
FIXED_EVENTS = 2  # BEGIN and DEADLINE, the first two


class Parts(NamedTuple):
    """The parts of all arcs: those with an end, arc by arc, and then each arc's endless one.

    Attributes:
        arc: per part, its arc; shape (num_parts,).
        slope_w: cost per second, J/s; same shape.
        length_s: largest size, s; shape (num_bounded,).
    """

    arc: IndexArray
    slope_w: FloatArray
    length_s: FloatArray

    @classmethod
    def of_network(cls, network: EventNetwork) -> Parts:
        """Return the parts of a network's arcs."""
        is_endless = np.isinf(network.length_s)
        bounded = np.nonzero((network.length_s > 0) & ~is_endless)
        endless = np.nonzero(is_endless)
        return cls(
            arc=np.concatenate([bounded[0], endless[0]]),
            slope_w=np.concatenate([network.slope_w[bounded], network.slope_w[endless]]),
            length_s=network.length_s[bounded],
        )

    def sum_per_arc(self, values: FloatArray) -> FloatArray:
        """Per arc, which all have an endless part, the sum over its parts; shape (num_arcs,)."""
        sums: FloatArray = np.bincount(self.arc, values).astype(np.float64, copy=False)
        return sums


class Iterate(NamedTuple):
    """A point of the iteration, or a direction from one.

    Attributes:
        time_s: times of the free events, s; shape (num_events - 2,).
        flow_w: multiplier of each arc's window; shape (num_arcs,).
        part_s: size of each part, z; shape (num_parts,).
        low_w: multiplier of z >= 0; same shape.
        high_w: multiplier of z <= length; shape (num_bounded,).
    """

    time_s: FloatArray
    flow_w: FloatArray
    part_s: FloatArray
    low_w: FloatArray
    high_w: FloatArray

    def moved(self, step: Iterate, primal: float, dual: float) -> Iterate:
        """Move along the step: sizes and times by `primal` of it, multipliers by `dual`."""
        return Iterate(
            time_s=self.time_s + primal * step.time_s,
            flow_w=self.flow_w + dual * step.flow_w,
            part_s=self.part_s + primal * step.part_s,
            low_w=self.low_w + dual * step.low_w,
            high_w=self.high_w + dual * step.high_w,
        )

    def room_s(self, parts: Parts) -> FloatArray:
        """By how much each part could still grow, s; shape (num_bounded,)."""
        return parts.length_s - self.part_s[: len(parts.length_s)]

    def complementarity_j(self, parts: Parts) -> float:
        """Sum of the products that vanish at the optimum, J."""
        return float((self.part_s * self.low_w).sum() + (self.room_s(parts) * self.high_w).sum())

    def reaches(self, parts: Parts, step: Iterate) -> tuple[float, float]:
        """Longest steps, at most 1, before a size, and before a multiplier, becomes 0."""
        shrunk = (
            (-step.part_s / self.part_s).max(initial=1.0),
            (step.part_s[: len(parts.length_s)] / self.room_s(parts)).max(initial=1.0),
        )
        fallen = (
            (-step.low_w / self.low_w).max(initial=1.0),
            (-step.high_w / self.high_w).max(initial=1.0),
        )
        return 1 / float(max(shrunk)), 1 / float(max(fallen))


class KeptIterates:
    """Iterates of solved deadlines, at most MAX_KEPT, spread over all of these deadlines."""

    def __init__(self) -> None:
        self._deadlines_s: list[float] = []
        self._iterates: list[Iterate] = []

    def add(self, deadline_s: float, iterate: Iterate) -> None:
        """Keep an iterate; beyond MAX_KEPT drop the one between the two nearest to each other."""
        place = bisect.bisect_left(self._deadlines_s, deadline_s)
        self._deadlines_s.insert(place, deadline_s)
        self._iterates.insert(place, iterate)
        if len(self._deadlines_s) > MAX_KEPT:
            times_s = self._deadlines_s
            spare = min(
                range(1, len(times_s) - 1),
                key=lambda index: times_s[index + 1] - times_s[index - 1],
            )
            del self._deadlines_s[spare], self._iterates[spare]

    def mixed(self, deadline_s: float) -> Iterate | None:
        """Return a mix of the nearest on both sides; None: there is none on one side."""
        place = bisect.bisect_left(self._deadlines_s, deadline_s)
        if not 0 < place < len(self._deadlines_s):
            return None
        before_s, after_s = self._deadlines_s[place - 1 : place + 1]
        share = (deadline_s - before_s) / (after_s - before_s)
        before, after = self._iterates[place - 1 : place + 1]
        return Iterate(
            *((1 - share) * left + share * right for left, right in zip(before, after, strict=True))
        )


class InteriorPointRelaxation:
    """Interior point of one network, for one deadline after another.

    A deadline between two solved ones starts from a mix of their iterates.
    """

    def __init__(self, network: EventNetwork) -> None:
        self._network = network
        self._parts = Parts.of_network(network)
        incidence = _incidence(network)
        self._order = _elimination_order(incidence)
        self._incidence = incidence[:, self._order]
        self._reaches_deadline = (network.head == DEADLINE).astype(float)
        self._kept = KeptIterates()

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
        """Return the optimum after at most this many steps, and whether it has converged."""
        to_keep: Iterate | None = None
        for _ in range(max_steps):
            cancellation_point()
            point = self._next(point, self._window_error_s(point, deadline_s))
            if to_keep is None and self._is_below(KEPT_BELOW, point, deadline_s):
                to_keep = point
            window_error_s = self._window_error_s(point, deadline_s)
            if np.abs(window_error_s).max() < RELATIVE_INFEASIBILITY * deadline_s:
                found = self._found(point, deadline_s)
                bound_j = found.lower_bound_j
                if self._network.exact is not None:  # by which the point's energy is not counted
                    bound_j, _ = certified_bound(self._network, point.flow_w, deadline_s)
                gap_j = self._energy_j(point, deadline_s) - bound_j
                if gap_j < RELATIVE_GAP * abs(bound_j):
                    self._kept.add(deadline_s, to_keep or point)
                    return found, True
        return self._found(point, deadline_s), False

    def _start(self, deadline_s: float) -> Iterate:
        """In the middle of everything; all prices half the mean gain of a slower clock."""
        network, parts = self._network, self._parts
        num_bounded, num_arcs = len(parts.length_s), len(network.tail)
        gains_w = np.abs(parts.slope_w[:num_bounded])
        price_w = 0.5 * float(gains_w.mean()) if num_bounded else 1.0
        return Iterate(
            time_s=np.zeros(network.num_events - FIXED_EVENTS),
            flow_w=np.full(num_arcs, price_w),
            part_s=np.append(parts.length_s / 2, np.full(num_arcs, deadline_s / 50)),
            low_w=np.full(num_bounded + num_arcs, price_w),
            high_w=np.full(num_bounded, price_w),
        )

    def _found(self, point: Iterate, deadline_s: float) -> RelaxedOptimum:
        event_time_s = np.empty(self._network.num_events)
        event_time_s[BEGIN], event_time_s[DEADLINE] = 0.0, deadline_s
        event_time_s[FIXED_EVENTS + self._order] = point.time_s
        return relaxed_optimum(self._network, deadline_s, event_time_s, point.flow_w)

    def _energy_j(self, point: Iterate, deadline_s: float) -> float:
        costs_j = float((self._parts.slope_w * point.part_s).sum())
        return self._network.energy_offset_j(deadline_s) + costs_j

    def _window_error_s(self, point: Iterate, deadline_s: float) -> FloatArray:
        window_s = self._incidence @ point.time_s + deadline_s * self._reaches_deadline
        bought_s = self._parts.sum_per_arc(point.part_s)
        error_s: FloatArray = window_s - self._network.min_window_s - bought_s
        return error_s

    def _is_below(self, share: float, point: Iterate, deadline_s: float) -> bool:
        energy_j = self._energy_j(point, deadline_s)
        return point.complementarity_j(self._parts) < share * abs(energy_j)

    def _next(self, point: Iterate, window_error_s: FloatArray) -> Iterate:
        """One predictor step, which sets the centring, and one corrected step."""
        parts = self._parts
        system = _NewtonSystem(parts, self._incidence, point, window_error_s)
        affine = system.predicted()
        before_j = point.complementarity_j(parts)
        after_j = point.moved(affine, *point.reaches(parts, affine)).complementarity_j(parts)
        wanted_j = (after_j / before_j) ** 3 * before_j / (len(point.low_w) + len(point.high_w))
        corrected = system.corrected(wanted_j, affine)
        primal, dual = point.reaches(parts, corrected)
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
        self._room_s = point.room_s(parts)
        self._low_w_per_s = point.low_w / point.part_s
        self._high_w_per_s = point.high_w / self._room_s
        fall_w_per_s = self._low_w_per_s.copy()
        fall_w_per_s[: len(self._room_s)] += self._high_w_per_s
        self._growth_s_per_w = 1 / fall_w_per_s
        self._conductance = 1 / parts.sum_per_arc(self._growth_s_per_w)
        laplacian = incidence.T @ sparse.diags(self._conductance) @ incidence
        self._laplacian = _factorized(laplacian, ordering="NATURAL")

    def predicted(self) -> Iterate:
        """The step after which, to first order, all equations hold and all products are 0."""
        return self._step(np.zeros_like(self._point.low_w), np.zeros_like(self._point.high_w))

    def corrected(self, wanted_j: float, affine: Iterate) -> Iterate:
        """Return the step after which each product of a size and its multiplier is `wanted_j`.

        The products of the changes in `affine` stand for those of this step's, which a linear
        equation leaves out.
        """
        changed_s = affine.part_s[: len(self._room_s)]
        return self._step(
            (wanted_j - affine.part_s * affine.low_w) / self._point.part_s,
            (wanted_j + changed_s * affine.high_w) / self._room_s,
        )

    def _step(self, low_goal_w: FloatArray, high_goal_w: FloatArray) -> Iterate:
        """Return the step with these multipliers where a size does not change, J/s."""
        parts, point, num_bounded = self._parts, self._point, len(self._room_s)
        pull_w = parts.slope_w + point.flow_w[parts.arc] - low_goal_w
        pull_w[:num_bounded] += high_goal_w
        wanted_s = self._window_error_s + parts.sum_per_arc(pull_w * self._growth_s_per_w)
        time_s = self._laplacian.solve(
            self._incidence.T @ (point.flow_w - self._conductance * wanted_s)
        )
        flow_w = -self._conductance * (wanted_s + self._incidence @ time_s)
        part_s = -(pull_w + flow_w[parts.arc]) * self._growth_s_per_w
        return Iterate(
            time_s=time_s,
            flow_w=flow_w,
            part_s=part_s,
            low_w=low_goal_w - point.low_w - self._low_w_per_s * part_s,
            high_w=high_goal_w - point.high_w + self._high_w_per_s * part_s[:num_bounded],
        )


def _factorized(laplacian: sparse.csr_matrix, *, ordering: str) -> linalg.SuperLU:
    return linalg.splu(
        laplacian.tocsc(),
        permc_spec=ordering,
        diag_pivot_thresh=0.0,
        options={"SymmetricMode": True},
    )


def _elimination_order(incidence: sparse.csr_matrix) -> IndexArray:
    """Return the free events in the order in which a step's system fills in little.

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
