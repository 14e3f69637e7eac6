"""Tail, transfers and jitter of an iteration, from the times of its single instructions.

Each rank reports when its instructions began, by its own clock from the begin of its step, and how
long they computed. The lag from the end of an instruction to the begin of the one on a neighbour
that waits for it is the transfer time plus the difference of the two ranks' clocks. That difference
has the opposite sign in the other direction, so the mean of both directions is the transfer time
(D. L. Mills, RFC 958, 1985). Only instructions that waited for their input count: another one began
late because its rank was busy.

The tail is the measured iteration time less the simulated end of the measured instruction times
with these transfers. Medians over steps keep single slow steps out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from flyball_pipeline.dag import NONE
from flyball_server.planning.model.array_dag import ArrayDag, FloatArray, earliest_finishes_s

# Effect on the iteration time, as a share, below which tail or transfers are taken as none; and
# number of standard errors that they have to exceed.
LEAST_SHARE, NUM_ERRORS = 0.001, 3.0
# A rank waited for its input if it was idle for this share of a median instruction, and for this
# share of its longest wait in this direction.
_LEAST_WAIT, _LEAST_OF_LONGEST = 0.05, 0.5
# Standard deviation of a normal variable over its median absolute deviation.
DEVIATIONS_OF_MEDIAN = 1.4826
# Of an instruction's time; less is no jitter but the resolution of the clocks.
LEAST_JITTER = 0.001
MAX_JITTER = 0.5
_JITTER_DIGITS, _TIME_DIGITS = 4, 6


@dataclass(frozen=True, kw_only=True)
class TimedSteps:
    """Steps of a job, each with the instructions of its data-parallel pipelines.

    Attributes:
        iteration_time_s: time of each step, s; shape (num_steps,).
        begin_s: begin of each computation since the begin of the step on its rank, s; shape
            (num_nodes, num_steps, num_pipelines).
        compute_s: its time, s; the same shape.
    """

    iteration_time_s: FloatArray
    begin_s: FloatArray
    compute_s: FloatArray

    @property
    def num_steps(self) -> int:
        """Number of steps."""
        return len(self.iteration_time_s)


@dataclass(frozen=True, kw_only=True)
class IterationDelays:
    """Parts of an iteration beside its instructions.

    Attributes:
        tail_s: part of an iteration outside its instructions, s; 0: too short to be certain.
        transfer_s: time of a transfer between each pair of neighbouring stages, s; empty: too short
            to be certain.
    """

    tail_s: float
    transfer_s: tuple[float, ...]


def measured_delays(
    dag: ArrayDag, steps: TimedSteps, given_s: Sequence[float] | None = None
) -> IterationDelays:
    """Return the tail of an iteration and its transfers.

    Args:
        dag: order of the pipelines, without tail and transfers.
        steps: one at least.
        given_s: known times of transfers, one or one for each pair of neighbours, s; None: they
            are measured.
    """
    median_s = float(np.median(steps.iteration_time_s))
    hops_s = _transfers_s(dag, steps, median_s) if given_s is None else tuple(given_s)
    num_nodes, num_steps, num_pipelines = steps.compute_s.shape
    finish_s = earliest_finishes_s(
        dag.with_delays(0.0, hops_s), steps.compute_s.reshape(num_nodes, num_steps * num_pipelines)
    )
    ends_s = finish_s.max(axis=0).reshape(num_steps, num_pipelines).max(axis=1)
    tail_s, error_s = _median(steps.iteration_time_s - ends_s)
    is_certain = tail_s > max(NUM_ERRORS * error_s, LEAST_SHARE * median_s)
    return IterationDelays(
        tail_s=round(tail_s, _TIME_DIGITS) if is_certain else 0.0, transfer_s=hops_s
    )


def _transfers_s(dag: ArrayDag, steps: TimedSteps, iteration_time_s: float) -> tuple[float, ...]:
    """Return the transfer time of each pair of neighbours, s; empty: all too short."""
    found = [_transfer_s(dag, steps, low) for low in range(max(dag.stage))]
    known_s = [time_s for time_s, _ in found if not math.isnan(time_s)]
    if not known_s:
        return ()
    typical_s = float(np.median(known_s))
    hops_s = tuple(
        # Between two stages of which neither ever waits it is unknown.
        typical_s if math.isnan(time_s) else time_s if time_s > NUM_ERRORS * error_s else 0.0
        for time_s, error_s in found
    )
    hops_s = tuple(round(max(hop_s, 0.0), _TIME_DIGITS) for hop_s in hops_s)
    # Each is on the critical path once there and once back.
    return hops_s if 2 * sum(hops_s) > LEAST_SHARE * iteration_time_s else ()


def _transfer_s(dag: ArrayDag, steps: TimedSteps, low: int) -> tuple[float, float]:
    """Return the time of a transfer between stages `low` and `low + 1`, and its error, s."""
    lags_s = [_lags_s(dag, steps, *ends) for ends in ((low, low + 1), (low + 1, low))]
    known_s = [lag_s for lag_s in lags_s if lag_s is not None]
    if not known_s:
        return math.nan, 0.0
    both_s = np.array(known_s).mean(axis=0)
    both_s = both_s[~np.isnan(both_s)]
    return _median(both_s) if both_s.size else (math.nan, 0.0)


def _lags_s(dag: ArrayDag, steps: TimedSteps, source: int, target: int) -> FloatArray | None:
    """Return the lag of each step and pipeline from one stage to the other, s.

    NaN: no instruction waited; None: none ever does.
    """
    stage, before = np.array(dag.stage), np.array(dag.order_predecessor)
    sources = np.array(dag.data_predecessor)
    nodes = np.flatnonzero((stage == target) & (sources != NONE) & (stage[sources] == source))
    if not nodes.size:
        return None
    end_s = steps.begin_s + steps.compute_s
    begin_s = steps.begin_s[nodes]
    is_first = (before[nodes] == NONE)[:, None, None]
    idle_s = begin_s - np.where(is_first, 0.0, end_s[before[nodes]])
    lag_s = begin_s - end_s[sources[nodes]]
    least_s = _LEAST_WAIT * float(np.median(steps.compute_s))
    has_waited = idle_s > np.maximum(_LEAST_OF_LONGEST * idle_s.max(axis=0), least_s)
    num_waits = has_waited.sum(axis=0)
    if not num_waits.any():
        return None
    sums_s = np.where(has_waited, lag_s, 0.0).sum(axis=0)
    mean_s: FloatArray = np.where(num_waits, sums_s / np.maximum(num_waits, 1), np.nan)
    return mean_s


def robust_deviation(values: FloatArray) -> float:
    """Return the standard deviation of normal values, from their median absolute deviation."""
    return DEVIATIONS_OF_MEDIAN * float(np.median(np.abs(values - np.median(values))))


def _median(values: FloatArray) -> tuple[float, float]:
    """Return the median and its standard error."""
    # The variance of a normal sample's median is pi / 2 times that of its mean.
    error = robust_deviation(values) * math.sqrt(math.pi / 2 / values.size)
    return float(np.median(values)), error


def measured_jitter(compute_s: FloatArray) -> float:
    """Return the standard deviation of an instruction's time as a share; 0: none is certain.

    It is taken from the differences between one step and the next, less the median difference of
    the two steps: so neither instructions that differ nor steps that are slow as a whole count.

    Args:
        compute_s: times of instructions in steps at unchanging clocks, s; shape (num_instructions,
            num_steps, num_pipelines).
    """
    if compute_s.shape[1] < 2 or not (compute_s > 0).all():
        return 0.0
    change = np.diff(compute_s / np.median(compute_s, axis=1, keepdims=True), axis=1)
    num_instructions, freedom = len(compute_s), 2.0
    if num_instructions > 1:
        change -= np.median(change, axis=0, keepdims=True)
        freedom *= (num_instructions - 1) / num_instructions
    jitter = DEVIATIONS_OF_MEDIAN * float(np.median(np.abs(change))) / math.sqrt(freedom)
    return min(round(jitter, _JITTER_DIGITS), MAX_JITTER) if jitter >= LEAST_JITTER else 0.0
