"""The valley frequency of a stage, on tables of two or three rows."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from flyball_profiles.stage_profile import InstructionKind, OperatingPoint
from flyball_server.planning.model.least_energy_clock import least_energy_points, stage_least_energy

from .tiny_pipelines import B, F, I, Points, W, profile_of


def least_energy_mhz(kinds: dict[InstructionKind, Points]) -> dict[InstructionKind, int]:
    profile = profile_of([kinds])
    return clocks(stage_least_energy(profile, 0, kinds))


def clocks(points: Mapping[InstructionKind, OperatingPoint]) -> dict[InstructionKind, int]:
    return {kind: point.frequency_mhz for kind, point in points.items()}


@pytest.mark.parametrize(
    ("forward", "backward", "forward_mhz", "backward_mhz"),
    [
        # The least of both together, not of either kind; of equal ones the higher clock.
        ({300: 9, 200: 8, 100: 5}, {300: 12, 200: 11, 100: 15}, 200, 200),
        ({300: 9, 200: 8, 100: 5}, {300: 12, 200: 11, 100: 14}, 200, 200),
        # The least at a clock that both have; without one the least of each kind.
        ({300: 9, 200: 1, 100: 8}, {300: 9, 150: 1, 100: 9}, 100, 100),
        ({300: 9, 200: 2, 100: 2}, {310: 3, 210: 4, 110: 3}, 200, 310),
    ],
)
def test_a_stages_least_energy_is_that_of_all_its_kinds_at_a_shared_clock(
    forward: dict[int, int], backward: dict[int, int], forward_mhz: int, backward_mhz: int
) -> None:
    """Energies in J by clock in MHz; the times do not count."""
    kinds: dict[InstructionKind, Points] = {
        kind: [(mhz, 1000 / mhz, energy_j) for mhz, energy_j in by_clock.items()]
        for kind, by_clock in ((F, forward), (B, backward))
    }
    assert least_energy_mhz(kinds) == {F: forward_mhz, B: backward_mhz}


def test_both_parts_of_a_split_backward_count() -> None:
    """300 MHz: 2 + 2 + 9; 100 MHz: 3 + 3 + 3."""
    cheap_high = [(300, 1.0, 2.0), (100, 1.0, 3.0)]
    cheap_low = [(300, 1.0, 9.0), (100, 1.0, 3.0)]
    least_mhz = least_energy_mhz({F: cheap_high, I: cheap_high, W: cheap_low})
    assert least_mhz == dict.fromkeys((F, I, W), 100)


def test_a_kind_that_is_not_asked_for_does_not_count() -> None:
    cheap_high = [(300, 1.0, 2.0), (100, 1.0, 3.0)]
    cheap_low = [(300, 1.0, 9.0), (100, 1.0, 3.0)]
    stage = {F: cheap_high, B: cheap_high, I: cheap_low, W: cheap_low}
    assert clocks(stage_least_energy(profile_of([stage]), 0, (F, B))) == {F: 300, B: 300}


def test_one_kind_alone_has_the_valley_of_its_own_table() -> None:
    points = profile_of([{F: [(2, 1.0, 3.0), (1, 1.0, 2.0)], B: [(2, 1.0, 1.0), (1, 1.0, 2.0)]}])
    assert clocks(least_energy_points({F: points.points[0, F]})) == {F: 1}


def test_a_kind_with_a_single_clock_leaves_the_others_their_choice() -> None:
    points = {F: [(300, 1.0, 9.0)], B: [(300, 1.0, 9.0), (100, 1.0, 3.0)]}
    assert clocks(stage_least_energy(profile_of([points]), 0, (F, B))) == {F: 300, B: 100}
    both = {F: points[F], B: points[F]}
    assert clocks(stage_least_energy(profile_of([both]), 0, (F, B))) == {F: 300, B: 300}
