"""A long pipeline from a short one's stage profile, every stage a little different."""

from __future__ import annotations

import random

from flyball_profiles.stage_profile import InstructionKind, OperatingPoint, StageProfile

# Standard deviation of a stage's factors; they stay within twice that.
TIME_SPREAD, ENERGY_SPREAD = 0.02, 0.02


def tile_profile(profile: StageProfile, num_stages: int, seed: int) -> StageProfile:
    """Stage 0 again and again, and the last stage at the end.

    Every stage's times and energies have factors of their own, the same at all its clocks: GPUs
    and layers differ, and a pipeline without differences has little to plan.

    Args:
        profile: of at least two stages.
        num_stages: of the long pipeline, at least 2.
        seed: of the factors; the same seed gives the same profile.
    """
    chance = random.Random(seed)
    points: dict[tuple[int, InstructionKind], tuple[OperatingPoint, ...]] = {}
    for stage in range(num_stages):
        source = profile.num_stages - 1 if stage == num_stages - 1 else 0
        time_factor = _factor(chance, TIME_SPREAD)
        energy_factor = _factor(chance, ENERGY_SPREAD)
        for kind in InstructionKind:
            if (source, kind) in profile.points:
                points[stage, kind] = tuple(
                    OperatingPoint(
                        frequency_mhz=point.frequency_mhz,
                        time_s=point.time_s * time_factor,
                        energy_j=point.energy_j * energy_factor,
                    )
                    for point in profile.points[source, kind]
                )
    return StageProfile(points=points, num_ranks_per_stage=(1,) * num_stages)


def _factor(chance: random.Random, spread: float) -> float:
    return 1 + max(-2 * spread, min(2 * spread, chance.gauss(0, spread)))
