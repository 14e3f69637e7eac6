"""The valley frequency of a stage, on tables of two or three rows."""

from __future__ import annotations

import pytest

from flyball_profiles.stage_profile import InstructionKind
from flyball_server.planning.model.least_energy_clock import stage_least_energy

from .tiny_pipelines import B, F, I, W, profile_of

Energies = dict[int, int]
"""Energy in J by clock in MHz."""

CHEAP_HIGH, CHEAP_LOW = {300: 2, 100: 3}, {300: 9, 100: 3}


@pytest.mark.parametrize(
    ("energies_j", "expected_mhz"),
    [
        # The least of both together, not of either kind; of equal ones the higher clock.
        ({F: {300: 9, 200: 8, 100: 5}, B: {300: 12, 200: 11, 100: 15}}, {F: 200, B: 200}),
        ({F: {300: 9, 200: 8, 100: 5}, B: {300: 12, 200: 11, 100: 14}}, {F: 200, B: 200}),
        # The least at a clock that both have; without one the least of each kind.
        ({F: {300: 9, 200: 1, 100: 8}, B: {300: 9, 150: 1, 100: 9}}, {F: 100, B: 100}),
        ({F: {300: 9, 200: 2, 100: 2}, B: {310: 3, 210: 4, 110: 3}}, {F: 200, B: 310}),
        # Both parts of a split backward count: 2 + 2 + 9 J or 3 + 3 + 3.
        ({F: CHEAP_HIGH, I: CHEAP_HIGH, W: CHEAP_LOW}, {F: 100, I: 100, W: 100}),
        # A kind that is not asked for does not count.
        ({F: CHEAP_HIGH, B: CHEAP_HIGH, I: CHEAP_LOW, W: CHEAP_LOW}, {F: 300, B: 300}),
        # A kind with a single clock leaves the others their choice.
        ({F: {300: 9}, B: CHEAP_LOW}, {F: 300, B: 100}),
        ({F: {300: 9}, B: {300: 9}}, {F: 300, B: 300}),
    ],
)
def test_a_stages_least_energy_is_that_of_all_its_kinds_at_a_shared_clock(
    energies_j: dict[InstructionKind, Energies], expected_mhz: dict[InstructionKind, int]
) -> None:
    """The times do not count."""
    stage = {
        kind: [(mhz, 1000 / mhz, energy_j) for mhz, energy_j in by_clock.items()]
        for kind, by_clock in energies_j.items()
    }
    points = stage_least_energy(profile_of([stage]), 0, expected_mhz)
    assert {kind: point.frequency_mhz for kind, point in points.items()} == expected_mhz
