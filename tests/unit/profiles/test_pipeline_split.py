"""A profile of several ranks, split into one stage profile for each data-parallel pipeline."""

from __future__ import annotations

from pathlib import Path

import pytest

from flyball_pipeline.instruction import InstructionKind
from flyball_profiles.stage_profile import ProfileError
from flyball_profiles.stage_profile_csv import (
    parse_pipeline_profiles,
    parse_stage_profile,
    read_pipeline_profiles,
)

FORWARD, BACKWARD = InstructionKind.FORWARD, InstructionKind.BACKWARD
HEADER = "dp_rank,stage,instruction,frequency,time,energy\n"
TP_HEADER = "dp_rank,tp_rank,stage,instruction,frequency,time,energy\n"


def rows(prefix: str, stage: int, time_s: float, clocks_mhz: tuple[int, int] = (1410, 1200)) -> str:
    """Forward and backward at two clocks, the lower one a quarter slower."""
    high, low = clocks_mhz
    return "".join(
        f"{prefix},{stage},{kind},{high},{time_s},20\n"
        f"{prefix},{stage},{kind},{low},{1.25 * time_s},15\n"
        for kind in ("forward", "backward")
    )


def test_each_pipeline_has_its_own_times_where_merging_takes_the_slowest(tmp_path: Path) -> None:
    text = HEADER + rows("0", 0, 0.1) + rows("1", 0, 0.2)
    path = tmp_path / "wide.csv"
    path.write_text(text, encoding="utf-8")
    fast, slow = read_pipeline_profiles(path)
    assert fast.at(0, FORWARD, 1410).time_s == 0.1
    assert slow.at(0, FORWARD, 1410).time_s == 0.2
    assert fast.at(0, BACKWARD, 1200).energy_j == 15
    assert fast.num_ranks_per_stage == slow.num_ranks_per_stage == (1,)
    merged = parse_stage_profile(text)
    assert merged.at(0, FORWARD, 1410).time_s == 0.2
    assert merged.num_ranks_per_stage == (2,)


def test_tensor_parallel_ranks_inside_a_pipeline_are_merged() -> None:
    """Two ranks of 0.1 s and 0.3 s, and two of 0.2 s; each of 20 J at 1410 MHz."""
    text = TP_HEADER + rows("0,0", 0, 0.1) + rows("1,0", 0, 0.2)
    text += rows("0,1", 0, 0.3) + rows("1,1", 0, 0.2)
    first, second = parse_pipeline_profiles(text)
    assert first.at(0, FORWARD, 1410).time_s == 0.3
    assert second.at(0, FORWARD, 1410).time_s == 0.2
    assert first.at(0, FORWARD, 1410).energy_j == 40
    assert first.num_ranks_per_stage == second.num_ranks_per_stage == (2,)


def test_pipelines_may_have_been_measured_at_other_clocks() -> None:
    """Other GPUs have other clocks; merged, that is refused."""
    text = HEADER + rows("0", 0, 0.1) + rows("1", 0, 0.1, (1980, 1500))
    first, second = parse_pipeline_profiles(text)
    assert [point.frequency_mhz for point in first.points[0, FORWARD]] == [1410, 1200]
    assert [point.frequency_mhz for point in second.points[0, FORWARD]] == [1980, 1500]
    with pytest.raises(ProfileError, match="was measured on dp_rank 0 but not on dp_rank 1"):
        parse_stage_profile(text)


@pytest.mark.parametrize(
    ("text", "message", "line"),
    [
        (
            HEADER.removeprefix("dp_rank,") + "0,forward,1410,0.1,20\n",
            "the profile has no column dp_rank",
            None,
        ),
        (
            HEADER + rows("0", 0, 0.1) + rows("2", 0, 0.1),
            "dp_rank 1 is missing; data-parallel ranks count from 0 without gaps",
            6,
        ),
        (
            HEADER + rows("0", 0, 0.1) + rows("1", 0, 0.1) + rows("1", 1, 0.1),
            "stage 1 backward was measured on dp_rank 1 but not on dp_rank 0;",
            12,
        ),
        (
            HEADER + rows("0", 0, 0.1) + rows("1", 1, 0.1),
            "dp_rank 1: stage 0 is missing; stages count from 0 without gaps",
            6,
        ),
    ],
)
def test_pipelines_that_cannot_be_told_apart_or_differ_are_refused_in_one_line(
    text: str, message: str, line: int | None
) -> None:
    with pytest.raises(ProfileError) as raised:
        parse_pipeline_profiles(text)
    assert raised.value.message.startswith(message)
    assert raised.value.line == line
    assert len(str(raised.value).splitlines()) == 1
