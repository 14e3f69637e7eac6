"""The relaxed problem by a primal-dual interior point method for networks.

Mehrotra's predictor-corrector (SIAM J. Optim. 2(4), 1992) on: least cost of the arcs' parts z,
subject to t_head - t_tail = min_window + sum of z, 0 <= z <= length, BEGIN at 0, DEADLINE at T.
An arc's parts are in series, so eliminating them leaves one conductance per arc, and each step
is one sparse Laplacian system over the events. General codes do not see this structure. The
loops over the parts are compiled (`interior_parts`); here are the steps and the systems.
"""

from __future__ import annotations

import bisect
from typing import NamedTuple

import numpy as np
from scipy import sparse
from scipy.sparse import linalg

from flyball_server.planning.cancellation import cancellation_point
from flyball_server.planning.frontier.compilation import compiled_function
from flyball_server.planning.frontier.event_network import (
    BEGIN,
    DEADLINE,
    EventNetwork,
    FloatArray,
    IndexArray,
)
from flyball_server.planning.frontier.relaxation import (
    RelaxedOptimum,
    certified_bound_j,
    relaxed_optimum,
)

# Inside compiled code a subscript is one number; numpy's types cannot say so.
# pyright: reportReturnType=false, reportArgumentType=false


class Parts(NamedTuple):
    """Constant data. Parts after an arc's last one are not there.

    Attributes:
        slope_w: cost per second, J/s; shape (num_arcs, num_segments).
        length_s: largest size, s; endless for an arc's last part; same shape.
        last: per arc, the index of its last part; shape (num_arcs,).
    """

    slope_w: FloatArray
    length_s: FloatArray
    last: IndexArray


