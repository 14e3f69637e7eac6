"""Times, energies and blocking power of every stage, by regression over its steps.

Both are curves over the clock (`regression`): of the logarithm of the time, and of the power.

A step's energy is the sum over its instructions of power times time, the blocking power of its
ranks times their idle time, and noise. In every step all classes of instructions run equally often,
whatever their clocks are. So whole steps tell how each class's energy changes over the clock, and
the energy of all classes together at one clock, but not its division between them: energy moved
from each forward to each backward changes no step and no plan, also where one of them drifts. The
division is by equal power: at the highest clock all classes of a stage draw the same power, so that
energies are in proportion to times. The measured change over the clock is added to that.

One error model holds for all readings. A single instruction scatters by a share of its time, which
its measured times show; energies scatter about as much, and each reading of an energy counter is
late by a random time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from flyball_server.planning.model.array_dag import FloatArray
from flyball_server.profiling.observations import ProbeSetup, StagePoints, StageStep, StepTable
from flyball_server.profiling.regression import (
    CurveSpreads,
    Readings,
    StageFit,
    VariancePart,
    curve_parts,
    fit_stages,
)

# Of the logarithm of the time. Classes differ by their work, so by any factor; what they share is
# how it changes over the clock, at most in inverse proportion.
_TIMES = CurveSpreads(shape=(0.3, 1.0), own_shape=(0.03, 1.0))
_TIMES_OF_STAGE = CurveSpreads(
    offset=(2.0, 0.0), shape=(0.03, 1.0), own_shape=(0.03, 1.0), roughness=(0.002, 0.8)
)
# Of power, as a share of the stages' mean power while they are busy. No offsets: the division by
# equal power.
_POWERS = CurveSpreads(
    level=(1.0, 0.0), shape=(0.3, 1.0), own_shape=(0.03, 0.5), roughness=(0.003, 0.8)
)
_POWERS_OF_STAGE = CurveSpreads(
    level=(0.02, 0.5), shape=(0.01, 0.5), own_shape=(0.005, 0.5), roughness=(0.002, 0.5)
)
# Of the blocking power as the same share: mean, standard deviation of all and of a stage.
_BLOCKING_POWER, _BLOCKING_POWER_ERROR, _BLOCKING_POWER_OF_STAGE = 0.25, 0.25, 0.01
# Of a late reading: standard deviation of a uniform 0.1 s, at somewhat less than mean power, as at
# the end of a step.
_LATENESS_S = 0.02
# Standard deviation of the logarithm of the scatter of energies beside that of times, and of
# lateness, from one stage to the next.
_SCATTER_SPREAD, _LATENESS_SPREAD = 0.25, 0.5
# Prior of the scatter: number of instructions and their scatter (share). A handful of probes
# alone does not determine it.
_PRIOR_COUNT, _PRIOR_SCATTER = 4.0, 0.02
# Rows from which the scatter between steps is estimated by itself.
_ENOUGH_ROWS = 10


@dataclass(frozen=True, kw_only=True)
class StageTimes:
    """Times at the points of a stage.

    Attributes:
        mean_s, error_s: times and their standard errors, s; shape (num_points,).
        num_probes: number of instructions that were measured at each point; same shape.
        scatter: per class, standard deviation of one instruction's time, as a share.
    """

    mean_s: FloatArray
    error_s: FloatArray
    num_probes: FloatArray
    scatter: FloatArray


@dataclass(frozen=True, kw_only=True)
class StageEnergies:
    """Energies at the points of a stage, all its ranks together.

    Attributes:
        mean_j: energies, J; shape (num_points,).
        blocking_power_w: blocking power of one rank, W.
        covariance: covariance of the errors of the energies (J) and, last, of the blocking
            power (W; 0 where it was given); shape (num_points + 1, num_points + 1).
        num_ranks: number of ranks that the energies belong to.
        step_noise_j: standard deviation of a step's energy by its instructions' scatter, J.
        lateness_noise_j: standard deviation of one reading of the counter, J.
    """

    mean_j: FloatArray
    blocking_power_w: float
    covariance: FloatArray
    num_ranks: int
    step_noise_j: float
    lateness_noise_j: float

    @property
    def error_j(self) -> FloatArray:
        """Standard errors of the energies; shape (num_points,)."""
        errors: FloatArray = np.sqrt(np.maximum(np.diag(self.covariance)[:-1], 0.0))
        return errors

    @property
    def blocking_power_error_w(self) -> float:
        """Standard error of the blocking power, W."""
        return float(np.sqrt(max(0.0, self.covariance[-1, -1])))


@dataclass(frozen=True, kw_only=True)
class MeasuredStage:
    """Steps of a stage.

    Attributes:
        num_ranks: number of ranks that its energies are the sum of.
        blocking_power_w: blocking power of one rank, W; None: estimated.
    """

    points: StagePoints
    table: StepTable
    num_ranks: int
    blocking_power_w: float | None


@dataclass(frozen=True, kw_only=True)
class StageFindings(MeasuredStage):
    """Knowledge of one stage.

    Attributes:
        energies: None where no step's energy is known.
    """

    stage: int
    times: StageTimes
    energies: StageEnergies | None

    def time_share_error(self) -> FloatArray:
        """Standard error of each point's time, as a share of it."""
        return self.times.error_s / self.times.mean_s

    def energy_share_error(self) -> FloatArray:
        """Standard error of each point's energy, divided by equal power, as a share of it."""
        energies = self.energies
        if energies is None:
            return np.full(self.points.num_points, np.inf)
        errors: FloatArray = energies.error_j / energies.mean_j
        # An energy below zero is no energy.
        errors[energies.mean_j <= 0] = np.inf
        return errors

    def time_bound_s(self, class_index: int, clock_index: int) -> float:
        """Longest time that an instruction may take at a clock, s.

        Where it was measured, that and two standard errors. Elsewhere it follows from the nearest
        measured clock above: a time grows at most in inverse proportion to the clock, since
        nothing but the SM slows down with it.
        """
        first = self.points.number(class_index, 0)
        nearest = int(np.flatnonzero(self.times.num_probes[first : first + clock_index + 1])[-1])
        known_s = self.times.mean_s[first + nearest] + 2 * self.times.error_s[first + nearest]
        clocks_mhz = self.points.clocks_mhz
        return float(known_s * clocks_mhz[nearest] / clocks_mhz[clock_index])


