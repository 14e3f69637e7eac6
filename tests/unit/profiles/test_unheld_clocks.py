"""Clocks that a GPU does not hold, but for a limit runs below: one point under several locks."""

from __future__ import annotations

import pytest

from flyball_pipeline.instruction import InstructionKind
from flyball_profiles.stage_profile import OperatingPoint, ProfileError, StageProfile
from flyball_profiles.stage_profile_csv import (
    parse_stage_profile,
    write_stage_profile,
)

F, B = InstructionKind.FORWARD, InstructionKind.BACKWARD
HEADER = "stage,instruction,frequency,time,energy,held_by"
# A power limit holds forwards at 1605 MHz; backwards keep their clocks.
CAPPED = [
    "0,forward,1740,1.0,31.0,power",
    "0,forward,1680,1.1,30.0,power",
    "0,forward,1620,1.2,29.0,power thermal",
    "0,forward,1605,1.3,28.0,",
    "0,forward,1200,2.0,20.0,power",
    "0,backward,1740,2.0,50.0,",
    "0,backward,1605,2.2,40.0,",
]


def profile_of(*rows: str, header: str = HEADER) -> StageProfile:
    return parse_stage_profile("\n".join([header, *rows]))


def figures(points: tuple[OperatingPoint, ...]) -> list[object]:
    return [(point.frequency_mhz, point.time_s, point.energy_j, point.held_by) for point in points]


def test_clocks_at_the_top_that_were_not_held_have_their_means_and_all_others_stay() -> None:
    profile = profile_of(*CAPPED)
    mean = (pytest.approx(1.1), pytest.approx(30.0), "power thermal")
    assert figures(profile.points[0, F]) == [
        (1740, *mean),
        (1680, *mean),
        (1620, *mean),
        (1605, 1.3, 28.0, ""),
        # Below a clock that was held it is no cap, but what happened once.
        (1200, 2.0, 20.0, "power"),
    ]
    assert len({(one.time_s, one.energy_j) for one in profile.points[0, F][:3]}) == 1
    assert figures(profile.points[0, B]) == [(1740, 2.0, 50.0, ""), (1605, 2.2, 40.0, "")]
    assert parse_stage_profile(write_stage_profile(profile)) == profile
    held = profile_of(*(row.rpartition(",")[0] + "," for row in CAPPED))
    assert "held_by" not in write_stage_profile(held)


def test_each_rank_has_its_own_cap_and_its_stage_the_slowest_ranks() -> None:
    header = "tp_rank," + HEADER
    capped = [f"0,{row}" for row in CAPPED]
    free = [f"1,{row.rpartition(',')[0]}," for row in CAPPED]
    points = profile_of(*capped, *free, header=header).points[0, F]
    # Of rank 1 each clock as it was, of rank 0 the mean of 1.1 s and 30 J at the three highest.
    assert figures(points)[:3] == [
        (1740, pytest.approx(1.1), pytest.approx(61.0), "power thermal"),
        (1680, pytest.approx(1.1), pytest.approx(60.0), "power thermal"),
        (1620, pytest.approx(1.2), pytest.approx(59.0), "power thermal"),
    ]


def test_a_lock_that_was_lost_is_no_limit() -> None:
    profile = profile_of(*(row.replace("power thermal", "lost") for row in CAPPED))
    assert [one.held_by for one in profile.points[0, F]] == ["power", "power", "", "", "power"]
    assert profile.points[0, F][2].time_s == 1.2


@pytest.mark.parametrize("cell", ["0.5", "POWER", "x" * 65])
def test_no_other_text_is_a_limit(cell: str) -> None:
    with pytest.raises(ProfileError, match=r"^held_by must be") as caught:
        profile_of(*CAPPED, f"0,backward,1200,2.4,39.0,{cell}")
    assert caught.value.line == 9
