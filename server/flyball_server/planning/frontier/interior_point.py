"""The relaxed problem by a primal-dual interior point that knows it is a network.

Mehrotra's predictor-corrector (SIAM J. Optim. 2(4), 1992) on: least cost of the arcs' parts z,
subject to t_head - t_tail = min_window + sum of z, 0 <= z <= length, BEGIN at 0, DEADLINE at T.
An arc's parts are in series, so eliminating them leaves one conductance per arc, and each step
is one sparse Laplacian system over the events. General codes do not see this structure.
"""

# scipy and highspy have no types: what they return is unknown to a type checker.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false
# pyright: reportMissingTypeStubs=false

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.sparse import linalg

from flyball_server.planning.frontier.event_network import (
    DEADLINE,
    EventNetwork,
    FloatArray,
)
from flyball_server.planning.frontier.relaxation import RelaxedOptimum, relaxed_optimum

MAX_STEPS = 80
RELATIVE_GAP = 2e-5
RELATIVE_INFEASIBILITY = 1e-7
TO_THE_BOUNDARY = 0.99
FIXED_EVENTS = 2  # BEGIN and DEADLINE, the first two


@dataclass(frozen=True, kw_only=True)
class _Iterate:
    """A point of the iteration, or a direction from one.

    Attributes:
        time_s: of the free events; shape (num_events - 2,).
        flow_w: multiplier of each arc's window; shape (num_arcs,).
        part_s: z; shape (num_arcs, num_segments).
        low_w, high_w: multipliers of z >= 0 and z <= length, shaped like z.
    """

    time_s: FloatArray
    flow_w: FloatArray
    part_s: FloatArray
    low_w: FloatArray
    high_w: FloatArray

    def moved(self, step: _Iterate, primal: float, dual: float) -> _Iterate:
        return _Iterate(
            time_s=self.time_s + primal * step.time_s,
            flow_w=self.flow_w + dual * step.flow_w,
            part_s=self.part_s + primal * step.part_s,
            low_w=self.low_w + dual * step.low_w,
            high_w=self.high_w + dual * step.high_w,
        )


class InteriorPointRelaxation:
    """See the module; each deadline is solved from a cold start."""

    def __init__(self, network: EventNetwork) -> None:
        self._network = network
        self._is_part = network.length_s > 0
        self._is_bounded = self._is_part & np.isfinite(network.length_s)
        self._length_s = np.where(self._is_bounded, network.length_s, 1.0)
        self._num_pairs = int(self._is_part.sum() + self._is_bounded.sum())
        self._incidence = _incidence(network)
        self._reaches_deadline = (network.head == DEADLINE).astype(float)

    def solve(self, deadline_s: float) -> RelaxedOptimum:
        """See `Relaxation`."""
        point = self._start(deadline_s)
        found = self._found(point, deadline_s)
        for _ in range(MAX_STEPS):
            window_error_s = self._window_error_s(point, deadline_s)
            if np.abs(
                window_error_s
            ).max() < RELATIVE_INFEASIBILITY * deadline_s and self._energy_j(
                point, deadline_s
            ) - found.lower_bound_j < RELATIVE_GAP * abs(found.lower_bound_j):
                return found
            point = self._next(point, window_error_s)
            found = self._found(point, deadline_s)
        return found  # the bound holds at any point; it may be weaker than asked for

    def _start(self, deadline_s: float) -> _Iterate:
        """In the middle of everything; all prices half the mean gain of a slower clock."""
        gains_w = np.abs(self._network.slope_w[self._is_bounded])
        price_w = 0.5 * float(gains_w.mean()) if len(gains_w) else 1.0
        unbounded_s = np.where(self._is_part, deadline_s / 50, 0.0)
        return _Iterate(
            time_s=np.zeros(self._network.num_events - FIXED_EVENTS),
            flow_w=np.full(len(self._network.tail), price_w),
            part_s=np.where(self._is_bounded, self._length_s / 2, unbounded_s),
            low_w=np.where(self._is_part, price_w, 0.0),
            high_w=np.where(self._is_bounded, price_w, 0.0),
        )

    def _found(self, point: _Iterate, deadline_s: float) -> RelaxedOptimum:
        event_time_s = np.concatenate([[0.0, deadline_s], point.time_s])
        return relaxed_optimum(self._network, deadline_s, event_time_s, point.flow_w)

    def _energy_j(self, point: _Iterate, deadline_s: float) -> float:
        costs_j = (self._network.slope_w * point.part_s).sum()
        return self._network.energy_offset_j(deadline_s) + float(costs_j)

    def _window_error_s(self, point: _Iterate, deadline_s: float) -> FloatArray:
        window_s = self._incidence @ point.time_s + deadline_s * self._reaches_deadline
        error_s: FloatArray = window_s - self._network.min_window_s - point.part_s.sum(axis=1)
        return error_s

    def _next(self, point: _Iterate, window_error_s: FloatArray) -> _Iterate:
        """One predictor step, which tells how far to centre, and one corrected step."""
        system = _NewtonSystem(
            network=self._network,
            incidence=self._incidence,
            is_part=self._is_part,
            is_bounded=self._is_bounded,
            length_s=self._length_s,
            point=point,
            window_error_s=window_error_s,
        )
        affine = system.direction(-point.part_s * point.low_w, -system.room_s * point.high_w)
        complementarity = system.complementarity(point) / self._num_pairs
        reached = point.moved(affine, *system.longest_steps(affine))
        centring = (system.complementarity(reached) / self._num_pairs / complementarity) ** 3
        wanted = centring * complementarity
        corrected = system.direction(
            wanted - point.part_s * point.low_w - affine.part_s * affine.low_w,
            wanted - system.room_s * point.high_w + affine.part_s * affine.high_w,
        )
        primal, dual = system.longest_steps(corrected)
        return point.moved(
            corrected, min(1.0, TO_THE_BOUNDARY * primal), min(1.0, TO_THE_BOUNDARY * dual)
        )