def find(setup: ProbeSetup, observed: Iterable[StageStep]) -> list[StageFindings]:
    """Return the estimates of each stage from its clean steps; a stage without any is left out."""
    by_stage: list[list[StageStep]] = [[] for _ in range(setup.schedule.num_stages)]
    for step in observed:
        by_stage[step.stage].append(step)
    measured: dict[int, MeasuredStage] = {}
    for stage, steps in enumerate(by_stage):
        points = StagePoints(classes=setup.classes_of(stage), clocks_mhz=setup.clocks_mhz[stage])
        table = StepTable.of_steps(points, steps)
        if len(table.step):
            power_w = setup.blocking_power_w
            measured[stage] = MeasuredStage(
                points=points,
                table=table,
                num_ranks=setup.num_ranks[stage],
                blocking_power_w=None if power_w is None else power_w[stage],
            )
    times = estimate_times(measured)
    energies = estimate_energies(measured, times)
    return [
        StageFindings(
            **vars(estimate), stage=stage, times=times[stage], energies=energies.get(stage)
        )
        for stage, estimate in measured.items()
    ]


def _alike(stages: Mapping[int, MeasuredStage]) -> Iterator[tuple[StagePoints, list[int]]]:
    """Yield the stages of the same classes and clocks: they have the same kind of GPU."""
    for points in dict.fromkeys(estimate.points for estimate in stages.values()):
        yield points, [stage for stage, estimate in stages.items() if estimate.points == points]


def _curves(points: StagePoints, common: CurveSpreads, own: CurveSpreads) -> list[VariancePart]:
    return [
        part
        for spreads, is_common in ((common, True), (own, False))
        for part in curve_parts(
            spreads, len(points.classes), points.clocks_mhz, is_common=is_common
        )
    ]


