"""Staircase and hull of an instruction's points, worked out by hand and against definitions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.planning.tiny_pipelines import (
    B,
    F,
    Points,
    model_of,
    operating_points,
    profile_of,
)

from flyball_profiles.stage_profile import OperatingPoint
from flyball_server.planning.frontier.curves import CostCurve, CostPoint, cost_curve, model_curves


def curve_of(points: Points, blocking_power_w: float = 0.0) -> CostCurve:
    return cost_curve(
        [
            OperatingPoint(frequency_mhz=mhz, time_s=time_s, energy_j=energy_j)
            for mhz, time_s, energy_j in points
        ],
        blocking_power_w,
    )


def choices(points: tuple[CostPoint, ...]) -> list[int]:
    return [point.choice for point in points]


def test_a_slower_clock_that_takes_more_energy_is_useful_only_against_waiting() -> None:
    points = [(1410, 1.0, 10.0), (1000, 2.0, 15.0)]
    assert choices(curve_of(points).staircase) == [0]
    saving = curve_of(points, blocking_power_w=10.0)
    assert [(point.time_s, point.cost_j) for point in saving.staircase] == [(1.0, 0.0), (2.0, -5.0)]


def test_of_equal_times_the_cheapest_and_of_equal_points_the_highest_clock_is_kept() -> None:
    curve = curve_of([(1410, 1.0, 30.0), (1300, 1.0, 20.0), (1200, 1.0, 20.0)])
    assert choices(curve.staircase) == choices(curve.hull) == [1]


def test_times_equal_but_for_rounding_make_no_slope() -> None:
    curve = curve_of([(1410, 1.0, 30.0), (1300, 1.0 + 1e-15, 20.0), (1200, 2.0, 10.0)])
    assert choices(curve.staircase) == [0, 1, 2]
    assert [(point.time_s, point.cost_j) for point in curve.hull] == [(1.0, 20.0), (2.0, 10.0)]


def cost_on_hull_j(curve: CostCurve, time_s: float) -> float:
    for left, right in zip(curve.hull, curve.hull[1:], strict=False):
        if left.time_s <= time_s <= right.time_s:
            share = (time_s - left.time_s) / (right.time_s - left.time_s)
            return left.cost_j + share * (right.cost_j - left.cost_j)
    return curve.hull[-1].cost_j


@given(operating_points(), st.integers(0, 90))
def test_the_staircase_is_what_no_other_point_beats_and_the_hull_is_below_it(
    points: Points, blocking_power_w: int
) -> None:
    curve = curve_of(points, blocking_power_w)
    costs = [(time_s, energy_j - blocking_power_w * time_s) for _, time_s, energy_j in points]
    unbeaten = {
        (time_s, cost_j)
        for time_s, cost_j in costs
        if not any(
            other != (time_s, cost_j) and other[0] <= time_s and other[1] <= cost_j
            for other in costs
        )
    }
    assert {(point.time_s, point.cost_j) for point in curve.staircase} == unbeaten
    for point in curve.staircase:
        assert costs[point.choice] == (point.time_s, point.cost_j)
        assert cost_on_hull_j(curve, point.time_s) <= point.cost_j + 1e-9
    assert (curve.hull[0], curve.hull[-1]) == (curve.staircase[0], curve.staircase[-1])
    assert set(curve.hull) <= set(curve.staircase)
    slopes = [
        (right.cost_j - left.cost_j) / (right.time_s - left.time_s)
        for left, right in zip(curve.hull, curve.hull[1:], strict=False)
    ]
    assert slopes == sorted(set(slopes))
    assert all(slope < 0 for slope in slopes)


def test_waiting_counts_for_all_ranks_of_a_stage() -> None:
    points = [(1410, 1.0, 30.0), (1000, 2.0, 20.0)]
    model = model_of(profile_of([{F: points, B: points}], [3]), 1, blocking_power_w=[4.0])
    hull = model_curves(model).curves[0].hull
    assert [point.cost_j for point in hull] == pytest.approx([30 - 12, 20 - 24])