class _NewtonSystem:
    """The linear equations of one step: factorized once, solved for two right-hand sides."""

    def __init__(
        self,
        *,
        network: EventNetwork,
        incidence: sparse.csr_matrix,
        is_part: NDArray[np.bool_],
        is_bounded: NDArray[np.bool_],
        length_s: FloatArray,
        point: _Iterate,
        window_error_s: FloatArray,
    ) -> None:
        self._incidence, self._point = incidence, point
        self._is_part, self._is_bounded, self._length_s = is_part, is_bounded, length_s
        self._window_error_s = window_error_s
        # Where there is no part, a 1 keeps the division harmless; nothing else sees it.
        self._part_s = np.where(is_part, point.part_s, 1.0)
        self.room_s = np.where(is_bounded, length_s - point.part_s, 1.0)
        gain_error_w = network.slope_w + point.flow_w[:, None] - point.low_w + point.high_w
        self._gain_error_w = np.where(is_part, gain_error_w, 0.0)
        stiffness = point.low_w / self._part_s + point.high_w / self.room_s
        self._stiffness = np.where(is_part, stiffness, 1.0)
        self._conductance = 1 / np.where(is_part, 1 / self._stiffness, 0.0).sum(axis=1)
        laplacian = incidence.T @ sparse.diags(self._conductance) @ incidence
        self._laplacian = linalg.splu(
            laplacian.tocsc(),
            permc_spec="MMD_AT_PLUS_A",
            diag_pivot_thresh=0.0,
            options={"SymmetricMode": True},
        )

    def direction(self, low_target: FloatArray, high_target: FloatArray) -> _Iterate:
        """The step after which, to first order, all equations hold.

        `z low + ...` of each part changes by `low_target`, `(length - z) high` by `high_target`.
        """
        low_w, high_w = low_target / self._part_s, high_target / self.room_s
        pull_w = self._gain_error_w + np.where(
            self._is_part, np.where(self._is_bounded, high_w, 0.0) - low_w, 0.0
        )
        drift_s = np.where(self._is_part, pull_w / self._stiffness, 0.0).sum(axis=1)
        wanted_s = self._window_error_s + drift_s
        time_s = self._laplacian.solve(
            self._incidence.T @ (self._point.flow_w - self._conductance * wanted_s)
        )
        flow_w = -self._conductance * (wanted_s + self._incidence @ time_s)
        part_s = np.where(self._is_part, -(flow_w[:, None] + pull_w) / self._stiffness, 0.0)
        low_step_w = low_w - self._point.low_w / self._part_s * part_s
        high_step_w = high_w + self._point.high_w / self.room_s * part_s
        return _Iterate(
            time_s=time_s,
            flow_w=flow_w,
            part_s=part_s,
            low_w=np.where(self._is_part, low_step_w, 0.0),
            high_w=np.where(self._is_bounded, high_step_w, 0.0),
        )

    def complementarity(self, point: _Iterate) -> float:
        """Sum of the products that vanish at the optimum, J."""
        room_s = np.where(self._is_bounded, self._length_s - point.part_s, 0.0)
        return float((point.part_s * point.low_w).sum() + (room_s * point.high_w).sum())

    def longest_steps(self, step: _Iterate) -> tuple[float, float]:
        """How far primal and dual can go along the step, at most 1, before a sign changes."""
        point = self._point
        primal = min(
            _longest(point.part_s, step.part_s, self._is_part),
            _longest(self.room_s, -step.part_s, self._is_bounded),
        )
        dual = min(
            _longest(point.low_w, step.low_w, self._is_part),
            _longest(point.high_w, step.high_w, self._is_bounded),
        )
        return primal, dual


def _longest(value: FloatArray, step: FloatArray, where: NDArray[np.bool_]) -> float:
    falling = where & (step < 0)
    if not falling.any():
        return 1.0
    return min(1.0, float((-value[falling] / step[falling]).min()))


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
