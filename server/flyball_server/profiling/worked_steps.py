"""Instructions of steps whose work was announced, as so many of the mean work.

Online profiling finds one time and one energy for each instruction and clock. Where steps differ in
their work, an instruction counts as many as its work is over the mean work: a microbatch that takes
twice as long is two. Times at the highest clocks say how much longer work makes them, as in
`work_fit`; means over a step's microbatches are enough, since these times are linear in the sums.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

import numpy as np

from flyball_pipeline.work import StepWork, WorkCoefficients
from flyball_server.profiling.observations import InstructionTimes
from flyball_server.profiling.work_fit import FEWEST_MICROBATCHES, WorkTimes, fit_work

_Class = tuple[int, str, int]
"""Stage, kind and chunk."""


@dataclass(frozen=True, kw_only=True)
class WorkedRank:
    """One rank's instructions in one step, and the step's announced work."""

    stage: int
    work: StepWork
    instructions: tuple[InstructionTimes, ...]


@dataclass(frozen=True, kw_only=True)
class MeanWork:
    """Work of a step's instructions in units of the mean work, by stage, kind and chunk."""

    factors: Mapping[_Class, WorkCoefficients]
    #: Standard deviation of a step's mean time from the predicted one, as a share.
    error: float

    def counted(self, rank: WorkedRank) -> tuple[InstructionTimes, ...] | None:
        """Return a rank's instructions as so many of the mean work; None: it is not known."""
        counted: list[InstructionTimes] = []
        for times in rank.instructions:
            factor = self._factor(rank, times)
            if factor is None:
                return None
            mean_s = times.mean_s / factor
            counted.append(
                replace(
                    times,
                    count=times.count * factor,
                    mean_s=mean_s,
                    # The scatter within the step is that of its work.
                    variance_s2=(self.error * mean_s) ** 2 * times.count,
                )
            )
        return tuple(counted)

    def _factor(self, rank: WorkedRank, times: InstructionTimes) -> float | None:
        of_class = self.factors.get((rank.stage, str(times.kind), times.chunk))
        if of_class is None:
            if any(len(of_microbatch) != 1 for of_microbatch in rank.work):
                return None
            of_class = WorkCoefficients(1.0, 0.0, 0.0)
        return fmean(map(of_class.factor, rank.work))


def mean_work(ranks: Sequence[WorkedRank], highest_mhz: Mapping[int, int]) -> MeanWork | None:
    """Return the factors of steps' work, from those at the highest clocks.

    Args:
        ranks: ranks in steps of announced work.
        highest_mhz: highest clock that is probed by stage, MHz.

    Returns:
        None where too few steps ran at the highest clocks.
    """
    rows: dict[_Class, list[tuple[float, StepWork]]] = defaultdict(list)
    for rank in ranks:
        for times in rank.instructions:
            is_highest = times.sm_clock_mhz == highest_mhz.get(rank.stage)
            # Some of them alone would be of some of the microbatches.
            if is_highest and times.count == len(rank.work):
                rows[rank.stage, str(times.kind), times.chunk].append((times.mean_s, rank.work))
    if not rows or min(map(len, rows.values())) < FEWEST_MICROBATCHES:
        return None
    classes = tuple(rows)
    fitted = fit_work(_times(list(rows.values())), len(classes))
    if fitted is None:
        return None
    if not fitted.coefficients:
        return MeanWork(factors={}, error=fitted.error)
    factors: dict[_Class, WorkCoefficients] = {}
    for place, found in zip(classes, fitted.coefficients, strict=True):
        mean = fmean(fmean(map(found.factor, work)) for _, work in rows[place])
        factors[place] = WorkCoefficients(*(coefficient / mean for coefficient in found))
    return MeanWork(factors=factors, error=fitted.error)


def _times(by_class: Sequence[Sequence[tuple[float, StepWork]]]) -> WorkTimes:
    """Return means over steps' microbatches as if each were one."""
    found: list[tuple[float, int, int, float, float, float]] = []
    for place, rows in enumerate(by_class):
        median_s = float(np.median([mean_s for mean_s, _ in rows]))
        for number, (mean_s, work) in enumerate(rows):
            of_lengths = [of_microbatch for of_microbatch in work if len(of_microbatch) == 2]
            lengths = math.fsum(of_microbatch[0] for of_microbatch in of_lengths) / len(work)
            squares = math.fsum(of_microbatch[1] for of_microbatch in of_lengths) / len(work)
            factor = math.nan if of_lengths else fmean(of_microbatch[0] for of_microbatch in work)
            found.append((mean_s / median_s, place, number, lengths, squares, factor))
    ratio, place_, number_, lengths_, squares_, factor_ = np.array(found).T
    return WorkTimes(
        ratio=ratio,
        place=place_.astype(np.int64),
        microbatch=number_.astype(np.int64),
        pipeline=np.zeros(len(found), dtype=np.int64),
        lengths=lengths_,
        squares=squares_,
        factor=factor_,
    )


def averaged(
    ranks: Sequence[tuple[InstructionTimes, ...]],
) -> tuple[InstructionTimes, ...]:
    """Return the mean rank of a stage, whose pipelines have other work: its counts and times."""
    sums: dict[tuple[object, ...], tuple[InstructionTimes, float, float, float]] = {}
    for instructions in ranks:
        for times in instructions:
            key = times.kind, times.chunk, times.sm_clock_mhz
            _, count, busy_s, variance = sums.get(key, (times, 0.0, 0.0, 0.0))
            sums[key] = (
                times,
                count + times.count,
                busy_s + times.count * times.mean_s,
                variance + times.count * times.variance_s2,
            )
    return tuple(
        replace(
            times, count=count / len(ranks), mean_s=busy_s / count, variance_s2=variance / count
        )
        for times, count, busy_s, variance in sums.values()
    )
