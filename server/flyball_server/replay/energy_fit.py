"""Energies of every stage's instructions over the clock, by regression of the runs' energies.

A stage's energy in a run is the sum of its instructions' energies, its waiting time times the
blocking power, and noise. Over the logarithm of the clock a kind's power, or the energy of its
instruction, is a smooth curve: a Gaussian process (Rasmussen and Williams, Gaussian Processes for
Machine Learning, 2006, section 2.7) whose values at some knots are the unknowns. Stages run the
same kind of GPU, so their curves are drawn about a common one. The variance of the noise is
MacKay's (Neural Computation 4(3), 1992, section 4).

The right form of the curves is unknown, so several are fitted. A prediction is their mean, weighted
by leave-one-out errors, and the spread between them is part of its error.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from flyball_server.planning.model.array_dag import FloatArray

# Smooth is power or energy, over so much of the clocks, which go from -1 to 1.
FORMS = tuple(product(("power", "energy"), (0.5, 2.0)))
_CONVERGED = 0.01


@dataclass(frozen=True, kw_only=True)
class CurvePrior:
    """Prior of the curves, as shares of the mean power, or energy.

    Level, slope and shape are standard deviations of a curve's constant and linear part and of its
    departure from these.

    Attributes:
        num_knots: number of knots; curves are linear between them.
        slope: mean slope: power rises with the clock.
        common: level, slope and shape of all stages and kinds together.
        of_kind: departure of a kind from both kinds, as a share of `common`.
        of_stage: level, slope and shape of a stage's departure: GPUs differ by some percent.
        blocking: mean of the blocking power, its standard deviation, and that of a stage.
        noise: noise of a stage's energy.
        num_readings: number of readings that this guess of the noise is worth.
    """

    num_knots: int = 9
    slope: float = 0.5
    common: tuple[float, float, float] = (0.5, 0.5, 0.1)
    of_kind: float = 0.3
    of_stage: tuple[float, float, float] = (0.05, 0.035, 0.015)
    blocking: tuple[float, float, float] = (0.4, 0.3, 0.05)
    noise: float = 0.002
    num_readings: float = 4.0

    def unknowns(self, length: float, num_stages: int) -> tuple[FloatArray, FloatArray]:
        """Return mean and covariance of the unknowns of all stages.

        A stage has the values of forwards and of backwards at the knots, and the blocking power.
        """
        knots = np.linspace(-1, 1, self.num_knots)
        distance = np.sqrt(5) * np.abs(knots[:, None] - knots) / length
        matern = (1 + distance + distance**2 / 3) * np.exp(-distance)

        def covariance(
            deviations: Sequence[float], kinds: FloatArray, blocking: float
        ) -> FloatArray:
            level, slope, shape = np.square(deviations)
            of_curve = level + slope * np.outer(knots, knots) + shape * matern
            of_kinds = np.einsum("ab,cd->acbd", kinds, of_curve).reshape(2 * len(knots), -1)
            of_stage: FloatArray = np.pad(of_kinds, (0, 1))
            of_stage[-1, -1] = blocking**2
            return of_stage

        mean_blocking, blocking, of_stage = self.blocking
        kinds = np.ones((2, 2)) + self.of_kind**2 * np.eye(2)
        common = covariance(self.common, kinds, blocking)
        own = covariance(self.of_stage, np.eye(2), of_stage)
        curve = 1 + self.slope * knots
        stages = np.ones((num_stages, num_stages))
        return (
            np.tile([*curve, *curve, mean_blocking], num_stages),
            np.kron(stages, common) + np.kron(np.eye(num_stages), own),
        )


@dataclass(frozen=True, kw_only=True)
class EnergyFit:
    """Energies of loads, with a factor of their errors' covariance.

    A load is what the stages do in an iteration: their instructions at each point, those of
    forwards before those of backwards, and last their waiting time in s; shape (num_stages,
    num_points + 1).

    Attributes:
        energy_j: energy of each part of a load, J; shape (num_stages, num_points + 1).
        factor: the squared length of its product with a load is the variance of the load's
            energy, J^2, by what the regression and the choice of a form leave open; shape
            (num_rows, num_stages, num_points + 1).
        noise_j2: variance of an iteration's energy by noise, J^2.
    """

    energy_j: FloatArray
    factor: FloatArray
    noise_j2: float

    def energy_of(self, load: FloatArray) -> float:
        """Return the energy of a load, J."""
        return float((self.energy_j * load).sum())

    def deviation_of(self, load: FloatArray) -> float:
        """Return the standard deviation of an iteration's energy with this load, J."""
        left_open = np.einsum("rsp,sp->r", self.factor, load)
        return float(np.sqrt(left_open @ left_open + self.noise_j2))


