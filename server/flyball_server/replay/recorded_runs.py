"""Recorded runs: times and energies of one workload's iterations under several frequency plans.

The types have the fields of the document that docs/evaluation.md describes, and its schema,
docs/recorded-runs.schema.json.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from flyball_pipeline.errors import PipelineError
from flyball_pipeline.instruction import InstructionKind, equal_stages
from flyball_pipeline.schedule import Schedule
from flyball_pipeline.schedules.inputs import ScheduleInputs
from flyball_pipeline.schedules.table import SCHEDULES, make_schedule
from flyball_profiles.stage_profile import quantity_fault

KINDS = (InstructionKind.FORWARD, InstructionKind.BACKWARD)
# A longer name would fill the line of an error.
MAX_NAME = 200
MAX_ENERGY_J = 1e12

PointKey = tuple[int, InstructionKind, int]
"""Stage, kind, and clock in MHz."""


class RecordingError(ValueError):
    """Recorded runs that cannot be used; the message is one line."""


def check_quantity(field: str, quantity: str, value: float) -> None:
    """Check a clock in MHz, a time in s or an energy in J.

    Args:
        field: name of the value in errors.
        quantity: `frequency_mhz`, `time_s` or `energy_j`.
        value: in the quantity's unit.

    Raises:
        RecordingError: the value is not positive, or so large or small that its unit is wrong.
    """
    if quantity == "energy_j":
        fault = None if 0 < value <= MAX_ENERGY_J else f"must be above 0, at most {MAX_ENERGY_J:g}"
    else:
        # A larger whole number is converted to no float.
        fault = quantity_fault(quantity, min(value, 10**9))
    if fault is not None:
        raise RecordingError(f"{field}: {fault}, not {str(value)[:40]}")


@dataclass(frozen=True, kw_only=True)
class RecordedTimes:
    """Instructions of one stage and kind at one clock, as measured in one run.

    Attributes:
        frequency_mhz: requested clock, MHz.
        samples: number of measured instructions.
        time_s_median, time_s_mean: time of an instruction, s; one of the two.
        source: `run`, or `profile` where the time is the stage profile's.

    Raises:
        RecordingError: a value cannot be right.
    """

    stage: int
    instruction: InstructionKind
    frequency_mhz: int
    samples: int
    time_s_median: float | None = None
    time_s_mean: float | None = None
    source: str = "run"

    def __post_init__(self) -> None:
        if self.instruction not in KINDS:
            raise RecordingError(f"instruction: must be {' or '.join(KINDS)}")
        check_quantity("frequency_mhz", "frequency_mhz", self.frequency_mhz)
        if self.samples < 1:
            raise RecordingError(f"samples: must be at least 1, not {self.samples}")
        if (self.time_s_median is None) is (self.time_s_mean is None):
            raise RecordingError("give time_s_median or time_s_mean")
        check_quantity(
            "time_s_median" if self.time_s_mean is None else "time_s_mean", "time_s", self.time_s
        )
        if self.source not in ("run", "profile"):
            raise RecordingError("source: must be run or profile")

    @property
    def time_s(self) -> float:
        """Time of an instruction, s."""
        return (self.time_s_mean if self.time_s_median is None else self.time_s_median) or 0.0

    @property
    def key(self) -> PointKey:
        """Stage, kind and clock."""
        return self.stage, self.instruction, self.frequency_mhz


@dataclass(frozen=True, kw_only=True)
class IterationTotals:
    """Repeated iterations under one plan.

    Attributes:
        count: number of iterations, at least 1.
        time_s_mean: mean time, s.
        time_s_deviation: standard deviation of a single iteration, s; 0 for one iteration.

    Raises:
        RecordingError: a value cannot be right.
    """

    count: int
    time_s_mean: float
    time_s_deviation: float

    def __post_init__(self) -> None:
        if self.count < 1:
            raise RecordingError(f"count: must be at least 1, not {self.count}")
        check_quantity("time_s_mean", "time_s", self.time_s_mean)
        if self.time_s_deviation != 0:
            check_quantity("time_s_deviation", "time_s", self.time_s_deviation)

    @property
    def standard_error_s(self) -> float:
        """Standard error of the mean, s."""
        return self.time_s_deviation / math.sqrt(self.count)


@dataclass(frozen=True, kw_only=True)
class RecordedRun:
    """Measurements of one workload under one plan.

    Attributes:
        clocks_mhz: per stage, clock of each instruction in the order of execution, MHz.
        energy_j_per_stage: mean energy of all the stage's ranks in one iteration, J.
        instruction_times: times by stage, kind and clock.
        iteration_time_s: time of each repeated iteration, s; None: `iterations` has the totals.
        schedule: the recording's, or None.

    Raises:
        RecordingError: a value cannot be right.
    """

    name: str
    clocks_mhz: tuple[tuple[int, ...], ...]
    energy_j_per_stage: tuple[float, ...]
    instruction_times: tuple[RecordedTimes, ...]
    iteration_time_s: tuple[float, ...] | None = None
    iterations: IterationTotals | None = None
    schedule: str | None = None

    def __post_init__(self) -> None:
        if not self.name or len(self.name) > MAX_NAME or not self.name.isprintable():
            raise RecordingError(f"name: must be 1 to {MAX_NAME} printable characters")
        if bool(self.iteration_time_s) is (self.iterations is not None):
            raise RecordingError("give iteration_time_s, of at least one iteration, or iterations")
        for stage, clocks in enumerate(self.clocks_mhz):
            for mhz in set(clocks):
                check_quantity(f"clocks_mhz of stage {stage}", "frequency_mhz", mhz)
        for place, time_s in enumerate(self.iteration_time_s or ()):
            check_quantity(f"iteration_time_s[{place}]", "time_s", time_s)
        for stage, energy_j in enumerate(self.energy_j_per_stage):
            check_quantity(f"energy_j_per_stage[{stage}]", "energy_j", energy_j)

    @functools.cached_property
    def totals(self) -> IterationTotals:
        """Totals of the iterations."""
        times_s = self.iteration_time_s
        if times_s is None:
            assert self.iterations is not None  # noqa: S101 - checked when it was made
            return self.iterations
        return IterationTotals(
            count=len(times_s),
            time_s_mean=fmean(times_s),
            time_s_deviation=stdev(times_s) if len(times_s) > 1 else 0.0,
        )

    @property
    def time_s(self) -> float:
        """Mean time of an iteration, s."""
        return self.totals.time_s_mean

    @property
    def energy_j(self) -> float:
        """Mean energy of one iteration over all stages, J."""
        return math.fsum(self.energy_j_per_stage)


@dataclass(frozen=True, kw_only=True)
class Recording:
    """Runs of one workload.

    Attributes:
        pp: number of stages.
        dp, tp: data- and tensor-parallel ranks that each stage's energies are the sum of.
        schedule: order that all runs have.
        runs: at least two; the others are compared with the first.
        model, gpu, partition: names; empty where unknown.
        emulated: the GPUs were emulated, so no figure is a real GPU's.

    Raises:
        RecordingError: runs do not fit the shape, or a value cannot be right.
    """

    pp: int
    num_microbatches: int
    schedule: str
    runs: tuple[RecordedRun, ...]
    model: str = ""
    gpu: str = ""
    partition: str = ""
    dp: int = 1
    tp: int = 1
    microbatch_size: int | None = None
    emulated: bool = False

    def __post_init__(self) -> None:
        for field in ("pp", "num_microbatches", "dp", "tp", "microbatch_size"):
            count: int | None = getattr(self, field)
            if count is not None and count < 1:
                raise RecordingError(f"{field}: must be at least 1, not {count}")
        if len(self.runs) < 2:
            raise RecordingError("runs: must hold at least two runs")
        twice = [
            name for name, count in Counter(run.name for run in self.runs).items() if count > 1
        ]
        if twice:
            raise RecordingError(f"run {twice[0]}: two runs have this name; names must differ")
        # Before anything as large as the shape says is built.
        for run in self.runs:
            self._check_lengths(run)
        for run in self.runs:
            _check_times(run, planned_points(self.order, run.clocks_mhz))

    def _check_lengths(self, run: RecordedRun) -> None:
        if run.schedule not in (None, self.schedule):
            raise RecordingError(
                f"run {run.name}: schedule: is {run.schedule!r:.{MAX_NAME}}, the recording's"
                f" {self.schedule!r:.{MAX_NAME}}; replay one schedule at a time"
            )
        for field in ("clocks_mhz", "energy_j_per_stage"):
            num_stages = len(getattr(run, field))
            if num_stages != self.pp:
                raise RecordingError(
                    f"run {run.name}: {field}: has {num_stages} stages, pp is {self.pp}"
                )
        num_instructions = 2 * self.num_microbatches
        for stage, clocks in enumerate(run.clocks_mhz):
            if len(clocks) != num_instructions:
                raise RecordingError(
                    f"run {run.name}, stage {stage}: clocks_mhz: has {len(clocks)} clocks;"
                    f" {self.schedule:.{MAX_NAME}} of {self.num_microbatches} microbatches runs"
                    f" {num_instructions} instructions"
                )

    @functools.cached_property
    def order(self) -> Schedule:
        """Order of the instructions."""
        return schedule_of(self.schedule, self.pp, self.num_microbatches)

    @property
    def title(self) -> str:
        """Short description of the workload."""
        return (
            f"{self.model[:MAX_NAME] or 'unnamed model'} on"
            f" {self.gpu[:MAX_NAME] or 'unnamed GPUs'}, {self.pp} stages x"
            f" {self.num_microbatches} microbatches, {self.schedule}"
        )


def _check_times(run: RecordedRun, planned: Counter[PointKey]) -> None:
    """Check that each stage, kind and clock of the plan has a time, and no other has."""
    times = Counter(times.key for times in run.instruction_times)
    for key, count in times.items():
        stage, kind, mhz = key
        if key not in planned or count > 1:
            fault = "is there twice" if key in planned else "is not in the run's plan"
            raise RecordingError(
                f"run {run.name}, stage {stage}: instruction_times: {kind} at {mhz} MHz {fault}"
            )
    missing = next((key for key in planned if key not in times), None)
    if missing is not None:
        stage, kind, mhz = missing
        raise RecordingError(
            f"run {run.name}, stage {stage}: instruction_times: has no {kind} at {mhz} MHz, which"
            " the run's plan runs"
        )


def schedule_of(name: str, num_stages: int, num_microbatches: int) -> Schedule:
    """Return the order called `name`.

    Raises:
        RecordingError: the name is none that can be replayed, or the order has no such shape.
    """
    replayed = [known for known, entry in SCHEDULES.items() if entry.is_replayed]
    if name not in replayed:
        known = "known, but not replayed" if name in SCHEDULES else "unknown"
        raise RecordingError(
            f"schedule: {name[:MAX_NAME]!r} is {known}; replayed are {', '.join(replayed)}"
        )
    try:
        shape = equal_stages(num_stages, num_microbatches)
        return make_schedule(name, ScheduleInputs(shape=shape))
    except PipelineError as error:
        raise RecordingError(str(error)) from None


def planned_points(schedule: Schedule, clocks_mhz: Sequence[Sequence[int]]) -> Counter[PointKey]:
    """Count a plan's instructions by stage, kind and clock."""
    return Counter(
        (stage, instruction.kind, mhz)
        for stage, of_stage in enumerate(zip(schedule.stages, clocks_mhz, strict=True))
        for instruction, mhz in zip(*of_stage, strict=True)
    )
