"""The valley frequency of a stage: where its energy, all kinds together, is least."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import TypeVar

from flyball_pipeline.instruction import InstructionKind
from flyball_profiles.stage_profile import OperatingPoint, StageProfile

KeyT = TypeVar("KeyT", bound=Hashable)
"""Key of an instruction within a stage: its kind, or kind and chunk."""


def stage_least_energy(
    profile: StageProfile, stage: int, kinds: Iterable[InstructionKind]
) -> Mapping[InstructionKind, OperatingPoint]:
    """Return the least-energy operating point of each of these kinds of a stage.

    Args:
        profile: the pipeline's profile.
        stage: from 0.
        kinds: kinds that the stage runs; a profile may hold more, as backward whole and split.
    """
    return least_energy_points({kind: profile.points[stage, kind] for kind in kinds})


def least_energy_points(
    points_by_kind: Mapping[KeyT, Sequence[OperatingPoint]],
) -> Mapping[KeyT, OperatingPoint]:
    """Return the operating point of each kind at the stage's valley frequency.

    The valley is the profiled frequency where the raw energy `E_forward + E_backward` (all
    kinds given that have a choice) is least; of equals the highest. Where these share no profiled
    frequency, each kind has its own valley.
    """
    fixed = {kind: points[0] for kind, points in points_by_kind.items() if len(points) == 1}
    points_by_kind = {kind: points for kind, points in points_by_kind.items() if kind not in fixed}
    if not points_by_kind:
        return fixed
    by_clock = {
        kind: {point.frequency_mhz: point for point in points}
        for kind, points in points_by_kind.items()
    }
    shared_mhz = [
        mhz
        for mhz in next(iter(by_clock.values()))
        if all(mhz in points for points in by_clock.values())
    ]
    if not shared_mhz:
        return {kind: _least_energy(points) for kind, points in points_by_kind.items()} | fixed

    def total_energy_j(mhz: int) -> float:
        return sum(points[mhz].energy_j for points in by_clock.values())

    least_energy_mhz = min(shared_mhz, key=lambda mhz: (total_energy_j(mhz), -mhz))
    return {kind: points[least_energy_mhz] for kind, points in by_clock.items()} | fixed


def _least_energy(points: Iterable[OperatingPoint]) -> OperatingPoint:
    return min(points, key=lambda point: (point.energy_j, -point.frequency_mhz))
