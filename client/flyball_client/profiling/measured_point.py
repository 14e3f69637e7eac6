"""One point of a measured profile: an instruction at a locked clock, with its errors."""

from __future__ import annotations

from dataclasses import dataclass

from flyball_client.governor.clock_controller import TOLERANCE_MHZ
from flyball_client.gpu._base import ClockLimit
from flyball_client.profiling.counter_window import WindowEstimate
from flyball_profiles.stage_profile import InstructionKind


@dataclass(frozen=True, kw_only=True)
class MeasuredPoint:
    """Time and energy of one instruction at one locked clock.

    Attributes:
        kind: of the instruction.
        frequency_mhz: the clock that was locked, MHz.
        time_s: mean duration, s.
        time_error_s: its standard error, s.
        energy_j: mean energy, J.
        energy_error_j: its standard error, J.
        num_repetitions: that the means are over.
        sm_clock_mhz: mean of the clocks read back meanwhile, MHz.
        held_by: what held the clock below the lock, as `power`; `lost` where it ran above the
            lock, which somebody else undid; None: it ran at the lock.
        is_settled: whether times and power had stopped drifting before.
    """

    kind: InstructionKind
    frequency_mhz: int
    time_s: float
    time_error_s: float
    energy_j: float
    energy_error_j: float
    num_repetitions: int
    sm_clock_mhz: int
    held_by: str | None
    is_settled: bool

    @property
    def relative_error(self) -> float:
        """The larger one of both relative standard errors."""
        return max(self.time_error_s / self.time_s, self.energy_error_j / self.energy_j)


def point_of(
    kind: InstructionKind, frequency_mhz: int, found: WindowEstimate, *, is_settled: bool
) -> MeasuredPoint:
    """The point that a window measured; held where its mean clock was not the lock."""
    return MeasuredPoint(
        kind=kind,
        frequency_mhz=frequency_mhz,
        time_s=found.time_s,
        time_error_s=found.time_error_s,
        energy_j=found.energy_j,
        energy_error_j=found.energy_error_j,
        num_repetitions=found.num_repetitions,
        sm_clock_mhz=found.sm_clock_mhz,
        held_by=_held_by(frequency_mhz, found),
        is_settled=is_settled,
    )


def _held_by(frequency_mhz: int, found: WindowEstimate) -> str | None:
    if found.sm_clock_mhz > frequency_mhz + TOLERANCE_MHZ:
        return "lost"
    floor_mhz = frequency_mhz - TOLERANCE_MHZ
    if found.sm_clock_mhz >= floor_mhz:
        return None
    limits = found.limits_below(floor_mhz)
    return " ".join(str(limit.name).lower() for limit in ClockLimit if limit & limits) or "unknown"