class Iterate(NamedTuple):
    """A point of the iteration, or a direction from one.

    Attributes:
        time_s: times of the free events, s; shape (num_events - 2,).
        flow_w: multiplier of each arc's window; shape (num_arcs,).
        part_s: size of each part, z; shape (num_arcs, num_segments).
        low_w: multiplier of z >= 0; same shape.
        high_w: multiplier of z <= length, 0 where the length is endless; same shape.
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


# The helpers take numbers: handing on a tuple of arrays would count references at every part.


@compiled_function
def conductances(parts: Parts, point: Iterate) -> FloatArray:
    """Per arc, fall of its flow for a longer window, W/s; shape (num_arcs,)."""
    length_s, last = parts.length_s, parts.last
    part_s, low_w, high_w = point.part_s, point.low_w, point.high_w
    conductance = np.empty(len(last))
    for arc in range(len(last)):
        resistance = 0.0
        for part in range(last[arc] + 1):
            size_s = part_s[arc, part]
            room_s = length_s[arc, part] - size_s
            resistance += 1.0 / (low_w[arc, part] / size_s + high_w[arc, part] / room_s)
        conductance[arc] = 1.0 / resistance
    return conductance


@compiled_function
def drifts_s(parts: Parts, point: Iterate, wanted_j: float, affine: Iterate) -> FloatArray:
    """Per arc, how much its parts shrink at an unchanged flow, s; shape (num_arcs,).

    Args:
        parts: parts of the network's arcs.
        point: iterate at which the step begins.
        wanted_j: target of each product of a size and its multiplier, J.
        affine: the step whose products of changes are to be made up for.
    """
    slope_w, length_s, last = parts.slope_w, parts.length_s, parts.last
    flow_w, part_s, low_w, high_w = point.flow_w, point.part_s, point.low_w, point.high_w
    affine_s, affine_low_w, affine_high_w = affine.part_s, affine.low_w, affine.high_w
    drift_s = np.zeros(len(last))
    for arc in range(len(last)):
        for part in range(last[arc] + 1):
            size_s, low, high = part_s[arc, part], low_w[arc, part], high_w[arc, part]
            room_s = length_s[arc, part] - size_s
            change_s = affine_s[arc, part]
            low_target = _target_w(low, size_s, wanted_j, change_s * affine_low_w[arc, part])
            high_target = _target_w(high, room_s, wanted_j, -change_s * affine_high_w[arc, part])
            if part == last[arc]:
                high_target = 0.0
            pull_w = slope_w[arc, part] + flow_w[arc] - low + high + high_target - low_target
            drift_s[arc] += pull_w / (low / size_s + high / room_s)
    return drift_s


@compiled_function
def part_steps(
    parts: Parts, point: Iterate, wanted_j: float, affine: Iterate, flow_step_w: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray, float, float]:
    """The changes of `part_s`, `low_w` and `high_w` that go with the flows' change.

    Also how far sizes, and how far multipliers, can go along it, at most 1, before one is 0.
    """
    slope_w, length_s, last = parts.slope_w, parts.length_s, parts.last
    flow_w, part_s, low_w, high_w = point.flow_w, point.part_s, point.low_w, point.high_w
    affine_s, affine_low_w, affine_high_w = affine.part_s, affine.low_w, affine.high_w
    step_s, low_step_w, high_step_w = (
        np.zeros_like(part_s),
        np.zeros_like(low_w),
        np.zeros_like(high_w),
    )
    primal, dual = 1.0, 1.0
    for arc in range(len(last)):
        for part in range(last[arc] + 1):
            size_s, low, high = part_s[arc, part], low_w[arc, part], high_w[arc, part]
            room_s = length_s[arc, part] - size_s
            change_s = affine_s[arc, part]
            low_target = _target_w(low, size_s, wanted_j, change_s * affine_low_w[arc, part])
            high_target = _target_w(high, room_s, wanted_j, -change_s * affine_high_w[arc, part])
            if part == last[arc]:
                high_target = 0.0
            pull_w = slope_w[arc, part] + flow_w[arc] - low + high + high_target - low_target
            grown_s = -(flow_step_w[arc] + pull_w) / (low / size_s + high / room_s)
            low_step = low_target - low / size_s * grown_s
            high_step = high_target + high / room_s * grown_s
            primal = min(primal, _reach(size_s, grown_s), _reach(room_s, -grown_s))
            dual = min(dual, _reach(low, low_step), _reach(high, high_step))
            step_s[arc, part] = grown_s
            low_step_w[arc, part], high_step_w[arc, part] = low_step, high_step
    return step_s, low_step_w, high_step_w, primal, dual


@compiled_function
def complementarity_j(
    parts: Parts, point: Iterate, step: Iterate, primal: float, dual: float
) -> float:
    """Sum of the products that vanish at the optimum, so far along the step, J."""
    length_s, last = parts.length_s, parts.last
    part_s, low_w, high_w = point.part_s, point.low_w, point.high_w
    step_s, low_step_w, high_step_w = step.part_s, step.low_w, step.high_w
    sum_j = 0.0
    for arc in range(len(last)):
        for part in range(last[arc] + 1):
            size_s = part_s[arc, part] + primal * step_s[arc, part]
            sum_j += size_s * (low_w[arc, part] + dual * low_step_w[arc, part])
            if part < last[arc]:  # elsewhere endless room times no price
                high = high_w[arc, part] + dual * high_step_w[arc, part]
                sum_j += (length_s[arc, part] - size_s) * high
    return sum_j


@compiled_function
def _target_w(multiplier_w: float, size_s: float, wanted_j: float, changes_j: float) -> float:
    """Return how much the multiplier of a size would have to change if the size did not."""
    return (wanted_j - changes_j) / size_s - multiplier_w


@compiled_function
def _reach(value: float, step: float) -> float:
    """Return the largest step that keeps a positive value positive, at most 1."""
    if value + step >= 0.0:
        return 1.0
    return -value / step


MAX_KEPT = 24  # an iterate of 64 stages x 256 microbatches is about 11 MB


class KeptIterates:
    """Iterates by deadline, spread over all that were solved."""

    def __init__(self) -> None:
        self._deadlines_s: list[float] = []
        self._iterates: list[Iterate] = []

    def add(self, deadline_s: float, iterate: Iterate) -> None:
        """Keep it; where there are too many, the one that its neighbours best make up for goes."""
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
        """A mix of the two nearest on both sides; None where there is none on one."""
        place = bisect.bisect_left(self._deadlines_s, deadline_s)
        if not 0 < place < len(self._deadlines_s):
            return None
        before_s, after_s = self._deadlines_s[place - 1 : place + 1]
        share = (deadline_s - before_s) / (after_s - before_s)
        before, after = self._iterates[place - 1 : place + 1]
        return Iterate(
            *((1 - share) * left + share * right for left, right in zip(before, after, strict=True))
        )


# scipy and highspy have no types: what they return is unknown to a type checker.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false
# pyright: reportMissingTypeStubs=false


MAX_STEPS = 80
MAX_WARM_STEPS = 40  # a mixed start takes 8 to 20; beyond, a cold start is faster
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
                    bound_j = certified_bound_j(self._network, point.flow_w, deadline_s)
                gap_j = self._energy_j(point, deadline_s) - bound_j
                if gap_j < RELATIVE_GAP * abs(bound_j):
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
        """One predictor step, which sets the centring, and one corrected step."""
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
