"""Conditions that a GPU is profiled under: their text, what they have in common, what changed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flyball_profiles.gpu_conditions import GpuConditions, changes, common_conditions
from flyball_profiles.stage_profile import ProfileError
from flyball_profiles.stage_profile_csv import (
    parse_stage_profile,
    write_stage_profile,
)

H100 = GpuConditions(
    power_limit_w=700.0,
    default_power_limit_w=700.0,
    power_profile="none",
    memory_clock_mhz=2619,
    ecc=True,
    persistence=False,
    driver="580.105.08",
)
COLUMNS = "stage,instruction,frequency,time,energy,conditions"


def profile_text(*conditions: str) -> str:
    """Rows of forward and backward at two clocks, for each stage's conditions."""
    rows = [
        f"{stage},{kind},{point},{text}"
        for stage, text in enumerate(conditions)
        for kind in ("forward", "backward")
        for point in ("1410,0.1,20", "1005,0.12,16")
    ]
    return "\n".join([COLUMNS, *rows, ""])


def test_the_text_of_conditions_reads_back() -> None:
    text = str(H100)
    assert text == (
        "power_limit_w=700 default_power_limit_w=700 power_profile=none memory_clock_mhz=2619"
        " ecc=on persistence=off driver=580.105.08"
    )
    assert GpuConditions.parse(text) == H100
    assert GpuConditions.parse("power_limit_w=299.5 of_a_newer_flyball=7").power_limit_w == 299.5
    assert H100.text == (
        "power limit 700 W, default power limit 700 W, power profile none, memory clock 2619 MHz,"
        " ECC on, persistence mode off, driver 580.105.08"
    )


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("power_limit_w", "must be NAME=VALUE"),
        ("power_limit_w=nan", "power_limit_w must be a number"),
        ("power_limit_w=-1", "power_limit_w must be from 0"),
        ("ecc=yes", "ecc must be on or off"),
        ("driver=", "driver must be 1 to 64"),
    ],
)
def test_a_text_that_is_none_is_refused_with_its_line(text: str, fault: str) -> None:
    with pytest.raises(ProfileError, match=f"conditions: {fault}") as raised:
        parse_stage_profile(profile_text(text))
    assert raised.value.line == 2


def test_a_limit_that_is_rounded_is_the_same_and_what_is_unknown_has_not_changed() -> None:
    rounded = replace(H100, power_limit_w=699.9, memory_clock_mhz=2618, ecc=None)
    assert changes(H100, rounded) == changes(rounded, H100) == ()
    assert changes(GpuConditions(), H100) == ()


def test_changes_say_both_values_and_whether_times_depend_on_them() -> None:
    now = replace(H100, power_limit_w=500.0, driver="590.1", power_profile="max-q")
    found = changes(H100, now)
    assert [str(change) for change in found] == [
        "power limit 500 W (before: 700 W)",
        "power profile max-q (before: none)",
        "driver 590.1 (before: 580.105.08)",
    ]
    assert [change.changes_work for change in found] == [True, True, False]


def test_common_conditions_are_those_that_all_share() -> None:
    capped = replace(H100, power_limit_w=500.0)
    assert common_conditions([H100, capped]) == common_conditions([capped, H100]) == capped
    other = replace(H100, default_power_limit_w=650.0, ecc=False)
    assert common_conditions([H100, other]) == replace(H100, default_power_limit_w=None, ecc=None)
    assert common_conditions([H100, replace(H100, power_limit_w=700.1)]) == H100
    assert common_conditions([H100, None]) is None
    assert common_conditions([]) is None


def test_what_is_not_known_may_come_from_others() -> None:
    assert H100.at_rest.memory_clock_mhz is None
    capped = replace(H100.at_rest, power_limit_w=500.0)
    assert capped.filled(H100) == replace(H100, power_limit_w=500.0)


def test_a_limit_below_the_default_is_one() -> None:
    assert replace(H100, power_limit_w=500.0).is_limited
    assert not H100.is_limited
    assert not replace(H100, default_power_limit_w=None).is_limited


def test_a_profile_carries_the_conditions_of_each_stage() -> None:
    text = profile_text(str(H100), "")
    profile = parse_stage_profile(text)
    assert profile.conditions == (H100, None)
    assert write_stage_profile(profile).splitlines()[0] == COLUMNS
    assert profile.select_stages((1,)).conditions == ()
    assert profile.select_stages((0,)).conditions == (H100,)


def test_conditions_of_other_numbers_of_stages_are_refused_and_none_are_not_written() -> None:
    profile = parse_stage_profile(profile_text("", ""))
    assert profile.conditions == ()
    assert "conditions" not in write_stage_profile(profile)
    with pytest.raises(ProfileError, match="conditions must be those of 2 stages"):
        replace(profile, conditions=(H100,))
