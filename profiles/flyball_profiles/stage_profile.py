"""Stage profile: time and energy of each instruction of each stage at each SM clock.

A profile that exists is valid: its stages are numbered without a gap, each stage can run
forward and backward, and every number is finite, positive and of a plausible size.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

from flyball_pipeline.instruction import InstructionKind
from flyball_profiles.gpu_conditions import GpuConditions, is_known


class EnergyScope(StrEnum):
    """Scope of an energy counter.

    `gpu`: the GPU with its memory. `module`: all of its module, as of a GH200: the CPU and its
    memory too.
    """

    GPU = "gpu"
    MODULE = "module"


class ProfileError(ValueError):
    """A stage profile that cannot be used; the message names the fix.

    Attributes:
        message: fault without its place.
        line: 1-based line of the file (row of a JSON profile), if known.
        stage: stage of the faulty rows, if the fault is in one stage.
    """

    def __init__(self, message: str, *, line: int | None = None, stage: int | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.line = line
        self.stage = stage

    def located(self, source: str) -> str:
        """Return one line with the file (or other source), the line number and the message."""
        where = source if self.line is None else f"{source}:{self.line}"
        return f"{where}: {self.message}"


# Beyond these a number is a wrong unit or a broken file, and sums and quotients of such
# numbers could overflow: clocks to 100 GHz, instructions from 1 ns to 11 days.
MAX_RANK_WAITING_S = 1e12  # of a million ranks
MAX_TIME_ERROR_S = 1e6
MAX_JITTER = 1.0
_MOST_OF_OPTIONAL = (
    ("rank_waiting_s", MAX_RANK_WAITING_S),
    ("time_error_s", MAX_TIME_ERROR_S),
    ("jitter", MAX_JITTER),
)
_LIMITS = re.compile(r"[a-z_ ]{0,64}")
_BOUNDS: Mapping[str, tuple[float, float]] = MappingProxyType(
    {"frequency_mhz": (1, 1e5), "time_s": (1e-9, 1e6), "energy_j": (1e-9, 1e9)}
)


def quantity_fault(field: str, value: float) -> str | None:
    """Return the fault of a value of an operating point's field; None: it is valid.

    Args:
        field: `frequency_mhz`, `time_s` or `energy_j`.
        value: in the field's unit.
    """
    if not (math.isfinite(value) and value > 0):
        return "must be a finite positive number"
    if field == "frequency_mhz" and value != int(value):
        return "must be a whole number of MHz"
    lowest, highest = _BOUNDS[field]
    if not lowest <= value <= highest:
        return f"must be from {lowest:g} to {highest:g} (check the unit)"
    return None


@dataclass(frozen=True, kw_only=True, slots=True)
class OperatingPoint:
    """Time and energy of one instruction at one locked SM clock.

    Attributes:
        frequency_mhz: locked SM clock, MHz, 1 to 1e5.
        time_s: duration of the instruction, s, 1e-9 to 1e6; over several ranks the slowest.
        energy_j: energy of the instruction, J, 1e-9 to 1e9; over several ranks the sum.
        rank_waiting_s: time that ranks wait for the slowest rank, s; the sum over all ranks. What
            they draw meanwhile is not in `energy_j`.
        time_error_s: standard error of `time_s`, s, 0 to 1e6; 0: not known.
        jitter: standard deviation of a single run's time, as a share of `time_s`, 0 to 1; 0: not
            known.
        held_by: limit that kept the GPU below the locked clock, such as `power`; empty: it held the
            clock. All clocks above those that are held have the same time and energy.

    Raises:
        ProfileError: a value is outside its bounds.
    """

    frequency_mhz: int
    time_s: float
    energy_j: float
    rank_waiting_s: float = 0.0
    time_error_s: float = 0.0
    jitter: float = 0.0
    held_by: str = ""

    def __post_init__(self) -> None:
        for name, most in _MOST_OF_OPTIONAL:
            value = getattr(self, name)
            if not 0 <= value <= most:
                raise ProfileError(f"{name} must be from 0 to {most:g}, not {value}")
        for name in _BOUNDS:
            value = getattr(self, name)
            fault = quantity_fault(name, value)
            if fault is not None:
                raise ProfileError(f"{name} {fault}, not {value}")
        if not _LIMITS.fullmatch(self.held_by):
            raise ProfileError("held_by must be at most 64 letters, such as power, or empty")


@dataclass(frozen=True, kw_only=True)
class StageProfile:
    """Measured operating points of every (stage, instruction kind) of a pipeline.

    Attributes:
        points: (stage, kind) -> operating points in falling frequency, at least one, all
            frequencies distinct. Stages are 0 .. num_stages - 1.
        num_ranks_per_stage: per stage, the number of ranks (data- and tensor-parallel) whose
            energy the points hold (`r_s` of the energy formula); 1 each in a profile of one
            pipeline.
        chunks: the profile of each model chunk, where stages hold several (interleaving) and
            they were measured one by one; else empty. `points` are always of the whole stage.
        energy_scope: what the energies count; None: not recorded.
        conditions: conditions that the GPUs of each stage were measured under; None: of this stage
            not recorded; empty: of none.

    Raises:
        ProfileError: a stage number is skipped, a stage without `step` has neither `backward` nor
            both of `backward_input` and `backward_weight`, or has no `forward`, a kind has no
            frequency, or a chunk is of other stages or ranks.
    """

    points: Mapping[tuple[int, InstructionKind], tuple[OperatingPoint, ...]]
    num_ranks_per_stage: tuple[int, ...]
    chunks: tuple[StageProfile, ...] = ()
    energy_scope: EnergyScope | None = None
    conditions: tuple[GpuConditions | None, ...] = ()

    def __post_init__(self) -> None:
        ordered = {
            key: tuple(sorted(self.points[key], key=lambda point: -point.frequency_mhz))
            for key in sorted(self.points)
        }
        object.__setattr__(self, "points", MappingProxyType(ordered))
        self._check_stages()
        if len(self.conditions) not in {0, self.num_stages}:
            raise ProfileError(f"conditions must be those of {self.num_stages} stages, or none")
        if not is_known(self.conditions):
            object.__setattr__(self, "conditions", ())
        for (stage, kind), points in ordered.items():
            _check_frequencies(stage, kind, points)
        for chunk, profile in enumerate(self.chunks):
            if profile.num_ranks_per_stage != self.num_ranks_per_stage or profile.chunks:
                raise ProfileError(f"chunk {chunk} has different stages or ranks")

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the mapping instead of its view, which cannot be pickled."""
        parts = (dict(self.points), self.num_ranks_per_stage, self.chunks)
        return _profile_of, (*parts, self.energy_scope, self.conditions)

    def _check_stages(self) -> None:
        stages = sorted({stage for stage, _ in self.points})
        if not stages:
            raise ProfileError("the profile has no rows; give at least forward and backward")
        for expected, stage in enumerate(stages):
            if stage != expected:
                raise ProfileError(
                    f"stage {expected} is missing; stages count from 0 without gaps", stage=stage
                )
            self._check_kinds(stage)
        if len(self.num_ranks_per_stage) != len(stages):
            raise ProfileError(
                f"num_ranks_per_stage has {len(self.num_ranks_per_stage)} entries"
                f" for {len(stages)} stages"
            )
        if any(num_ranks < 1 for num_ranks in self.num_ranks_per_stage):
            raise ProfileError("num_ranks_per_stage must be at least 1 for every stage")

    def _check_kinds(self, stage: int) -> None:
        if (stage, InstructionKind.STEP) in self.points:
            return
        if (stage, InstructionKind.FORWARD) not in self.points:
            raise ProfileError(f"stage {stage} has no forward rows", stage=stage)
        whole = (stage, InstructionKind.BACKWARD) in self.points
        split = (stage, InstructionKind.BACKWARD_INPUT) in self.points and (
            stage,
            InstructionKind.BACKWARD_WEIGHT,
        ) in self.points
        if not (whole or split):
            raise ProfileError(
                f"stage {stage} has no backward rows, nor both backward_input and backward_weight",
                stage=stage,
            )

    @functools.cached_property
    def kinds(self) -> tuple[frozenset[InstructionKind], ...]:
        """Per stage, the kinds that it runs as a whole."""
        kinds: list[set[InstructionKind]] = [set() for _ in self.num_ranks_per_stage]
        for stage, kind in self.points:
            kinds[stage].add(kind)
        return tuple(map(frozenset, kinds))

    @property
    def num_stages(self) -> int:
        """Number of pipeline stages."""
        return len(self.num_ranks_per_stage)

    @property
    def highest_mhz(self) -> int:
        """Highest clock of any instruction in MHz."""
        return max(points[0].frequency_mhz for points in self.points.values())

    def by_chunk(self, num_chunks: int) -> tuple[StageProfile, ...]:
        """Return the profile of each of a stage's model chunks; of one chunk, the whole stage.

        Raises:
            ProfileError: the profile was measured with another number of chunks.
        """
        if num_chunks == 1:
            return (self,)
        if num_chunks != len(self.chunks):
            measured = f"{len(self.chunks)} chunks" if self.chunks else "no chunks"
            raise ProfileError(
                f"the profile has {measured}, and {num_chunks} are run; measure each chunk and"
                " give its number in the column chunk"
            )
        return self.chunks

    def at(self, stage: int, kind: InstructionKind, frequency_mhz: int) -> OperatingPoint:
        """Return the measured point at exactly this clock.

        Raises:
            ProfileError: the profile has no such stage, kind or frequency.
        """
        for point in self.points.get((stage, kind), ()):
            if point.frequency_mhz == frequency_mhz:
                return point
        raise ProfileError(f"no {kind} of stage {stage} at {frequency_mhz} MHz in the profile")

    def select_stages(self, stages: tuple[int, ...]) -> StageProfile:
        """Return the profile of a shorter pipeline of these stages, renumbered from 0.

        Raises:
            ProfileError: a stage is not in the profile, or none is given.
        """
        for stage in stages:
            if not 0 <= stage < self.num_stages:
                raise ProfileError(f"no stage {stage}; the profile has 0 to {self.num_stages - 1}")
        return StageProfile(
            points={
                (new, kind): points
                for new, old in enumerate(stages)
                for (stage, kind), points in self.points.items()
                if stage == old
            },
            num_ranks_per_stage=tuple(self.num_ranks_per_stage[old] for old in stages),
            chunks=tuple(chunk.select_stages(stages) for chunk in self.chunks),
            energy_scope=self.energy_scope,
            conditions=tuple(self.conditions[old] for old in stages) if self.conditions else (),
        )


def _check_frequencies(
    stage: int, kind: InstructionKind, points: tuple[OperatingPoint, ...]
) -> None:
    if len({point.frequency_mhz for point in points}) != len(points):
        raise ProfileError(f"stage {stage} {kind} has the same frequency twice", stage=stage)
    if not points:
        raise ProfileError(f"stage {stage} {kind} has no frequency", stage=stage)


def _profile_of(
    points: dict[tuple[int, InstructionKind], tuple[OperatingPoint, ...]],
    num_ranks_per_stage: tuple[int, ...],
    chunks: tuple[StageProfile, ...],
    energy_scope: EnergyScope | None,
    conditions: tuple[GpuConditions | None, ...],
) -> StageProfile:
    return StageProfile(
        points=points,
        num_ranks_per_stage=num_ranks_per_stage,
        chunks=chunks,
        energy_scope=energy_scope,
        conditions=conditions,
    )
