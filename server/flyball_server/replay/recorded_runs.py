"""Recorded runs: what iterations of one workload took under several frequency plans.

`recording_document` reads and writes them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median, stdev

from flyball_profiles.stage_profile import InstructionKind, OperatingPoint, StageProfile
from flyball_server.planning.errors import PlanningError
from flyball_server.planning.schedules import SCHEDULES, make_schedule
from flyball_server.planning.schedules._base import Schedule, ScheduleContext

KINDS = (InstructionKind.FORWARD, InstructionKind.BACKWARD)
# Orders of one forward and one backward per microbatch and stage.
REPLAYED_SCHEDULES = ("1f1b", "gpipe", "envpipe")
# A longer name would fill the line of an error.
MAX_NAME = 200


class RecordingError(ValueError):
    """Recorded runs that cannot be used; the message is one line.

    Args:
        message: what is wrong, and what would be accepted.
        run: name or place of the faulty run; None: the fault is in none.
        stage: stage of the fault; None: it is in none.
    """

    def __init__(self, message: str, *, run: str | None = None, stage: int | None = None) -> None:
        of_run = [] if run is None else [f"run {run}"]
        of_stage = [] if stage is None else [f"stage {stage}"]
        where = ", ".join([*of_run, *of_stage])
        super().__init__(f"{where}: {message}" if where else message)


@dataclass(frozen=True, kw_only=True)
class Iterations:
    """Repeated iterations under one plan.

    Attributes:
        num_iterations: at least 1.
        mean_s: their mean time, s.
        deviation_s: standard deviation of a single one, s; 0 of one.
        times_s: each one's, s; empty where only the totals were kept.
    """

    num_iterations: int
    mean_s: float
    deviation_s: float
    times_s: tuple[float, ...] = ()

    @classmethod
    def of_times(cls, times_s: Sequence[float]) -> Iterations:
        """Return the totals of measured iterations."""
        return cls(
            num_iterations=len(times_s),
            mean_s=fmean(times_s),
            deviation_s=stdev(times_s) if len(times_s) > 1 else 0.0,
            times_s=tuple(times_s),
        )

    @property
    def standard_error_s(self) -> float:
        """Standard error of the mean, s."""
        return self.deviation_s / math.sqrt(self.num_iterations)

    @property
    def scatter(self) -> float:
        """Standard deviation of a single one, as a share of the mean."""
        return self.deviation_s / self.mean_s

    @property
    def outlier(self) -> tuple[float, float] | None:
        """The longest and the median, s; None where the single times were not kept."""
        return (max(self.times_s), median(self.times_s)) if self.times_s else None


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordedTimes:
    """Instructions of one stage and kind at one clock, as one run measured them.

    Attributes:
        frequency_mhz: that was asked for, MHz.
        time_s: of one of them, s: their median, or their mean where that is what was kept.
        is_median: which of the two.
        num_samples: how many were measured.
        is_of_profile: it is the workload's stage profile's, not measured in the run.
    """

    stage: int
    kind: InstructionKind
    frequency_mhz: int
    time_s: float
    num_samples: int
    is_median: bool = True
    is_of_profile: bool = False


@dataclass(frozen=True, kw_only=True)
class RecordedRun:
    """Measurements of one workload under one plan.

    Attributes:
        clocks_mhz: per stage, of each instruction in the order of execution, MHz.
        energy_j_per_stage: of all the stage's ranks in one iteration, mean, J.
        instruction_times: by stage, kind and clock.
    """

    name: str
    clocks_mhz: tuple[tuple[int, ...], ...]
    iterations: Iterations
    energy_j_per_stage: tuple[float, ...]
    instruction_times: tuple[RecordedTimes, ...]

    @property
    def energy_j(self) -> float:
        """Energy of one iteration over all stages, mean, J."""
        return math.fsum(self.energy_j_per_stage)


@dataclass(frozen=True, kw_only=True)
class Recording:
    """One workload's runs.

    Attributes:
        model, gpu, partition: as they are called; empty where unknown.
        dp, tp: data- and tensor-parallel ranks that each stage's energies are the sum of.
        schedule: order that all runs have.
        runs: in the order in which they stand in the file; the first is compared against.
        emulated: the GPUs were emulated, so no figure is a real GPU's.
    """

    model: str
    gpu: str
    partition: str
    dp: int
    tp: int
    microbatch_size: int | None
    schedule: Schedule
    runs: tuple[RecordedRun, ...]
    emulated: bool = False

    @property
    def num_stages(self) -> int:
        """Number of stages."""
        return self.schedule.num_stages

    @property
    def title(self) -> str:
        """The workload in a few words."""
        return (
            f"{self.model or 'unnamed model'} on {self.gpu or 'unnamed GPUs'}, {self.num_stages}"
            f" stages x {self.schedule.num_microbatches} microbatches, {self.schedule.name}"
        )

    @property
    def origin(self) -> str:
        """Name of measured figures in texts and plots."""
        return "measured (emulated GPUs)" if self.emulated else "measured"


def schedule_of(name: str, num_stages: int, num_microbatches: int) -> Schedule:
    """Return the order called `name`, one of `REPLAYED_SCHEDULES`.

    Raises:
        RecordingError: it is none of them, or has no such shape.
    """
    if name not in REPLAYED_SCHEDULES:
        known = "known, but not replayed" if name in SCHEDULES else "unknown"
        raise RecordingError(
            f"schedule: {name[:MAX_NAME]!r} is {known}; replayed are"
            f" {', '.join(REPLAYED_SCHEDULES)}"
        )
    # An order depends on the number of stages alone.
    point = OperatingPoint(frequency_mhz=1, time_s=1.0, energy_j=1.0)
    shape = StageProfile(
        points={(stage, kind): (point,) for stage in range(num_stages) for kind in KINDS},
        num_ranks_per_stage=(1,) * num_stages,
    )
    try:
        return make_schedule(
            name, ScheduleContext(profile=shape, num_microbatches=num_microbatches)
        )
    except PlanningError as error:
        raise RecordingError(str(error)) from None


def planned_points(
    schedule: Schedule, clocks_mhz: Sequence[Sequence[int]]
) -> dict[tuple[int, InstructionKind, int], int]:
    """Count a plan's instructions at each stage, kind and clock."""
    found: dict[tuple[int, InstructionKind, int], int] = {}
    for stage, (order, clocks) in enumerate(zip(schedule.stages, clocks_mhz, strict=True)):
        for instruction, clock in zip(order, clocks, strict=True):
            key = (stage, instruction.kind, clock)
            found[key] = found.get(key, 0) + 1
    return found
