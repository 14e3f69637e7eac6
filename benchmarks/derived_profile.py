"""Chunks, split backwards and recomputations for a profile that was measured without them.

Derived, not measured: good for the speed of planning, and for what an order would bring if parts
were as even as this. Every benchmark that uses it says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from flyball_profiles.stage_profile import InstructionKind, OperatingPoint, StageProfile

# Of a whole backward: the gradient of the input and that of the weights are as many operations.
INPUT_SHARE = 0.5
ASSUMPTION = (
    "chunks of equal parts, backward in two halves, recomputation as long as a forward:"
    " derived, not measured"
)


def derive_parts(profile: StageProfile, num_chunks: int) -> StageProfile:
    """The profile with every kind of instruction, and with `num_chunks` equal chunks (or 1)."""
    whole = replace(profile, points=_parts(profile, 1.0))
    if num_chunks == 1:
        return whole
    chunk = replace(profile, points=_parts(profile, 1 / num_chunks))
    return replace(whole, chunks=(chunk,) * num_chunks)


def _parts(
    profile: StageProfile, share: float
) -> dict[tuple[int, InstructionKind], tuple[OperatingPoint, ...]]:
    points: dict[tuple[int, InstructionKind], tuple[OperatingPoint, ...]] = {}
    for stage in range(profile.num_stages):
        forward = profile.points[stage, InstructionKind.FORWARD]
        backward = profile.points[stage, InstructionKind.BACKWARD]
        for kind, source, part in (
            (InstructionKind.FORWARD, forward, 1.0),
            (InstructionKind.RECOMPUTE, forward, 1.0),
            (InstructionKind.BACKWARD, backward, 1.0),
            (InstructionKind.BACKWARD_INPUT, backward, INPUT_SHARE),
            (InstructionKind.BACKWARD_WEIGHT, backward, 1 - INPUT_SHARE),
        ):
            points[stage, kind] = _scaled(source, part * share)
    return points


def _scaled(points: Sequence[OperatingPoint], share: float) -> tuple[OperatingPoint, ...]:
    return tuple(
        replace(point, time_s=point.time_s * share, energy_j=point.energy_j * share)
        for point in points
    )
