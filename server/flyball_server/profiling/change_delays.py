"""Delays of clock changes, from the times of single instructions on a plan.

A clock that is requested at r takes effect at r + L. Until then the GPU computes at the clock
before, so the instruction that it falls into takes

    t = x + T(f1) (1 - x / T(f0)),    x = clamp(r + L - begin, 0, T(f0)).

Begins and times are measured, requests follow from the plan. For each candidate L the times of all
instructions are predicted, and the L with the least sum of absolute relative errors is the delay.
Profiled times are not exact to the percent that a change makes, so each prediction is scaled by the
median of the measured over the predicted times of its like: same stage, kind, chunk and clock.
What counts is thus how instructions with a change in them differ from their like without one, or
with another change. Where too few differ the delay is not certain.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from flyball_server.planning.model.array_dag import BoolArray, FloatArray

# Candidates from a tenth of a millisecond on, a quarter apart, in s.
_SHORTEST_S, LONGEST_S, _RATIO = 1e-4, 0.25, 1.25
_NUM_FINE = 17
_NUM_ROUNDS = 2
# A candidate is out where its errors are larger by this number of standard errors.
_NUM_ERRORS = 3.0
# The others must lie within this of the best, s, or within this share of it.
_WIDTH_S, _WIDTH = 0.002, 0.35
# Instructions in all steps that are looked at; further stages are left out.
MAX_INSTRUCTIONS = 12_000


@dataclass(frozen=True, kw_only=True)
class TimedStage:
    """Instructions of one stage on a plan, as they ran; n of them, in the order of execution.

    Attributes:
        times_s: profiled time of each at each clock of the plan, in one order of clocks, s; shape
            (n, num_clocks).
        clocks: index of each one's clock; a lower index is a higher clock.
        kinds: per instruction, what it has in common with its like, beside the clock.
        requests: by position of an instruction, the position of the instruction after whose begin
            its clock is requested, and how long after it in s; a clock that is not in here is
            requested when the instruction before ends.
        begin_s, compute_s: begin and time of each in each run, s; shape (n, num_runs).
    """

    times_s: FloatArray
    clocks: tuple[int, ...]
    kinds: tuple[Hashable, ...]
    requests: Mapping[int, tuple[int, float]]
    begin_s: FloatArray
    compute_s: FloatArray


@dataclass(frozen=True, kw_only=True)
class MedianDelays:
    """Median delays of clock changes.

    Attributes:
        up_s, down_s: delay of a change to a higher and to a lower clock, s; None: not certain.
    """

    up_s: float | None = None
    down_s: float | None = None


def measured_change_delays(stages: Sequence[TimedStage]) -> MedianDelays:
    """Return the delays with which the measured times of the instructions are explained best."""
    taken: list[TimedStage] = []
    num_taken = 0
    # The shortest first, since all have about as many changes.
    for stage in sorted(stages, key=lambda stage: stage.compute_s.size):
        if taken and num_taken + stage.compute_s.size > MAX_INSTRUCTIONS:
            break
        taken.append(stage)
        num_taken += stage.compute_s.size
    has_up = any(_has_changes(stage, is_up=True) for stage in taken)
    has_down = any(_has_changes(stage, is_up=False) for stage in taken)
    coarse_s = _candidates_s()
    up_s = down_s = 0.0
    is_up_certain = is_down_certain = False
    for _ in range(_NUM_ROUNDS):
        if has_up:
            up_s, is_up_certain = _fitted(taken, coarse_s, down_s, is_up=True)
        if has_down:
            down_s, is_down_certain = _fitted(taken, coarse_s, up_s, is_up=False)
        taken = [_as_measured(stage, up_s, down_s) for stage in taken]
    return MedianDelays(
        up_s=round(up_s, 5) if is_up_certain else None,
        down_s=round(down_s, 5) if is_down_certain else None,
    )


def _candidates_s() -> FloatArray:
    num = math.ceil(math.log(LONGEST_S / _SHORTEST_S) / math.log(_RATIO))
    return np.concatenate([[0.0], np.geomspace(_SHORTEST_S, LONGEST_S, num + 1)])


def _has_changes(stage: TimedStage, *, is_up: bool) -> bool:
    changes = np.diff(stage.clocks)
    return bool(((changes < 0) if is_up else (changes > 0)).any())


def _fitted(
    stages: Sequence[TimedStage], coarse_s: FloatArray, other_s: float, *, is_up: bool
) -> tuple[float, bool]:
    """Return the best delay of one direction in s, and whether it is certain."""
    best = int(_errors(stages, coarse_s, other_s, is_up=is_up).mean(axis=1).argmin())
    low, high = max(best - 1, 0), min(best + 1, len(coarse_s) - 1)
    steps = np.arange(_NUM_FINE) / (_NUM_FINE - 1)
    fine_s = coarse_s[low] + (coarse_s[high] - coarse_s[low]) * steps
    candidates_s = np.union1d(coarse_s, fine_s)
    errors = _errors(stages, candidates_s, other_s, is_up=is_up)
    best = int(errors.mean(axis=1).argmin())
    more = errors - errors[best]
    least = _NUM_ERRORS * more.std(axis=1) / math.sqrt(more.shape[1])
    as_good_s = candidates_s[more.mean(axis=1) <= least]
    delay_s = float(candidates_s[best])
    width_s = max(as_good_s[-1] - delay_s, delay_s - as_good_s[0])
    is_certain = width_s <= max(_WIDTH_S, _WIDTH * delay_s) and delay_s < LONGEST_S
    return delay_s, bool(is_certain)


def _errors(
    stages: Sequence[TimedStage], candidates_s: FloatArray, other_s: float, *, is_up: bool
) -> FloatArray:
    """Return absolute relative errors under each candidate; shape (candidates, instructions)."""
    others_s = np.full_like(candidates_s, other_s)
    up_s, down_s = (candidates_s, others_s) if is_up else (others_s, candidates_s)
    found: list[FloatArray] = []
    for stage in stages:
        ratio = stage.compute_s / _predicted_s(stage, up_s, down_s)
        for alike in _likes(stage).values():
            of_like = ratio[:, alike].reshape(len(candidates_s), -1)
            median = np.median(of_like, axis=1, keepdims=True)
            found.append(np.abs(of_like / median - 1))
    return np.concatenate(found, axis=1)


def _likes(stage: TimedStage) -> dict[tuple[Hashable, int], list[int]]:
    """Return the positions of the instructions of each kind at each clock."""
    positions: dict[tuple[Hashable, int], list[int]] = {}
    for position, like in enumerate(zip(stage.kinds, stage.clocks, strict=True)):
        positions.setdefault(like, []).append(position)
    return positions


def _as_measured(stage: TimedStage, up_s: float, down_s: float) -> TimedStage:
    """Return the stage with profiled times scaled to the measured ones under these delays.

    A kind that never ran at a clock is scaled as the instructions are in the median.
    """
    ratio = stage.compute_s / _predicted_s(stage, np.array([up_s]), np.array([down_s]))[0]
    scales = {like: float(np.median(ratio[alike])) for like, alike in _likes(stage).items()}
    other = float(np.median(ratio))
    factors = [
        [scales.get((kind, clock), other) for clock in range(stage.times_s.shape[1])]
        for kind in stage.kinds
    ]
    return replace(stage, times_s=stage.times_s * np.array(factors))


def _predicted_s(stage: TimedStage, up_s: FloatArray, down_s: FloatArray) -> FloatArray:
    """Return the time of each instruction under each pair of delays; shape (pairs, n, num_runs)."""
    clocks, begin_s = stage.clocks, stage.begin_s
    shape = (len(up_s), begin_s.shape[1])
    predicted_s = np.empty((shape[0], *begin_s.shape))
    after: dict[int, list[tuple[int, float]]] = {}
    for position, (earlier, offset_s) in stage.requests.items():
        after.setdefault(earlier, []).append((position, offset_s))
    in_force: NDArray[np.intp] = np.full(shape, clocks[0], dtype=np.intp)
    on_their_way: list[tuple[FloatArray, int]] = []

    def request(position: int, moment_s: FloatArray) -> None:
        delay_s = up_s if clocks[position] < clocks[position - 1] else down_s
        on_their_way.append((moment_s[None, :] + delay_s[:, None], clocks[position]))

    for position in range(len(clocks)):
        now_s = begin_s[position]
        changes = position > 0 and clocks[position] != clocks[position - 1]
        if changes and position not in stage.requests:
            request(position, begin_s[position - 1] + stage.compute_s[position - 1])
        for requested, offset_s in after.get(position, ()):
            moment_s = begin_s[position] + offset_s
            if requested < len(clocks):
                request(requested, np.minimum(moment_s, begin_s[requested]))
        predicted_s[:, position] = _compute(stage.times_s[position], now_s, in_force, on_their_way)
        if position + 1 < len(clocks):
            next_s = begin_s[position + 1]
            while on_their_way and bool((on_their_way[0][0] <= next_s).all()):
                in_force[:] = on_their_way.pop(0)[1]
    return predicted_s


def _compute(
    times_s: FloatArray,
    begin_s: FloatArray,
    in_force: NDArray[np.intp],
    on_their_way: Sequence[tuple[FloatArray, int]],
) -> FloatArray:
    """Return how long an instruction takes, from the clock in force and the changes to come."""
    clock, left = in_force.copy(), np.ones(in_force.shape)
    now_s = np.broadcast_to(begin_s, in_force.shape).copy()
    total_s = np.zeros(in_force.shape)
    overtaken_s = np.full(in_force.shape, np.inf)
    counts: list[BoolArray] = []
    for effect_s, _ in reversed(on_their_way):
        counts.append(effect_s < overtaken_s)
        overtaken_s = np.minimum(overtaken_s, effect_s)
    for (effect_s, changed), is_counted in zip(on_their_way, reversed(counts), strict=True):
        at_clock_s = times_s[clock]
        until_s, left_s = effect_s - now_s, left * at_clock_s
        spent_s = np.where(is_counted, np.clip(until_s, 0.0, left_s), 0.0)
        total_s += spent_s
        now_s += spent_s
        left -= spent_s / at_clock_s
        clock = np.where(is_counted & (until_s <= left_s), changed, clock)
    return total_s + np.maximum(left, 0.0) * times_s[clock]
