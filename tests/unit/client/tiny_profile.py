"""A stage profile small enough to reckon with by hand, and a clock that tests move."""

from __future__ import annotations

from collections.abc import Mapping

from flyball_pipeline.instruction import InstructionKind
from flyball_profiles.stage_profile import OperatingPoint, StageProfile


def point(frequency_mhz: int, time_s: float, energy_j: float) -> OperatingPoint:
    """One operating point."""
    return OperatingPoint(frequency_mhz=frequency_mhz, time_s=time_s, energy_j=energy_j)


def tiny_profile(*, num_ranks: int = 1) -> StageProfile:
    """One stage; its forward has no point at 1200 MHz, its backward none at 900 MHz."""
    return StageProfile(
        points={
            (0, InstructionKind.FORWARD): (point(1400, 1.0, 300.0), point(900, 2.0, 200.0)),
            (0, InstructionKind.BACKWARD): (point(1400, 2.0, 600.0), point(1200, 3.0, 450.0)),
        },
        num_ranks_per_stage=(num_ranks,),
    )


def one_stage(
    forward: Mapping[int, tuple[float, float]], *, backward_factor: int = 1
) -> StageProfile:
    """One stage of time in s and energy in J by MHz; its backward takes a multiple of both."""
    factors = {InstructionKind.FORWARD: 1, InstructionKind.BACKWARD: backward_factor}
    return StageProfile(
        points={
            (0, kind): tuple(
                point(mhz, factor * time_s, factor * energy_j)
                for mhz, (time_s, energy_j) in forward.items()
            )
            for kind, factor in factors.items()
        },
        num_ranks_per_stage=(1,),
    )


class HandClock:
    """An EmulationClock that stands still until it is moved or slept on."""

    def __init__(self) -> None:
        self.moment_s = 1000.0

    def now_s(self) -> float:
        return self.moment_s

    def sleep_until(self, deadline_s: float) -> None:
        self.moment_s = max(self.moment_s, deadline_s)

    def move(self, seconds: float) -> None:
        self.moment_s += seconds
