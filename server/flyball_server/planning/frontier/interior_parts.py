"""The compiled loops of the interior point over the parts of all arcs.

An arc's parts are in series: all that a step's linear system sees of them is one conductance and
one drift per arc. Everything else about a part follows from the change of its arc's flow.
"""

# Inside compiled code a subscript is one number; numpy's types cannot say so.
# pyright: reportReturnType=false, reportArgumentType=false

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from flyball_server.planning.frontier.compilation import compiled_function
from flyball_server.planning.frontier.event_network import FloatArray, IndexArray


class Parts(NamedTuple):
    """What does not change. Parts after an arc's last one are not there.

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
        time_s: of the free events; shape (num_events - 2,).
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
        """So far along the step: sizes and times by `primal` of it, multipliers by `dual`."""
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
    """Per arc, by how much its flow falls for a longer window, W/s; shape (num_arcs,)."""
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
        parts: of the network.
        point: where the step begins.
        wanted_j: what each product of a size and its multiplier is to become, J.
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
    """How much the multiplier of a size would have to change if the size did not."""
    return (wanted_j - changes_j) / size_s - multiplier_w


@compiled_function
def _reach(value: float, step: float) -> float:
    """How far a positive value can go along its step before it is 0; 1 where that is farther."""
    if value + step >= 0.0:
        return 1.0
    return -value / step
