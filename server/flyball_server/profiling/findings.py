"""Estimates from the steps so far: times, energies and blocking power of every stage."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from flyball_server.profiling.instruction_times import estimate_times
from flyball_server.profiling.mixed_model import FloatArray
from flyball_server.profiling.observations import ProbeSetup, StageStep
from flyball_server.profiling.stage_energies import (
    MeasuredStage,
    StageEnergies,
    estimate_energies,
)
from flyball_server.profiling.stage_points import StagePoints, StepTable


@dataclass(frozen=True, kw_only=True)
class StageFindings(MeasuredStage):
    """Knowledge of one stage.

    Attributes:
        energies: None where no step's energy is known.
    """

    stage: int
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
        probed = np.flatnonzero(self.times.num_probes[first : first + clock_index + 1])
        nearest = int(probed[-1])
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
        points = StagePoints.of_stage(setup, stage)
        usable = points.usable(steps)
        if usable:
            table = StepTable.of_steps(points, usable)
            power_w = setup.blocking_power_w
            measured[stage] = MeasuredStage(
                points=points,
                table=table,
                times=estimate_times(points, table),
                num_ranks=setup.num_ranks[stage],
                blocking_power_w=None if power_w is None else power_w[stage],
            )
    energies = estimate_energies(measured)
    return [
        StageFindings(**vars(each), stage=stage, energies=energies.get(stage))
        for stage, each in measured.items()
    ]
