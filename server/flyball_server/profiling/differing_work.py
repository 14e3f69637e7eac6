"""Steps whose work differs, told from noise in the times of instructions.

Noise makes each instruction's time scatter for itself. Work is a microbatch's: with longer
sequences its forward and its backward take longer on all stages. So, of means of whole steps, all
rise and fall together, which Kendall's coefficient of concordance measures (`work_scatter`); and,
of single instructions, those of a microbatch have something in common (`shared_scatter`).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence

import numpy as np

from flyball_pipeline.dag import DependencyDag
from flyball_server.planning.model.array_dag import FloatArray
from flyball_server.profiling.iteration_delays import DEVIATIONS_OF_MEDIAN, robust_deviation
from flyball_server.profiling.observations import InstructionTimes, ProbeSetup, StageStep

# Steps at the highest clocks before anything is said.
FEWEST_STEPS = 12
# Of a single instruction's time; below, an online profile averages it out and a reserve covers it.
_LEAST_SCATTER = 0.05
# Mean rank correlation of the classes' times; of two that are independent, in 12 steps, one of a
# thousand pairs has more.
_LEAST_CONCORDANCE = 0.8
# Where a step has one instruction alone, its scatter is all there is to tell work by.
_LEAST_SCATTER_ALONE = 0.1
# Scatter that a microbatch's instructions have in common; with twice as much one plan for all steps
# makes them some half a percent longer, whatever its reserve is (decision 48).
LEAST_SHARED_SCATTER = 0.01
_FEWEST_GROUPS, _ERRORS_OF_SHARED = 48, 5.0


def work_scatter(setup: ProbeSetup, observed: Iterable[StageStep]) -> float | None:
    """Return how much an instruction's time scatters with its work, as a share; None: it does not.

    Args:
        setup: setup of the profiling.
        observed: steps of all stages, in any order; those at the highest clocks count.
    """
    series = _series(setup, observed)
    if not series:
        return None
    means_s, deviations = zip(*series, strict=True)
    times_s = np.array(means_s)
    if times_s.shape[1] < FEWEST_STEPS:
        return None
    median_s = np.median(times_s, axis=1, keepdims=True)
    between = np.median(np.abs(times_s / median_s - 1), axis=1) * DEVIATIONS_OF_MEDIAN
    scatter = float(np.median(np.hypot(between, deviations)))
    if len(series) == 1:
        return scatter if scatter > _LEAST_SCATTER_ALONE else None
    is_work = scatter > _LEAST_SCATTER and _concordance(times_s) > _LEAST_CONCORDANCE
    return scatter if is_work else None


def _series(setup: ProbeSetup, observed: Iterable[StageStep]) -> list[tuple[FloatArray, float]]:
    """Return, per class of each stage, its mean times in s by step, and the scatter within steps.

    Of steps that ran as planned, at the highest clocks, on all stages.
    """
    by_step: dict[int, dict[tuple[int, str, int], InstructionTimes]] = defaultdict(dict)
    for step in observed:
        highest_mhz = setup.clocks_mhz[step.stage][0]
        if step.is_clean and all(
            instruction.sm_clock_mhz == highest_mhz for instruction in step.instructions
        ):
            for times in step.instructions:
                by_step[step.step][step.stage, str(times.kind), times.chunk] = times
    most = max(map(len, by_step.values()), default=0)
    whole = [classes for _, classes in sorted(by_step.items()) if len(classes) == most]
    names = sorted(whole[0]) if whole else []
    return [_of_class([classes[name] for classes in whole]) for name in names]


def _of_class(times: Sequence[InstructionTimes]) -> tuple[FloatArray, float]:
    mean_s = np.array([spread.mean_s for spread in times])
    within = np.mean([spread.variance_s2 / spread.mean_s**2 for spread in times])
    return mean_s, float(np.sqrt(within))


def _concordance(times_s: FloatArray) -> float:
    """Return the mean rank correlation of all pairs of rows: `(m W - 1) / (m - 1)`.

    W is Kendall's coefficient of concordance (Kendall and Babington Smith, 1939).
    """
    num_rows, num_steps = times_s.shape
    ranks = times_s.argsort(axis=1).argsort(axis=1)
    squares = float(((ranks.sum(axis=0) - num_rows * (num_steps - 1) / 2) ** 2).sum())
    concordance = 12 * squares / (num_rows**2 * (num_steps**3 - num_steps))
    return float((num_rows * concordance - 1) / (num_rows - 1))


def shared_scatter(dag: DependencyDag, compute_s: FloatArray) -> float:
    """Return how much a microbatch's instructions scatter together, as a share; 0: not surely.

    What a whole step has in common on all pipelines does not count: it makes every plan longer by
    as much. Medians keep single slow instructions and steps out.

    Args:
        dag: order of the pipelines.
        compute_s: times of instructions at unchanging clocks, s; shape (num_nodes, num_steps,
            num_pipelines).
    """
    if compute_s.shape[1] < 2 or not (compute_s > 0).all():
        return 0.0
    logs = np.log(compute_s)
    logs -= np.median(logs, axis=(1, 2), keepdims=True)
    microbatch = np.array([instruction.microbatch for instruction in dag.instruction])
    numbers = np.unique(microbatch)
    of_each = np.array([np.median(logs[microbatch == number], axis=0) for number in numbers])
    position = np.searchsorted(numbers, microbatch)
    own = logs - of_each[position]
    of_each = of_each - np.median(of_each, axis=(0, 2), keepdims=True)
    together, noise = robust_deviation(of_each), robust_deviation(own)
    num_alike = len(microbatch) / len(numbers)
    # A single GPU waits for no other: every plan scales with its work.
    meets_others = max(dag.stage) > 0 or compute_s.shape[2] > 1
    if not meets_others or num_alike < 2 or of_each.size < _FEWEST_GROUPS:
        return 0.0
    # Of a median of n, whose own share of the deviations about it is missing there.
    noise_of_median = math.sqrt(math.pi / 2 / (num_alike - 1)) * noise
    excess = together**2 - noise_of_median**2
    # The variance from a median absolute deviation of n has a relative error of 2 / sqrt(0.74 n).
    relative = 2 * math.sqrt((1 / of_each.size + 1 / own.size) / 0.74)
    error = relative * noise_of_median**2
    shared = math.sqrt(excess) if excess > _ERRORS_OF_SHARED * error else 0.0
    return round(shared, 4) if shared > LEAST_SHARED_SCATTER else 0.0
