"""The points of a stage, numbered: what may be probed, and what its steps say of each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flyball_server.profiling.mixed_model import FloatArray
from flyball_server.profiling.observations import (
    InstructionClass,
    InstructionTimes,
    ProbeSetup,
    StageStep,
)


@dataclass(frozen=True, kw_only=True)
class StagePoints:
    """Points of one stage: class after class, each in falling clocks.

    Attributes:
        classes: classes of instruction that the stage runs.
        clocks_mhz: that may be probed, MHz, falling.
    """

    classes: tuple[InstructionClass, ...]
    clocks_mhz: tuple[int, ...]

    @classmethod
    def of_stage(cls, setup: ProbeSetup, stage: int) -> StagePoints:
        """Return the points of a stage of this setup."""
        return cls(classes=setup.classes_of(stage), clocks_mhz=setup.clocks_mhz[stage])

    @property
    def num_points(self) -> int:
        """Number of points of all classes."""
        return len(self.classes) * len(self.clocks_mhz)

    def number(self, class_index: int, clock_index: int) -> int:
        """Return the number of a point."""
        return class_index * len(self.clocks_mhz) + clock_index

    def highest(self) -> NDArray[np.int64]:
        """Per class, the number of its point at the highest clock."""
        return np.arange(len(self.classes)) * len(self.clocks_mhz)

    def number_of(self, times: InstructionTimes) -> int | None:
        """Return the number of the point that instructions ran at; None: not a point."""
        try:
            return self.number(
                self.classes.index(InstructionClass(times.kind, times.chunk)),
                self.clocks_mhz.index(times.sm_clock_mhz or 0),
            )
        except ValueError:
            return None

    def usable(self, steps: Iterable[StageStep]) -> list[StageStep]:
        """Return the clean steps whose instructions all ran at points, by step."""
        return sorted(
            (
                step
                for step in steps
                if step.is_clean
                and step.instructions
                and all(self.number_of(times) is not None for times in step.instructions)
            ),
            key=lambda step: step.step,
        )


@dataclass(frozen=True, kw_only=True)
class StepTable:
    """Clean steps of one stage as arrays; n of them.

    Attributes:
        step: their numbers, rising; shape (n,).
        counts: instructions that ran at each point; shape (n, num_points).
        mean_s: their mean time, 0 where there were none; same shape.
        variance_s2: variance of single instructions in the step; same shape.
        idle_s: iteration time that no instruction took; shape (n,).
        energy_j: by the counters, NaN where unknown; shape (n,).
    """

    step: NDArray[np.int64]
    counts: FloatArray
    mean_s: FloatArray
    variance_s2: FloatArray
    idle_s: FloatArray
    energy_j: FloatArray

    @classmethod
    def of_steps(cls, points: StagePoints, steps: Sequence[StageStep]) -> StepTable:
        """Return the arrays of usable steps."""
        counts, mean_s, variance_s2 = (np.zeros((len(steps), points.num_points)) for _ in range(3))
        for row, step in enumerate(steps):
            for times in step.instructions:
                at = row, points.number_of(times)
                counts[at], mean_s[at] = times.count, times.mean_s
                variance_s2[at] = times.variance_s2
        return cls(
            step=np.array([step.step for step in steps], dtype=np.int64),
            counts=counts,
            mean_s=mean_s,
            variance_s2=variance_s2,
            idle_s=np.array([max(0.0, step.iteration_time_s - step.busy_s) for step in steps]),
            energy_j=np.array(
                [np.nan if step.energy_j is None else step.energy_j for step in steps]
            ),
        )
