"""Baseline and plan as they were measured, from the steps that the planner received."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median

from flyball_wire.messages import StepView


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """The steps of one phase of the run, without its warm-up.

    Attributes:
        num_steps: steps that the figures are over.
        iteration_time_s: median, emulated s: a step in which the computer was busy elsewhere
            says nothing of the clocks.
        energy_j: mean over the steps, summed over the ranks, emulated J.
        num_overruns: instructions whose computation outlasted its emulated time.
        num_unplanned: instructions that the plan did not expect.
    """

    num_steps: int
    iteration_time_s: float
    energy_j: float
    num_overruns: int
    num_unplanned: int


def steps_of(
    steps: Sequence[StepView], *, plan_version: int | None, num_ranks: int
) -> list[StepView]:
    """The steps that all ranks measured on exactly this plan, warm-up included, rising."""
    return sorted(
        (
            step
            for step in steps
            if step.num_ranks == num_ranks and step.plan_versions == (plan_version,)
        ),
        key=lambda step: step.step,
    )


def measure(steps: Sequence[StepView]) -> Measurement | None:
    """Over one phase's steps; the first is its warm-up and dropped.

    None where nothing is left, or a rank could not read its energy.
    """
    kept = steps[1:]
    energies_j = [step.energy_j for step in kept if step.energy_j is not None]
    if not kept or len(energies_j) < len(kept):
        return None
    return Measurement(
        num_steps=len(kept),
        iteration_time_s=median(step.time_s for step in kept),
        energy_j=fmean(energies_j),
        num_overruns=sum(step.num_overruns for step in kept),
        num_unplanned=sum(step.num_unplanned for step in kept),
    )
