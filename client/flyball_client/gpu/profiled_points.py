"""The operating points of one rank of a profiled stage, by the clock that is in force."""

from __future__ import annotations

from collections.abc import Sequence

from flyball_profiles.stage_profile import InstructionKind, OperatingPoint, StageProfile


def profiled_clocks_mhz(chunks: Sequence[StageProfile], stage: int) -> tuple[int, ...]:
    """Every frequency that any instruction of the stage was profiled at, MHz, falling."""
    frequencies = {
        point.frequency_mhz
        for chunk in chunks
        for (of_stage, _), points in chunk.points.items()
        if of_stage == stage
        for point in points
    }
    return tuple(sorted(frequencies, reverse=True))


def points_by_clock(
    chunks: Sequence[StageProfile], stage: int, clocks_mhz: tuple[int, ...]
) -> dict[tuple[str, int, int], OperatingPoint]:
    """By kind, chunk and clock, MHz: the point there, else the next above, else the highest.

    The energies are one rank's share of the stage's.
    """
    return {
        (kind.value, chunk, clock_mhz): _one_rank(profile, stage, kind, clock_mhz)
        for chunk, profile in enumerate(chunks)
        for (of_stage, kind) in profile.points
        if of_stage == stage
        for clock_mhz in clocks_mhz
    }


def _one_rank(
    profile: StageProfile, stage: int, kind: InstructionKind, clock_mhz: int
) -> OperatingPoint:
    falling = profile.points[stage, kind]
    at_or_above = [point for point in falling if point.frequency_mhz >= clock_mhz]
    point = at_or_above[-1] if at_or_above else falling[0]
    return OperatingPoint(
        frequency_mhz=point.frequency_mhz,
        time_s=point.time_s,
        energy_j=point.energy_j / profile.num_ranks_per_stage[stage],
    )
