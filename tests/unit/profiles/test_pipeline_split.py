"""A profile of several ranks, split into one stage profile for each data-parallel pipeline."""

from __future__ import annotations

from pathlib import Path

import pytest

from flyball_profiles.stage_profile import InstructionKind, ProfileError
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


def refusal(text: str) -> ProfileError:
    with pytest.raises(ProfileError) as raised:
        parse_pipeline_profiles(text)
    assert len(str(raised.value).splitlines()) == 1
    return raised.value


def test_each_pipeline_has_its_own_times_where_merging_takes_the_slowest() -> None:
    text = HEADER + rows("0", 0, 0.1) + rows("1", 0, 0.2)
    fast, slow = parse_pipeline_profiles(text)
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


def test_the_order_of_rows_does_not_matter() -> None:
    blocks = [rows(dp, stage, 0.1 + 0.1 * int(dp)) for dp in "01" for stage in range(2)]
    lines = "".join(blocks).splitlines(keepends=True)
    forwards = parse_pipeline_profiles(HEADER + "".join(lines))
    assert parse_pipeline_profiles(HEADER + "".join(reversed(lines))) == forwards


def test_pipelines_may_have_been_measured_at_other_clocks() -> None:
    """Other GPUs have other clocks; merged, that is refused."""
    text = HEADER + rows("0", 0, 0.1) + rows("1", 0, 0.1, (1980, 1500))
    first, second = parse_pipeline_profiles(text)
    assert [point.frequency_mhz for point in first.points[0, FORWARD]] == [1410, 1200]
    assert [point.frequency_mhz for point in second.points[0, FORWARD]] == [1980, 1500]
    with pytest.raises(ProfileError, match="was measured on dp_rank 0 but not on dp_rank 1"):
        parse_stage_profile(text)


def test_a_single_pipeline_is_one_profile() -> None:
    text = HEADER + rows("0", 0, 0.1)
    assert parse_pipeline_profiles(text) == (parse_stage_profile(text),)


def test_a_profile_without_the_column_is_refused() -> None:
    error = refusal(HEADER.removeprefix("dp_rank,") + "0,forward,1410,0.1,20\n")
    assert error.message.startswith("the profile has no column dp_rank")


def test_a_header_alone_is_refused_as_ever() -> None:
    assert refusal(HEADER).message == "the profile has no rows; give at least forward and backward"


def test_a_skipped_rank_is_refused_at_the_next_ones_first_line() -> None:
    error = refusal(HEADER + rows("0", 0, 0.1) + rows("2", 0, 0.1))
    assert error.message == "dp_rank 1 is missing; data-parallel ranks count from 0 without gaps"
    assert error.line == 6


def test_pipelines_of_different_stages_are_refused() -> None:
    text = HEADER + rows("0", 0, 0.1) + rows("1", 0, 0.1) + rows("1", 1, 0.1)
    error = refusal(text)
    assert error.message.startswith(
        "stage 1 backward was measured on dp_rank 1 but not on dp_rank 0;"
    )
    assert error.line == 12


def test_pipelines_of_different_instructions_are_refused() -> None:
    text = HEADER + rows("0", 0, 0.1) + rows("1", 0, 0.1)
    more = "0,0,recompute,1410,0.1,5\n0,0,recompute,1200,0.1,4\n"
    error = refusal(text + more)
    assert error.message.startswith("stage 0 recompute was measured on dp_rank 0 but not on dp_ra")
    assert error.line == 10


def test_a_fault_inside_a_pipeline_names_the_pipeline_and_the_line() -> None:
    text = HEADER + rows("0", 0, 0.1) + rows("1", 0, 0.1) + "1,0,forward,1410,0.1,20\n"
    error = refusal(text)
    assert error.message == (
        "dp_rank 1: stage 0 forward at 1410 MHz on dp_rank 1 is given twice; first in line 6"
    )
    assert error.line == 10
    error = refusal(HEADER + rows("0", 0, 0.1) + rows("1", 1, 0.1))
    assert error.message == "dp_rank 1: stage 0 is missing; stages count from 0 without gaps"
    assert error.line == 6


def test_a_file_is_read_like_the_text_in_it(tmp_path: Path) -> None:
    path = tmp_path / "wide.csv"
    text = HEADER + rows("0", 0, 0.1) + rows("1", 0, 0.2)
    path.write_text(text, encoding="utf-8")
    assert read_pipeline_profiles(path) == parse_pipeline_profiles(text)
    with pytest.raises(ProfileError, match="cannot read the profile"):
        read_pipeline_profiles(tmp_path / "missing.csv")
    path.write_bytes(b"dp_rank\xff\n")
    with pytest.raises(ProfileError, match="not UTF-8 text"):
        read_pipeline_profiles(path)
