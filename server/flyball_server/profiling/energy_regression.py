"""Energies of a stage's instructions, and its blocking power, by regression over steps.

A step's energy is the sum over its instructions of power times time, the blocking power of its
ranks times their idle time, and noise. Two of the noise's parts are told apart:

- each instruction's own scatter, independent from step to step;
- the counter's lateness: it moves about every 100 ms, so a reading is late by up to that much.
  A reading ends one step and begins the next, so its error enters both with opposite signs, and
  cancels in the sum of neighbours: a run of steps at the same clocks tells more than the same
  steps scattered.

In every step all classes of instructions run equally often, whatever their clocks are. So steps
tell how each class's energy changes over the clock, and what all classes take together at one
clock, but not how that is divided between them: energy moved from each forward to each backward
changes no reading (and no plan). That is left to the prior: at one clock all classes draw about
the same power. `split_free` has the part of the errors that plans depend on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from flyball_server.profiling.curve_prior import CurvePrior
from flyball_server.profiling.instruction_times import StageTimes
from flyball_server.profiling.mixed_model import (
    FloatArray,
    MixedModel,
    Posterior,
    VarianceComponent,
)
from flyball_server.profiling.stage_points import StagePoints, StepTable

# Of power, as a share of the stage's mean power. In published profiles (GPT-3 on A100 and A40)
# forward and backward draw powers that differ by 0 to 6 % at one clock.
POWER_PRIOR = CurvePrior(
    level=1.0,
    offset=0.03,
    shape=(0.3, 1.0),
    own_shape=(0.02, 1.0),
    roughness=(0.004, 0.8),
)
# Of the blocking power, as a share of the mean power: mean and standard deviation.
_BLOCKING_POWER_PRIOR = (0.25, 0.25)
# Of a late reading: standard deviation of a uniform 0.1 s, at somewhat less than mean power.
_LATENESS_S = 0.02
_NOISE_SPREAD = 1.5
_NOISE_SHARE = 0.02


@dataclass(frozen=True, kw_only=True)
class StageEnergies:
    """Energies at the points of a stage, all its ranks together.

    Attributes:
        mean_j: shape (num_points,).
        covariance_j2: of their errors; shape (num_points, num_points).
        blocking_power_w: of one rank.
        blocking_power_error_w: standard error; 0 where it was given.
        costs_j: E - r P t at each point; shape (num_points,).
        cost_covariance_j2: of their errors; shape (num_points, num_points).
        step_noise_j: standard deviation of a step's energy by its instructions' scatter.
        lateness_noise_j: of one reading of the counter.
    """

    mean_j: FloatArray
    covariance_j2: FloatArray
    blocking_power_w: float
    blocking_power_error_w: float
    costs_j: FloatArray
    cost_covariance_j2: FloatArray
    step_noise_j: float
    lateness_noise_j: float

    @property
    def error_j(self) -> FloatArray:
        """Standard errors of the energies; shape (num_points,)."""
        errors: FloatArray = np.sqrt(np.maximum(np.diag(self.covariance_j2), 0.0))
        return errors


def estimate_energies(
    points: StagePoints,
    table: StepTable,
    times: StageTimes,
    *,
    num_ranks: int,
    blocking_power_w: float | None,
) -> StageEnergies | None:
    """Posterior of the energies, given the steps; None where no step's energy is known.

    Args:
        num_ranks: whose energies each reading is the sum of.
        blocking_power_w: of one rank; None: estimated.
    """
    known = np.flatnonzero(np.isfinite(table.energy_j))
    if not len(known) or table.energy_j[known].sum() <= 0:
        return None
    # In units of the mean power of the busy stage the prior has no units.
    busy_s = (table.counts[known] * times.mean_s).sum(axis=1)
    scale_w = float(table.energy_j[known].sum() / busy_s.sum())
    design = np.column_stack(
        [table.counts[known] * times.mean_s, num_ranks * table.idle_s[known]]
    )
    blocking = (
        (blocking_power_w / scale_w, 1e-9)
        if blocking_power_w is not None
        else tuple(share / num_ranks for share in _BLOCKING_POWER_PRIOR)
    )
    model = MixedModel(
        readings=table.energy_j[known] / scale_w,
        design=design,
        prior_mean=np.append(np.ones(points.num_points), blocking[0]),
        prior=_prior(points, blocking[1]),
        noise=_noise(table.step[known], table.counts[known], times),
    )
    scales = model.scales()
    return _in_joules(
        model.posterior(scales),
        scale_w=scale_w,
        times=times,
        num_ranks=num_ranks,
        step_noise_j=scales[-2] * scale_w,
        lateness_noise_j=scales[-1] * scale_w,
        is_given=blocking_power_w is not None,
    )


def _prior(points: StagePoints, blocking_sd: float) -> list[VarianceComponent]:
    size = points.num_points + 1
    parts: list[VarianceComponent] = []
    for part in POWER_PRIOR.components(len(points.classes), points.clocks_mhz):
        covariance = np.zeros((size, size))
        covariance[:-1, :-1] = part.covariance
        parts.append(
            VarianceComponent(covariance=covariance, guess=part.guess, spread=part.spread)
        )
    blocking = np.zeros((size, size))
    blocking[-1, -1] = 1.0
    return [VarianceComponent(covariance=blocking, guess=blocking_sd, spread=0.0), *parts]


def _noise(
    step: Sequence[int] | FloatArray, counts: FloatArray, times: StageTimes
) -> list[VarianceComponent]:
    own = float(np.sqrt((counts * (_NOISE_SHARE * times.mean_s) ** 2).sum(axis=1).mean()))
    return [
        VarianceComponent(covariance=np.eye(len(counts)), guess=own, spread=_NOISE_SPREAD),
        VarianceComponent(
            covariance=lateness_covariance(step), guess=_LATENESS_S, spread=_NOISE_SPREAD
        ),
    ]


def lateness_covariance(step: Sequence[int] | FloatArray) -> FloatArray:
    """Of the steps' energies, where each reading is wrong by an independent unit error.

    Args:
        step: numbers of the steps, rising; neighbours share a reading. Shape (n,).
    """
    follows = np.diff(np.asarray(step)) == 1
    covariance: FloatArray = 2.0 * np.eye(len(follows) + 1)
    covariance -= np.diag(follows.astype(np.float64), 1) + np.diag(follows.astype(np.float64), -1)
    return covariance


def _in_joules(
    posterior: Posterior,
    *,
    scale_w: float,
    times: StageTimes,
    num_ranks: int,
    step_noise_j: float,
    lateness_noise_j: float,
    is_given: bool,
) -> StageEnergies:
    to_energies = np.hstack([np.diag(times.mean_s), np.zeros((len(times.mean_s), 1))])
    to_costs = to_energies.copy()
    to_costs[:, -1] = -num_ranks * times.mean_s
    # An interpolated point's power is known beside its time: the time's error adds. A probed
    # one's energy was read as a whole.
    of_times = np.where(times.num_probes > 0, 0.0, posterior.mean[:-1] * times.error_s)
    covariance = to_energies @ posterior.covariance @ to_energies.T + np.diag(of_times**2)
    cost_covariance = to_costs @ posterior.covariance @ to_costs.T + np.diag(of_times**2)
    power_error = float(np.sqrt(max(0.0, posterior.covariance[-1, -1])))
    return StageEnergies(
        mean_j=scale_w * to_energies @ posterior.mean,
        covariance_j2=scale_w**2 * covariance,
        blocking_power_w=max(0.0, scale_w * float(posterior.mean[-1])),
        blocking_power_error_w=0.0 if is_given else scale_w * power_error,
        costs_j=scale_w * to_costs @ posterior.mean,
        cost_covariance_j2=scale_w**2 * cost_covariance,
        step_noise_j=step_noise_j,
        lateness_noise_j=lateness_noise_j,
    )


def split_free(points: StagePoints, energies: StageEnergies) -> FloatArray:
    """Covariance of the energies' errors without the division between classes, J^2.

    What all classes take together at the highest clock is divided as the estimate says; each
    other point stands by its difference from its class's highest. Shape (num_points, num_points).
    """
    highest = points.highest()
    share = energies.mean_j[highest] / energies.mean_j[highest].sum()
    transform = np.eye(points.num_points)
    for index, top in enumerate(highest):
        of_class = slice(top, top + len(points.clocks_mhz))
        transform[of_class, top] -= 1.0
        transform[of_class, highest] += share[index]
    return transform @ energies.covariance_j2 @ transform.T
