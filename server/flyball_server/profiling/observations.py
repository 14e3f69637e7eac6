"""Input of online profiling: the job's shape, the versions it ran, and the measurements.

The measurements of a stage are numbered by its points, and its clean steps are arrays over these.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from flyball_pipeline.instruction import InstructionKind
from flyball_pipeline.schedule import Schedule
from flyball_server.planning.errors import PlanningError
from flyball_server.planning.model.array_dag import FloatArray, IndexArray
from flyball_server.planning.model.pipeline_model import MAX_BLOCKING_POWER_W
from flyball_wire.plans.plan import Plan

DEFAULT_SLOWDOWN_CAP = 0.1
DEFAULT_MAX_STEPS = 200
# Limit on all steps of profiling, with those that wait for a version: a multiple of `max_steps`.
MAX_WITH_WAITING = 10

# Standard errors to either side that hold 95 % of a normal distribution.
Z_95 = 1.96


class InstructionClass(NamedTuple):
    """Instructions of a stage that take the same time and energy at the same clock."""

    kind: InstructionKind
    chunk: int = 0

    def named(self, num_chunks: int) -> str:
        """`forward`, or `forward of chunk 1` where there are several."""
        return f"{self.kind} of chunk {self.chunk}" if num_chunks > 1 else str(self.kind)


@dataclass(frozen=True, kw_only=True)
class ErrorLimits:
    """Required accuracy of points, as shares of them, at 95 % confidence.

    Attributes:
        time: largest error of an instruction's time.
        energy: largest error of an instruction's energy.
    """

    time: float = 0.02
    energy: float = 0.03


@dataclass(frozen=True, kw_only=True)
class ProbeSetup:
    """Subject of profiling, and its bounds.

    Attributes:
        clocks_mhz: per stage, the clocks that may be probed, MHz, falling, at least two.
        num_ranks: per stage, how many ranks its energies are the sum of.
        slowdown_cap: possible slowdown of an iteration against the highest clocks, as a
            share, above 0 and at most 1.
        blocking_power_w: per stage, W of one of its GPUs while it waits; None: estimated.
        max_steps: limit on the steps of probing, after which it is finished or refused; steps that
            wait for a version do not count, see `MAX_WITH_WAITING`.

    Raises:
        PlanningError: a part does not fit; names its field.
    """

    schedule: Schedule
    clocks_mhz: tuple[tuple[int, ...], ...]
    num_ranks: tuple[int, ...]
    slowdown_cap: float = DEFAULT_SLOWDOWN_CAP
    blocking_power_w: tuple[float, ...] | None = None
    max_steps: int = DEFAULT_MAX_STEPS
    limits: ErrorLimits = field(default_factory=ErrorLimits)

    def __post_init__(self) -> None:
        num_stages = self.schedule.num_stages
        for name in ("clocks_mhz", "num_ranks", "blocking_power_w"):
            per_stage = getattr(self, name)
            if per_stage is not None and len(per_stage) != num_stages:
                raise PlanningError(
                    f"{len(per_stage)} entries for {num_stages} stages; give one per stage",
                    field=name,
                )
        for stage, clocks in enumerate(self.clocks_mhz):
            is_falling = all(above > below > 0 for above, below in itertools.pairwise(clocks))
            if len(clocks) < 2 or not is_falling:
                raise PlanningError(
                    f"stage {stage} needs at least two clocks, positive and falling",
                    field="clocks_mhz",
                )
        if min(self.num_ranks) < 1:
            raise PlanningError("must be at least 1 for every stage", field="num_ranks")
        if not 0 < self.slowdown_cap <= 1:
            raise PlanningError("must be above 0 and at most 1", field="slowdown_cap")
        for power_w in self.blocking_power_w or ():
            if not 0 <= power_w <= MAX_BLOCKING_POWER_W:
                raise PlanningError(
                    f"must be from 0 to {MAX_BLOCKING_POWER_W} W, not {power_w:g}",
                    field="blocking_power_w",
                )
        if self.max_steps < 1:
            raise PlanningError("must be at least 1", field="max_steps")

    def classes_of(self, stage: int) -> tuple[InstructionClass, ...]:
        """Return the stage's instruction classes, in the order of their first run."""
        return tuple(
            dict.fromkeys(
                InstructionClass(instruction.kind, instruction.chunk)
                for instruction in self.schedule.stages[stage]
            )
        )