def estimate_times(stages: Mapping[int, MeasuredStage]) -> dict[int, StageTimes]:
    """Estimate the times at all points of the stages; points without probes are interpolated.

    The logarithms of the probed points' mean times are the readings, each with the standard
    error that the scatter of single instructions gives it.
    """
    found: dict[int, StageTimes] = {}
    for points, group in _alike(stages):
        num_probes = [stages[stage].table.counts.sum(axis=0) for stage in group]
        scatters: list[FloatArray] = []
        readings: list[Readings] = []
        for stage, counts in zip(group, num_probes, strict=True):
            table = stages[stage].table
            mean_s = (table.counts * table.mean_s).sum(axis=0) / np.maximum(counts, 1)
            scatters.append(_scatter(points, table, mean_s))
            variances = np.repeat(scatters[-1], len(points.clocks_mhz)) ** 2
            probed = np.flatnonzero(counts)
            readings.append(
                Readings(
                    values=np.log(mean_s[probed]),
                    design=np.eye(points.num_points)[probed],
                    noise=(np.diag(variances[probed] / counts[probed]),),
                )
            )
        mean = np.concatenate([reading.values for reading in readings]).mean()
        fits = fit_stages(
            readings,
            np.full(points.num_points, mean),
            _curves(points, _TIMES, _TIMES_OF_STAGE),
            [(1.0, 0.0)],
        )
        for stage, fit, counts, scatter in zip(group, fits, num_probes, scatters, strict=True):
            mean_s = np.exp(fit.mean)
            found[stage] = StageTimes(
                mean_s=mean_s,
                error_s=mean_s * np.sqrt(np.diag(fit.covariance)),
                num_probes=counts,
                scatter=scatter,
            )
    return found


def _scatter(points: StagePoints, table: StepTable, grand_s: FloatArray) -> FloatArray:
    """Return per class the standard deviation of one instruction's time, as a share.

    The larger one of what single instructions show and what the steps' means show: where a
    whole step is slow or fast together, more instructions of it add no information.
    """

    def by_class(values: FloatArray) -> FloatArray:
        return values.reshape(len(table.step), len(points.classes), -1)

    scale_s = np.where(grand_s > 0, grand_s, 1.0)
    counts = by_class(table.counts)
    between = by_class(table.counts * np.square((table.mean_s - grand_s) / scale_s)).sum((0, 2))
    within = by_class(np.maximum(table.counts - 1, 0) * table.variance_s2 / scale_s**2)
    num_points = (counts.sum(0) > 0).sum(1)
    freedom = counts.sum((0, 2)) - num_points + _PRIOR_COUNT
    rows_freedom = (counts > 0).sum((0, 2)) - num_points
    prior = _PRIOR_COUNT * _PRIOR_SCATTER**2
    single = (between + within.sum((0, 2)) + prior) / freedom
    stepwise = (between + prior) / (np.maximum(rows_freedom, 0) + _PRIOR_COUNT)
    has_rows = rows_freedom >= _ENOUGH_ROWS
    scatter: FloatArray = np.sqrt(np.maximum(single, np.where(has_rows, stepwise, 0.0)))
    return scatter


def estimate_energies(
    stages: Mapping[int, MeasuredStage], times: Mapping[int, StageTimes]
) -> dict[int, StageEnergies]:
    """Estimate the energies of the stages whose energy was read.

    The readings are the energies of blocks of steps, without those of known blocking power.
    Powers are of one rank, as shares of a unit, one at each point, then the blocking power. The
    noise has two scales: of the scatter of energies beside that of times, and of the lateness of
    a counter's readings, s.
    """
    powers_w = {
        stage: _mean_busy_power_w(estimate, times[stage]) for stage, estimate in stages.items()
    }
    read = {stage: estimate for stage, estimate in stages.items() if powers_w[stage] > 0}
    unit_w = float(np.median([powers_w[stage] for stage in read])) if read else 0.0
    found: dict[int, StageEnergies] = {}
    for points, group in _alike(read):
        parts = [
            replace(part, covariance=np.pad(part.covariance, (0, 1)))
            for part in _curves(points, _POWERS, _POWERS_OF_STAGE)
        ]
        blocking = np.zeros_like(parts[0].covariance)
        blocking[-1, -1] = stages[group[0]].blocking_power_w is None
        parts += [
            VariancePart(covariance=blocking, guess=_BLOCKING_POWER_ERROR, is_common=True),
            VariancePart(covariance=blocking, guess=_BLOCKING_POWER_OF_STAGE),
        ]
        fits = fit_stages(
            [_energy_readings(stages[stage], times[stage], unit_w) for stage in group],
            np.append(np.ones(points.num_points), _BLOCKING_POWER),
            parts,
            [(1.0, _SCATTER_SPREAD), (_LATENESS_S, _LATENESS_SPREAD)],
        )
        for stage, fit in zip(group, fits, strict=True):
            found[stage] = _in_joules(stages[stage], times[stage], fit, unit_w)
    return found


