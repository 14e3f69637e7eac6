"""A stage profile as plain data, the form in which the SQL store keeps it."""

from __future__ import annotations

import functools
import json
from typing import Any

from flyball_profiles.stage_profile import InstructionKind, OperatingPoint, StageProfile


def profile_document(profile: StageProfile) -> dict[str, Any]:
    """The profile as JSON-ready data: `points` in rows `[stage, kind, MHz, s, J]`.

    Where it has model chunks, `chunks` is a list of such documents.
    """
    chunks = [profile_document(chunk) for chunk in profile.chunks]
    return ({"chunks": chunks} if chunks else {}) | {
        "num_ranks_per_stage": list(profile.num_ranks_per_stage),
        "points": [
            [stage, str(kind), point.frequency_mhz, point.time_s, point.energy_j]
            for (stage, kind), points in profile.points.items()
            for point in points
        ],
    }


# Each version's ranks ask for their job's profile, and one of 64 stages takes 0.3 s to read.
@functools.lru_cache(maxsize=8)
def profile_from_text(text: str) -> StageProfile:
    """The profile whose document this is the JSON of; the same object to all who ask."""
    return profile_from_document(json.loads(text))


def profile_from_document(document: dict[str, Any]) -> StageProfile:
    """The profile that `profile_document` wrote."""
    points: dict[tuple[int, InstructionKind], tuple[OperatingPoint, ...]] = {}
    for stage, kind, frequency_mhz, time_s, energy_j in document["points"]:
        key = (int(stage), InstructionKind(kind))
        point = OperatingPoint(frequency_mhz=frequency_mhz, time_s=time_s, energy_j=energy_j)
        points[key] = (*points.get(key, ()), point)
    return StageProfile(
        points=points,
        num_ranks_per_stage=tuple(document["num_ranks_per_stage"]),
        chunks=tuple(profile_from_document(chunk) for chunk in document.get("chunks", ())),
    )