@dataclass(frozen=True, kw_only=True)
class ProbedVersion:
    """A probe plan that was given to the ranks.

    Attributes:
        version: its number.
        first_step: from which all ranks run it; None: not named yet.
    """

    version: int
    first_step: int | None
    plan: Plan


@dataclass(frozen=True, kw_only=True, slots=True)
class InstructionTimes:
    """A stage's instructions of one class that ran at one clock in one step.

    Attributes:
        sm_clock_mhz: that was asked for; None: the driver's own choice.
        count: their number; where work differs, that of as many of the mean work.
        variance_s2: variance of single instructions about the mean, divided by count - 1; 0 of one.
    """

    kind: InstructionKind
    chunk: int
    sm_clock_mhz: int | None
    count: float
    mean_s: float
    variance_s2: float


@dataclass(frozen=True, kw_only=True, slots=True)
class StageStep:
    """One stage in one step, its ranks taken together.

    Attributes:
        version: version of the plan that it ran; None: no plan.
        iteration_time_s: time of its slowest rank, s.
        energy_j: by the counters of all its ranks, from the step's begin to its end, J; None
            where one could not be read.
        instructions: instructions of its slowest rank.
        is_clean: true if it ran as planned: no unplanned instructions, and no clock missed but for
            limits of power or heat.
        work: announced work of the step's slowest pipeline over the mean work.
    """

    stage: int
    step: int
    version: int | None
    iteration_time_s: float
    energy_j: float | None
    instructions: tuple[InstructionTimes, ...]
    is_clean: bool = True
    work: float = 1.0

    @property
    def busy_s(self) -> float:
        """Return how long instructions ran, s."""
        return math.fsum(times.count * times.mean_s for times in self.instructions)


@dataclass(frozen=True, kw_only=True)
class StagePoints:
    """Points of one stage: class after class, each in falling clocks.

    Attributes:
        classes: classes of instruction that the stage runs.
        clocks_mhz: clocks that may be probed, MHz, falling.
    """

    classes: tuple[InstructionClass, ...]
    clocks_mhz: tuple[int, ...]

    @property
    def num_points(self) -> int:
        """Number of points of all classes."""
        return len(self.classes) * len(self.clocks_mhz)

    def number(self, class_index: int, clock_index: int) -> int:
        """Return the number of a point."""
        return class_index * len(self.clocks_mhz) + clock_index

    def highest(self) -> IndexArray:
        """Return the number of each class's point at the highest clock."""
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


@dataclass(frozen=True, kw_only=True)
class StepTable:
    """Clean steps of one stage as arrays; n of them.

    Attributes:
        step: their numbers, rising; shape (n,).
        counts: instructions that ran at each point; shape (n, num_points).
        mean_s: their mean time, 0 where there were none; same shape.
        variance_s2: variance of single instructions in the step; same shape.
        idle_s: iteration time that no instruction took; shape (n,).
        energy_j: energy by the counters, NaN where unknown; shape (n,).
    """

    step: IndexArray
    counts: FloatArray
    mean_s: FloatArray
    variance_s2: FloatArray
    idle_s: FloatArray
    energy_j: FloatArray

    @classmethod
    def of_steps(cls, points: StagePoints, observed: Iterable[StageStep]) -> StepTable:
        """Return the clean steps whose instructions all ran at points."""
        steps = [
            step
            for step in sorted(observed, key=lambda step: step.step)
            if step.is_clean
            and step.instructions
            and all(points.number_of(times) is not None for times in step.instructions)
        ]
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
