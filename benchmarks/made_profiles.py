"""Stage profiles made from others: scaled, tiled to more stages, divided into parts."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

from flyball_pipeline.instruction import InstructionKind
from flyball_profiles.stage_profile import OperatingPoint, StageProfile

# Standard deviation of a tiled stage's factors; they stay within twice that.
SPREAD = 0.02
# Parts of a whole backward: the gradient of the input and that of the weights are as many
# operations.
INPUT_SHARE = 0.5
ASSUMPTION = (
    "chunks of equal parts, backward in two halves, recomputation as long as a forward:"
    " derived, not measured"
)
Points = tuple[OperatingPoint, ...]


def scaled(
    profile: StageProfile, factors: Callable[[int, InstructionKind, int], tuple[float, float]]
) -> StageProfile:
    """Return the profile with other times and energies.

    Args:
        profile: to change.
        factors: of time and of energy, by stage, kind and clock in MHz.
    """
    return replace(
        profile,
        points={
            (stage, kind): tuple(
                _times(point, *factors(stage, kind, point.frequency_mhz)) for point in points
            )
            for (stage, kind), points in profile.points.items()
        },
    )


def tile_profile(profile: StageProfile, num_stages: int, seed: int) -> StageProfile:
    """Return a long pipeline: stage 0 again and again, and the last stage at the end.

    Every stage's times and energies have factors of their own, the same at all its clocks: GPUs
    and layers differ, and a pipeline without differences has little to plan.

    Args:
        profile: of at least two stages.
        num_stages: of the long pipeline, at least 2.
        seed: of the factors; the same seed gives the same profile.
    """
    chance = random.Random(seed)
    points: dict[tuple[int, InstructionKind], Points] = {}
    for stage in range(num_stages):
        source = profile.num_stages - 1 if stage == num_stages - 1 else 0
        time_factor, energy_factor = _factor(chance), _factor(chance)
        for kind in InstructionKind:
            if (source, kind) in profile.points:
                points[stage, kind] = tuple(
                    _times(point, time_factor, energy_factor)
                    for point in profile.points[source, kind]
                )
    return StageProfile(points=points, num_ranks_per_stage=(1,) * num_stages)


def derive_parts(profile: StageProfile, num_chunks: int) -> StageProfile:
    """Return the profile with every kind of instruction, and with equal chunks (1: no chunks).

    Derived, not measured: good for the speed of planning, and for what an order would bring if
    parts were as even as this. Every benchmark that uses it prints `ASSUMPTION`.
    """
    whole = replace(profile, points=_parts(profile, 1.0))
    if num_chunks == 1:
        return whole
    chunk = replace(profile, points=_parts(profile, 1 / num_chunks))
    return replace(whole, chunks=(chunk,) * num_chunks)


def _parts(profile: StageProfile, share: float) -> dict[tuple[int, InstructionKind], Points]:
    points: dict[tuple[int, InstructionKind], Points] = {}
    for stage in range(profile.num_stages):
        forward = profile.points[stage, InstructionKind.FORWARD]
        backward = profile.points[stage, InstructionKind.BACKWARD]
        for kind, source, part in (
            (InstructionKind.FORWARD, forward, share),
            (InstructionKind.RECOMPUTE, forward, share),
            (InstructionKind.BACKWARD, backward, share),
            (InstructionKind.BACKWARD_INPUT, backward, INPUT_SHARE * share),
            (InstructionKind.BACKWARD_WEIGHT, backward, (1 - INPUT_SHARE) * share),
        ):
            points[stage, kind] = tuple(_times(point, part, part) for point in source)
    return points


def _times(point: OperatingPoint, time_factor: float, energy_factor: float) -> OperatingPoint:
    return replace(
        point, time_s=point.time_s * time_factor, energy_j=point.energy_j * energy_factor
    )


def _factor(chance: random.Random) -> float:
    return 1 + max(-2 * SPREAD, min(2 * SPREAD, chance.gauss(0, SPREAD)))
