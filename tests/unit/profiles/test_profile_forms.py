from __future__ import annotations

from pathlib import Path

import pytest

from flyball_profiles.examples import example_profile_path
from flyball_profiles.profile_forms import (
    joined_text,
    merged_text,
    same_ranks_text,
    wide_text,
)
from flyball_profiles.stage_profile import ProfileError
from flyball_profiles.stage_profile_csv import parse_stage_profile, read_stage_profile

# As the ecosystem writes it, its rows in any order.
NARROW = """stage,instruction,frequency,time,energy
0,backward,1410,0.2,40
0,forward,1410,0.1,20
0,forward,1200,0.12,15
0,backward,1200,0.24,33
"""
WIDE = """rank,dp_rank,pp_rank,tp_rank,stage,instruction,frequency,time,energy
0,0,0,0,0,forward,1410,1,3
0,0,0,0,0,forward,1200,1.5,2
0,0,0,0,0,backward,1410,1,3
0,0,0,0,0,backward,1200,1.5,2
1,0,0,1,0,forward,1410,1.2,3
1,0,0,1,0,forward,1200,1.4,2
1,0,0,1,0,backward,1410,1.2,3
1,0,0,1,0,backward,1200,1.4,2
"""


def write(folder: Path, name: str, text: str) -> Path:
    file = folder / name
    file.write_text(text)
    return file


def part(stage: int, *, kinds: tuple[str, ...] = ("forward", "backward"), gpu: str = "A") -> str:
    rows = [f"{stage},{kind},{mhz},0.1,20,0.001,{gpu}" for kind in kinds for mhz in (1410, 1200)]
    return "\n".join(["stage,instruction,frequency,time,energy,time_error,gpu", *rows, ""])


def test_the_published_form_comes_out_in_order_with_every_digit_and_its_label(
    tmp_path: Path,
) -> None:
    narrow = write(tmp_path, "in.csv", NARROW)
    assert same_ranks_text(narrow, {}).splitlines() == [
        "stage,instruction,frequency,time,energy",
        "0,forward,1410,0.1,20",
        "0,forward,1200,0.12,15",
        "0,backward,1410,0.2,40",
        "0,backward,1200,0.24,33",
    ]
    parts = [
        write(tmp_path, f"{tp}.csv", same_ranks_text(narrow, {"tp_rank": tp})) for tp in (1, 0)
    ]
    text = joined_text(parts)
    assert text.splitlines()[:2] == [
        "tp_rank,stage,instruction,frequency,time,energy",
        "0,0,forward,1410,0.1,20",
    ]
    assert parse_stage_profile(text).num_ranks_per_stage == (2,)
    with pytest.raises(ProfileError, match="has a column tp_rank already"):
        same_ranks_text(parts[0], {"tp_rank": 3})


def test_the_example_survives_every_round(tmp_path: Path) -> None:
    example = example_profile_path()
    profile = read_stage_profile(example)
    same = write(tmp_path, "same.csv", same_ranks_text(example, {}))
    wide = write(tmp_path, "wide.csv", wide_text(same))
    again = write(tmp_path, "again.csv", wide_text(wide))
    assert wide.read_text() == again.read_text()
    assert parse_stage_profile(merged_text(again)).points == profile.points
    assert wide.read_text().splitlines()[1].startswith("0,0,0,0,0,forward,1410,")
    assert wide.read_text().splitlines()[-1].startswith("7,0,7,0,7,backward,855,")


def test_a_wide_file_stays_wide_and_is_merged_only_when_asked(tmp_path: Path) -> None:
    wide = write(tmp_path, "wide.csv", WIDE)
    assert same_ranks_text(wide, {}) == WIDE
    assert merged_text(wide).splitlines()[:2] == [
        "stage,instruction,frequency,time,energy,num_ranks,rank_waiting",
        "0,forward,1410,1.2,6.0,2,0.2",
    ]


def test_ranks_are_numbered_by_tensor_then_data_then_pipeline(tmp_path: Path) -> None:
    rows = [
        f"{stage},{dp},{tp},{kind},{mhz},1,1"
        for stage in (0, 1)
        for dp in (0, 1)
        for tp in (0, 1)
        for kind in ("forward", "backward")
        for mhz in (1410, 1200)
    ]
    header = "stage,dp_rank,tp_rank,instruction,frequency,time,energy"
    text = wide_text(write(tmp_path, "in.csv", "\n".join([header, *rows])))
    ranks = {tuple(line.split(",")[:4]) for line in text.splitlines()[1:]}
    assert ranks == {
        (str(4 * pp + 2 * dp + tp), str(dp), str(pp), str(tp))
        for pp in (0, 1)
        for dp in (0, 1)
        for tp in (0, 1)
    }


def test_stages_and_instructions_measured_apart_join_with_their_extra_columns(
    tmp_path: Path,
) -> None:
    text = joined_text(
        [
            write(tmp_path, "s1.csv", part(1)),
            write(tmp_path, "f0.csv", part(0, kinds=("forward",))),
            write(tmp_path, "b0.csv", part(0, kinds=("backward",))),
        ]
    )
    assert text.splitlines()[0] == "stage,instruction,frequency,time,energy,time_error,gpu"
    assert [line.split(",")[0] for line in text.splitlines()[1:]] == ["0"] * 4 + ["1"] * 4
    assert parse_stage_profile(text).num_stages == 2


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ((part(0), part(2)), "the parts do not form a complete profile: stage 1 is missing"),
        (
            (part(0), part(0)),
            "1.csv:2: stage 0 forward at 1410 MHz is given twice; first in .*0.csv",
        ),
        ((part(0), WIDE), "1.csv: has the rank columns rank, dp_rank, .*, but .*0.csv has none"),
        ((part(0), part(1, gpu="emulated GPU")), "1.csv: is emulated, and other parts are m"),
        ((part(0), "stage,instruction,frequency,time,energy\n"), "1.csv: has no rows"),
        ((part(0), "stage,frequency\n"), "1.csv:1: missing columns instruction, time, energy"),
        ((part(0), part(1).replace("0.1,", "nan,", 1)), "1.csv:2: time must be a finite number"),
    ],
)
def test_parts_that_do_not_fit_are_refused_with_their_place(
    tmp_path: Path, texts: tuple[str, ...], message: str
) -> None:
    files = [write(tmp_path, f"{i}.csv", text) for i, text in enumerate(texts)]
    with pytest.raises(ProfileError, match=message) as raised:
        joined_text(files)
    assert "\n" not in str(raised.value)


def test_what_cannot_be_told_is_not_made_up(tmp_path: Path) -> None:
    rank_alone = "rank," + "\n0,".join(NARROW.splitlines())
    with pytest.raises(ProfileError, match="rank alone does not distinguish"):
        wide_text(write(tmp_path, "rank.csv", rank_alone))
    merged = write(tmp_path, "merged.csv", merged_text(write(tmp_path, "wide.csv", WIDE)))
    with pytest.raises(ProfileError, match=r"merged.csv:2: contains 2 merged ranks"):
        wide_text(merged)
