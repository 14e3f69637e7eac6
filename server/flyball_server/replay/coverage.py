"""Coverage of plans by a fit: their leverage in the energy regression.

A regression tells nothing of combinations that it has not seen. The leverage of a plan is the
variance that it leaves to the plan's energy; far above every fitted run's, the plan is made of
clocks that never ran together, and its predicted energy is an extrapolation, even if each clock
was run. (Hoaglin and Welsch, The American Statistician 32(1), 1978.)

Two regressions have to carry a stage: the one that predicts, whose prior takes curves for smooth,
and one without any prior, of a stage's energy over the sums of f and f^2 of its forwards and of
its backwards, its waiting, and a constant. The second sees to it that no prior stands for runs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flyball_server.profiling.mixed_model import FloatArray
from flyball_server.replay.runs_fit import PlanClocks, RunsFit

# Above so many times the largest fitted run's leverage nothing is predicted.
MAX_LEVERAGE = 3.0
# Of the plain regression's features, scaled to at most 1: directions in which the runs spread by
# a smaller share were not seen.
_UNSEEN = 1e-9


@dataclass(frozen=True, kw_only=True)
class Coverage:
    """Leverages of a stage's plans: quadratic forms of its counts, its idle time, and 1.

    Attributes:
        forms: per stage and regression, divided by the largest fitted run's; shape (num_stages,
            2, num_points + 2, num_points + 2).
    """

    fit: RunsFit
    forms: NDArray[np.float64]

    @classmethod
    def of_fit(cls, fit: RunsFit) -> Coverage:
        """Return the leverages that the fitted runs have and leave."""
        plans = [fit.workload.clocks_in(run.clocks_mhz) for run in fit.fitted]
        idle_s = np.array([fit.predict(plan).idle_s for plan in plans])
        forms: list[list[FloatArray]] = []
        for stage in range(len(fit.curves)):
            runs = np.array(
                [
                    extended(plan.counts[stage], float(idle))
                    for plan, idle in zip(plans, idle_s[:, stage], strict=True)
                ]
            )
            of_stage = (_posterior_form(fit, stage), _plain_form(fit, runs))
            forms.append([form / _leverages(form, runs).max() for form in of_stage])
        return cls(fit=fit, forms=np.array(forms))

    def leverage(self, stage: int, counts: FloatArray, idle_s: float) -> float:
        """Return the larger leverage of a stage, in units of the largest fitted run's.

        Args:
            stage: its number.
            counts: instructions at each point; shape (num_points,).
            idle_s: iteration time that none of them takes, s.
        """
        point = extended(counts, idle_s)
        return float(max(point @ form @ point for form in self.forms[stage]))

    def largest(self, clocks: PlanClocks, idle_s: FloatArray) -> float:
        """Return the largest leverage of a plan's stages."""
        return max(
            self.leverage(stage, clocks.counts[stage], float(idle))
            for stage, idle in enumerate(idle_s)
        )


def extended(counts: FloatArray, idle_s: float) -> FloatArray:
    """Return the vector that the forms apply to; shape (num_points + 2,)."""
    return np.concatenate([counts, [idle_s, 1.0]])


def _leverages(form: FloatArray, runs: FloatArray) -> FloatArray:
    leverages: FloatArray = np.einsum("ij,jk,ik->i", runs, form, runs)
    return leverages


def _posterior_form(fit: RunsFit, stage: int) -> FloatArray:
    energies = fit.energies[stage]
    scale = np.append(np.ones(len(energies.mean_j)), energies.num_ranks)
    return np.pad(np.outer(scale, scale) * energies.covariance, (0, 1))


def _plain_form(fit: RunsFit, runs: FloatArray) -> FloatArray:
    clocks = np.array(fit.workload.points.clocks_mhz) / fit.workload.points.clocks_mhz[0]
    none = np.zeros_like(clocks)
    features = np.zeros((6, runs.shape[1]))
    for row, of_points in enumerate(
        ((clocks, none), (clocks**2, none), (none, clocks), (none, clocks**2))
    ):
        features[row, :-2] = np.concatenate(of_points)
    features[4, -2] = features[5, -1] = 1.0
    scaled = features / np.maximum(np.abs(runs @ features.T).max(axis=0), _UNSEEN)[:, None]
    _, spread, directions = np.linalg.svd(runs @ scaled.T, full_matrices=False)
    spread = np.maximum(spread, _UNSEEN * spread.max())
    to_unit = (directions / spread[:, None]) @ scaled
    form: FloatArray = to_unit.T @ to_unit
    return form
