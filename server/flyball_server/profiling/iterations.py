"""Whole iterations over all stages: the baseline, and the cost of probing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from flyball_server.profiling.observations import ProbedVersion, ProbeSetup, StageStep


@dataclass(frozen=True, kw_only=True)
class Iteration:
    """One step of the whole pipeline.

    Attributes:
        version: that all stages ran; None: they differ, or ran none.
        iteration_time_s: time of the slowest stage, s.
        energy_j: energy of all stages, J; None: one is unknown.
        is_highest: all instructions ran at their stage's highest clock.
        is_clean: all stages ran as planned.
    """

    step: int
    version: int | None
    iteration_time_s: float
    energy_j: float | None
    is_highest: bool
    is_clean: bool


@dataclass(frozen=True, kw_only=True)
class Baseline:
    """Steps at the highest clocks, measured.

    Attributes:
        iteration_time_s: mean, s.
        scatter: standard deviation of a single one, as a share.
        energy_j: mean, J; None where it is not known.
    """

    iteration_time_s: float
    scatter: float
    energy_j: float | None


@dataclass(frozen=True, kw_only=True)
class ProbingCost:
    """Cost of the steps below the highest clocks beside the baseline, measured.

    Attributes:
        largest_slowdown: largest slowdown of a step, as a share; None: no such step.
        extra_time_s: time added by all steps together, s.
        extra_energy_j: energy added by all steps, J, below zero: saved; None: unknown.
    """

    largest_slowdown: float | None
    extra_time_s: float
    extra_energy_j: float | None


def iterations(setup: ProbeSetup, observed: Iterable[StageStep]) -> list[Iteration]:
    """Return the steps that every stage has reported, by number."""
    by_step: dict[int, dict[int, StageStep]] = {}
    for step in observed:
        by_step.setdefault(step.step, {})[step.stage] = step
    return [
        _together(setup, list(stages.values()))
        for _, stages in sorted(by_step.items())
        if len(stages) == setup.schedule.num_stages
    ]


def _together(setup: ProbeSetup, stages: Sequence[StageStep]) -> Iteration:
    versions = {stage.version for stage in stages}
    energies = [stage.energy_j for stage in stages]
    return Iteration(
        step=stages[0].step,
        version=versions.pop() if len(versions) == 1 else None,
        iteration_time_s=max(stage.iteration_time_s for stage in stages),
        energy_j=None if None in energies else sum(energy or 0.0 for energy in energies),
        is_highest=all(
            times.sm_clock_mhz == setup.clocks_mhz[stage.stage][0]
            for stage in stages
            for times in stage.instructions
        ),
        is_clean=all(stage.is_clean for stage in stages),
    )


def baseline_of(steps: Iterable[Iteration]) -> Baseline | None:
    """Return the clean steps at the highest clocks; None: fewer than two."""
    highest = [step for step in steps if step.is_highest and step.is_clean]
    if len(highest) < 2:
        return None
    times_s = np.array([step.iteration_time_s for step in highest])
    energies = [step.energy_j for step in highest if step.energy_j is not None]
    mean_s = float(times_s.mean())
    return Baseline(
        iteration_time_s=mean_s,
        scatter=float(times_s.std(ddof=1)) / mean_s,
        energy_j=float(np.mean(energies)) if energies else None,
    )


def probing_cost(steps: Iterable[Iteration], baseline: Baseline) -> ProbingCost:
    """Return the cost of probing, over clean steps with a clock below the highest."""
    probing = [step for step in steps if not step.is_highest and step.is_clean]
    extra_s = [step.iteration_time_s - baseline.iteration_time_s for step in probing]
    extra_j = [
        step.energy_j - baseline.energy_j
        for step in probing
        if step.energy_j is not None and baseline.energy_j is not None
    ]
    return ProbingCost(
        largest_slowdown=max(extra_s) / baseline.iteration_time_s if extra_s else None,
        extra_time_s=sum(extra_s),
        extra_energy_j=sum(extra_j) if extra_j else None,
    )


def underestimate(
    steps: Iterable[Iteration], baseline: Baseline, versions: Iterable[ProbedVersion]
) -> float:
    """By how much the slowest step was beyond its version's prediction, as a share; at least 0.

    Versions that probe nothing are left out: nothing could be predicted when they were made.
    """
    predicted_s = {
        version.version: version.plan.iteration_time_s
        for version in versions
        if version.plan.num_steps > 1
    }
    beyond_s = (
        step.iteration_time_s - predicted_s[step.version]
        for step in steps
        if step.is_clean and step.version is not None and step.version in predicted_s
    )
    return max(0.0, max(beyond_s, default=0.0)) / baseline.iteration_time_s