def fit_energies(
    clocks_mhz: Sequence[int],
    time_s: FloatArray,
    loads: FloatArray,
    energies_j: FloatArray,
) -> EnergyFit:
    """Fit the energies of all stages.

    Args:
        clocks_mhz: clocks of the points of a kind, at least two, MHz.
        time_s: time of an instruction at each point, s; shape (num_stages, num_points).
        loads: load of each run; shape (num_runs, num_stages, num_points + 1).
        energies_j: energies of each run's stages, J; shape (num_runs, num_stages).
    """
    prior = CurvePrior()
    position = np.log(clocks_mhz)
    position = 2 * (position - position.min()) / np.ptp(position) - 1
    knots = np.linspace(-1, 1, prior.num_knots)
    at_clocks: FloatArray = np.empty((len(clocks_mhz), len(knots)))
    for knot, alone in enumerate(np.eye(len(knots))):
        at_clocks[:, knot] = np.interp(position, knots, np.asarray(alone, dtype=np.float64))
    busy_s = loads[:, :, :-1].sum(axis=0) * time_s
    unit_j_per_s = float(np.median(energies_j.sum(axis=0) / busy_s.sum(axis=1)))
    kinds = (len(time_s), 2, len(clocks_mhz))
    mean_s = busy_s.reshape(kinds).sum(2) / loads[:, :, :-1].sum(axis=0).reshape(kinds).sum(2)
    scales_s = {"power": time_s, "energy": np.repeat(mean_s, len(clocks_mhz), axis=1)}
    fits: list[_Fit] = []
    for smooth, length in FORMS:
        # Energy of each part of a load where an unknown is 1 and the others 0, J.
        features = np.zeros((*loads.shape[1:], 2 * len(knots) + 1))
        features[:, :-1, :-1] = scales_s[smooth][:, :, None] * np.kron(np.eye(2), at_clocks)
        features[:, -1, -1] = 1.0
        features *= unit_j_per_s
        unknowns = prior.unknowns(length, len(time_s))
        fits.append(_fitted(prior, unknowns, features, loads, energies_j))
    return _averaged(fits)


@dataclass(frozen=True, kw_only=True)
class _Fit:
    """A fit by one form, and the mean error of runs that are left out in turn, J."""

    energies: EnergyFit
    left_out_j: float


def _fitted(
    prior: CurvePrior,
    unknowns: tuple[FloatArray, FloatArray],
    features: FloatArray,
    loads: FloatArray,
    energies_j: FloatArray,
) -> _Fit:
    num_runs, num_stages = energies_j.shape
    mean, covariance = unknowns
    # As shares of a stage's mean energy all readings have the same noise.
    scale_j = energies_j.mean(axis=0)
    of_loads = np.einsum("rsp,spu->rsu", loads, features) / scale_j[:, None]
    blocks = np.einsum("rsu,st->rstu", of_loads, np.eye(num_stages))
    rows = blocks.reshape(num_runs * num_stages, -1)
    readings = (energies_j / scale_j).ravel() - rows @ mean
    # Directions in which prior and readings are both independent: unknowns are mean + to_unknowns
    # @ z, z is normal, and the readings tell of each z with this precision times the noise's.
    root = np.linalg.cholesky(covariance)
    precision, directions = np.linalg.eigh(root.T @ rows.T @ rows @ root)
    precision = np.maximum(precision, 0.0)
    to_unknowns = root @ directions
    moment = to_unknowns.T @ rows.T @ readings
    variance, before = prior.noise**2, 0.0
    while abs(variance - before) > _CONVERGED * variance:
        found = moment / (precision + variance)
        errors = readings @ readings - 2 * moment @ found + precision @ found**2
        num_fitted = float((precision / (precision + variance)).sum())
        before = variance
        variance = float(errors) + prior.num_readings * prior.noise**2
        variance /= max(0.0, len(rows) - num_fitted) + prior.num_readings
    found = moment / (precision + variance)
    factor = to_unknowns * np.sqrt(variance / (precision + variance))
    # Allen, Technometrics 16(1), 1974, for the stages of a run together.
    of_runs = (rows @ factor).reshape(num_runs, num_stages, -1)
    hat = of_runs @ of_runs.transpose(0, 2, 1) / variance
    own = (readings - rows @ to_unknowns @ found).reshape(num_runs, num_stages, 1)
    left_out: FloatArray = np.asarray(
        np.linalg.solve(np.eye(num_stages) - hat, own), dtype=np.float64
    )
    left_out_j = left_out[:, :, 0] @ scale_j
    values = (mean + to_unknowns @ found).reshape(num_stages, -1)
    energies = EnergyFit(
        energy_j=np.einsum("su,spu->sp", values, features),
        factor=np.einsum("suk,spu->ksp", factor.reshape(*values.shape, -1), features),
        noise_j2=variance * float(scale_j @ scale_j),
    )
    return _Fit(energies=energies, left_out_j=float(np.abs(left_out_j).mean()))


def _averaged(fits: Sequence[_Fit]) -> EnergyFit:
    weights = np.array([fit.left_out_j**-2 for fit in fits])
    weights /= weights.sum()
    energy_j = np.tensordot(weights, [fit.energies.energy_j for fit in fits], 1)
    # So weighted, squared deviations from the mean add up to the variance between forms.
    between = np.sqrt(weights / (1 - float(weights @ weights)))
    rows = [
        np.concatenate(
            [
                np.sqrt(weight) * fit.energies.factor,
                of_form * (fit.energies.energy_j - energy_j)[None],
            ]
        )
        for weight, of_form, fit in zip(weights, between, fits, strict=True)
    ]
    return EnergyFit(
        energy_j=energy_j,
        factor=np.concatenate(rows),
        noise_j2=float(weights @ [fit.energies.noise_j2 for fit in fits]),
    )
