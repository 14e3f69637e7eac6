"""The valley frequency of a stage, on tables of two or three rows."""

from __future__ import annotations

from collections.abc import Mapping

from flyball_profiles.stage_profile import InstructionKind, OperatingPoint
from flyball_server.planning.model.least_energy_clock import least_energy_points, stage_least_energy

from .tiny_pipelines import B, F, I, Points, W, profile_of


def least_energy_mhz(kinds: dict[InstructionKind, Points]) -> dict[InstructionKind, int]:
    profile = profile_of([kinds])
    return clocks(stage_least_energy(profile, 0, kinds))


def clocks(points: Mapping[InstructionKind, OperatingPoint]) -> dict[InstructionKind, int]:
    return {kind: point.frequency_mhz for kind, point in points.items()}


def test_the_valley_is_where_forward_and_backward_together_need_least() -> None:
    """9 + 12 at 300 MHz, 8 + 11 at 200, 5 + 15 at 100: neither kind's own least."""
    forward = [(300, 1.0, 9.0), (200, 1.0, 8.0), (100, 1.0, 5.0)]
    backward = [(300, 1.0, 12.0), (200, 1.0, 11.0), (100, 1.0, 15.0)]
    assert least_energy_mhz({F: forward, B: backward}) == {F: 200, B: 200}


def test_of_two_equal_valleys_the_higher_clock_counts() -> None:
    forward = [(300, 1.0, 9.0), (200, 1.0, 8.0), (100, 1.0, 5.0)]
    backward = [(300, 1.0, 12.0), (200, 1.0, 11.0), (100, 1.0, 14.0)]
    assert least_energy_mhz({F: forward, B: backward}) == {F: 200, B: 200}


def test_raw_energy_counts_whatever_the_time() -> None:
    points = [(200, 1.0, 8.0), (100, 1000.0, 7.5)]
    assert least_energy_mhz({F: points, B: points}) == {F: 100, B: 100}


def test_only_clocks_that_every_kind_was_profiled_at_are_compared() -> None:
    forward = [(300, 1.0, 9.0), (200, 1.0, 1.0), (100, 1.0, 8.0)]
    backward = [(300, 1.0, 9.0), (150, 1.0, 1.0), (100, 1.0, 9.0)]
    assert least_energy_mhz({F: forward, B: backward}) == {F: 100, B: 100}


def test_kinds_without_a_common_clock_have_a_valley_each() -> None:
    forward = [(300, 1.0, 9.0), (200, 1.0, 2.0), (100, 1.0, 2.0)]
    backward = [(310, 1.0, 3.0), (210, 1.0, 4.0), (110, 1.0, 3.0)]
    assert least_energy_mhz({F: forward, B: backward}) == {F: 200, B: 310}


def test_both_parts_of_a_split_backward_count() -> None:
    """300 MHz: 2 + 2 + 9; 100 MHz: 3 + 3 + 3."""
    cheap_high = [(300, 1.0, 2.0), (100, 1.0, 3.0)]
    cheap_low = [(300, 1.0, 9.0), (100, 1.0, 3.0)]
    assert least_energy_mhz({F: cheap_high, I: cheap_high, W: cheap_low}) == {
        F: 100,
        I: 100,
        W: 100,
    }


def test_a_kind_that_is_not_asked_for_does_not_count() -> None:
    cheap_high = [(300, 1.0, 2.0), (100, 1.0, 3.0)]
    cheap_low = [(300, 1.0, 9.0), (100, 1.0, 3.0)]
    stage = {F: cheap_high, B: cheap_high, I: cheap_low, W: cheap_low}
    assert clocks(stage_least_energy(profile_of([stage]), 0, (F, B))) == {F: 300, B: 300}


def test_one_kind_alone_has_the_valley_of_its_own_table() -> None:
    points = profile_of([{F: [(2, 1.0, 3.0), (1, 1.0, 2.0)], B: [(2, 1.0, 1.0), (1, 1.0, 2.0)]}])
    assert clocks(least_energy_points({F: points.points[0, F]})) == {F: 1}