def _mean_busy_power_w(stage: MeasuredStage, times: StageTimes) -> float:
    """Return the energy of a rank by the time that its instructions run, W; 0: not known."""
    known = np.isfinite(stage.table.energy_j)
    busy_s = float((stage.table.counts[known] @ times.mean_s).sum())
    total_j = float(stage.table.energy_j[known].sum())
    return total_j / (stage.num_ranks * busy_s) if busy_s > 0 else 0.0


def _energy_readings(stage: MeasuredStage, times: StageTimes, unit_w: float) -> Readings:
    """Return the energies of blocks: steps of known energy, neighbours at the same clocks summed.

    Neighbouring blocks share a reading of the counter, so that its lateness cancels in their sum.
    """
    table = stage.table
    known = np.flatnonzero(np.isfinite(table.energy_j))
    counts = table.counts[known]
    follows = np.diff(table.step[known]) == 1
    is_alike = (counts[1:] == counts[:-1]).all(axis=1)
    begins = np.flatnonzero(np.append(True, ~(follows & is_alike)))
    shared = np.diag(follows[begins[1:] - 1].astype(np.float64), 1)
    counts = np.add.reduceat(counts, begins)
    idle_s = np.add.reduceat(table.idle_s[known], begins)
    energy_j = np.add.reduceat(table.energy_j[known], begins)
    is_given = stage.blocking_power_w is not None
    if stage.blocking_power_w is not None:
        energy_j -= stage.num_ranks * stage.blocking_power_w * idle_s
    return Readings(
        values=energy_j / (stage.num_ranks * unit_w),
        design=np.column_stack([counts * times.mean_s, idle_s * (not is_given)]),
        noise=(
            np.diag(counts @ _scatter_s2(stage.points, times)),
            2.0 * np.eye(len(begins)) - shared - shared.T,
        ),
    )


def _scatter_s2(points: StagePoints, times: StageTimes) -> FloatArray:
    """Return the variance of one instruction's time at each point, s^2."""
    variances: FloatArray = (np.repeat(times.scatter, len(points.clocks_mhz)) * times.mean_s) ** 2
    return variances


def _in_joules(
    stage: MeasuredStage, times: StageTimes, fit: StageFit, unit_w: float
) -> StageEnergies:
    unit_j_per_s = stage.num_ranks * unit_w
    per_power = np.append(unit_j_per_s * times.mean_s, unit_w)
    # An interpolated point's power is known beside its time: the time's error adds. A probed
    # one's energy was read as a whole.
    of_times = np.where(times.num_probes > 0, 0.0, fit.mean[:-1] * times.error_s)
    of_times = np.append(unit_j_per_s * of_times, 0.0)
    scatter, lateness = fit.noise
    step_s2 = (stage.table.counts @ _scatter_s2(stage.points, times)).mean()
    given_w = stage.blocking_power_w
    return StageEnergies(
        mean_j=fit.mean[:-1] * per_power[:-1],
        blocking_power_w=max(0.0, unit_w * float(fit.mean[-1])) if given_w is None else given_w,
        covariance=fit.covariance * np.outer(per_power, per_power) + np.diag(of_times**2),
        num_ranks=stage.num_ranks,
        step_noise_j=scatter * float(np.sqrt(step_s2)) * unit_j_per_s,
        lateness_noise_j=lateness * unit_j_per_s,
    )
