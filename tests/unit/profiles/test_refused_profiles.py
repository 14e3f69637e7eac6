"""Each way in which a profile can be unusable is one clear line at the right place."""

from __future__ import annotations

from pathlib import Path

import pytest

from flyball_profiles.stage_profile import ProfileError
from flyball_profiles.stage_profile_csv import (
    parse_stage_profile,
    parse_stage_profile_rows,
    read_pipeline_profiles,
    read_stage_profile,
)

HEADER = "stage,instruction,frequency,time,energy\n"
FORWARD_ROWS = "0,forward,1410,0.1,20\n0,forward,1200,0.2,15\n"
BACKWARD_ROWS = "0,backward,1410,0.3,40\n0,backward,1200,0.4,30\n"
GOOD = HEADER + FORWARD_ROWS + BACKWARD_ROWS

WIDE_HEADER = "rank,dp_rank,tp_rank," + HEADER


def refusal(text: str) -> ProfileError:
    with pytest.raises(ProfileError) as raised:
        parse_stage_profile(text)
    assert len(str(raised.value).splitlines()) == 1
    return raised.value


def wide(rows: str, prefix: str) -> str:
    return "".join(f"{prefix},{row}\n" for row in rows.splitlines())


LATER_STAGE = (FORWARD_ROWS + BACKWARD_ROWS).replace("0,", "2,", 1).replace("\n0,", "\n2,")
COUNTED = GOOD.replace("\n", ",2\n").replace("energy,2", "energy,num_ranks")
ON_RANKS = wide(FORWARD_ROWS + BACKWARD_ROWS, "0,0,0") + wide(FORWARD_ROWS + BACKWARD_ROWS, "1,0,1")
HUGE_ROWS = (FORWARD_ROWS + BACKWARD_ROWS).replace(",20\n", ",9e8\n")
NO_COUNT = "must be a whole number from 0 to 1000000, not"


@pytest.mark.parametrize(
    ("text", "message", "line"),
    [
        ("", f"the profile is empty; its first line must be {HEADER.strip()}", None),
        (HEADER, "the profile has no rows; give at least forward and backward", None),
        ("\n" + GOOD.replace("time", "other", 1), "missing column time; the header must have ", 2),
        (f"time,time,{HEADER}", "the column time is in the header twice", 1),
        (GOOD + " ,forward,900,1,1", "stage is empty; give a number", 6),
        (
            GOOD.replace("1200", "1200.5", 1),
            "frequency must be a whole number of MHz, not '1200.5'",
            3,
        ),
        (GOOD + "2000000,forward,900,1,1\n", f"stage {NO_COUNT} '2000000'", 6),
        (GOOD + "0,forward,900,1", "4 cells in the row for 5 columns in the header", 6),
        # Lines are counted through blank lines and line feeds in quotes.
        (
            'note,"a\nb",' + HEADER + "\n" + 'x,"c\nd",0,forward,fast,1,1\n',
            "frequency must be a finite number",
            4,
        ),
        (
            GOOD + "\n0,forward,1410.0,0.7,7\n",
            "stage 0 forward at 1410 MHz is given twice; first in line 2",
            7,
        ),
        (
            WIDE_HEADER + ON_RANKS + "1,0,1,0,forward,1305,0.15,17\n",
            "stage 0 forward at 1305 MHz was measured on rank 1 but not on rank 0",
            10,
        ),
        (
            "dp_rank,tp_rank,"
            + HEADER
            + wide(FORWARD_ROWS + BACKWARD_ROWS, "0,0")
            + wide(FORWARD_ROWS, "1,2"),
            "stage 0 backward at 1410 MHz was measured on dp_rank 0, tp_rank 0"
            " but not on dp_rank 1, tp_rank 2",
            4,
        ),
        (
            COUNTED.replace("0.4,30,2", "0.4,30,3"),
            "num_ranks of stage 0 must be the same in all its rows: 2 before, 3 here",
            5,
        ),
        (COUNTED.replace(",2\n", ",0\n"), "num_ranks must be at least 1", 2),
        (
            HEADER + "\n" + FORWARD_ROWS,
            "stage 0 has no backward rows, nor both backward_input and backward_weight",
            3,
        ),
        (HEADER + BACKWARD_ROWS, "stage 0 has no forward rows", 2),
        (GOOD + LATER_STAGE, "stage 1 is missing; stages count from 0 without gaps", 6),
        (
            HEADER + "0,forward,1410,0.1,20\n0,backward,1410,0.2,40\n",
            "every instruction has a single frequency; at least one needs two to choose from",
            None,
        ),
        (
            GOOD.replace("0.2,15", "0.2,1\x005"),
            "a NUL byte in the text; save the profile as UTF-8 CSV",
            3,
        ),
        (HEADER + '0,forward,1410,0.1,"' + "9" * 200_000, "not CSV: ", 2),
        (
            f"rank,{HEADER}" + wide(HUGE_ROWS, "0") + wide(HUGE_ROWS, "1"),
            "energy_j must be from 1e-09 to 1e+09",
            None,
        ),
    ],
)
def test_a_profile_that_cannot_be_used_is_refused_in_one_line(
    text: str, message: str, line: int | None
) -> None:
    error = refusal(text)
    assert error.message.startswith(message)
    assert error.line == line


@pytest.mark.parametrize("column", ["frequency", "time", "energy"])
@pytest.mark.parametrize(
    ("value", "rule"),
    [
        ("fast", "must be a finite number"),
        ("nan", "must be a finite number"),
        ("1_000", "must be a finite number"),
        ("\u0661\u0664", "must be a finite number"),  # Arabic digits
        ("0", "must be a finite positive number"),
        ("1e999", "must be a finite positive number"),
        ("9" * 5000, "must be a finite positive number"),
        ("1e10", "must be from "),
    ],
)
def test_what_is_no_positive_number_is_refused(column: str, value: str, rule: str) -> None:
    cells = {"frequency": "900", "time": "0.5", "energy": "10", column: value}
    error = refusal(GOOD + f"0,forward,{cells['frequency']},{cells['time']},{cells['energy']}\n")
    assert error.message.startswith(f"{column} {rule}")
    assert len(error.message) < 160
    assert error.line == 6


def test_energies_of_modules_and_of_gpus_are_in_no_profile_together() -> None:
    scoped = GOOD.replace("\n", ",gpu\n").replace("energy,gpu", "energy,energy_scope")
    mixed = refusal(scoped.replace("1200,0.4,30,gpu", "1200,0.4,30,module"))
    assert mixed.line == 5
    assert "energy_scope must be the same in all rows" in mixed.message
    unknown = refusal(scoped.replace("1200,0.4,30,gpu", "1200,0.4,30,board"))
    assert unknown.message == "energy_scope must be gpu or module, not 'board'"
    assert unknown.line == 5


@pytest.mark.parametrize(
    ("content", "line"), [("é,x".encode("latin-1"), 1), (GOOD.encode() + b"\xff\xfe", 6)]
)
def test_a_file_that_is_not_utf_8_is_refused(tmp_path: Path, content: bytes, line: int) -> None:
    path = tmp_path / "profile.csv"
    path.write_bytes(content)
    for read in (read_stage_profile, read_pipeline_profiles):
        with pytest.raises(ProfileError, match="not UTF-8 text") as raised:
            read(path)
        assert raised.value.located("profile.csv").startswith(f"profile.csv:{line}: ")


@pytest.mark.parametrize("name", ["missing.csv", ".", "a\0b"])
def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path, name: str) -> None:
    for read in (read_stage_profile, read_pipeline_profiles):
        with pytest.raises(ProfileError, match=r"^cannot read the profile: ") as raised:
            read(tmp_path / name)
        assert raised.value.line is None


def json_row(**changes: object) -> dict[str, object]:
    row: dict[str, object] = {
        "stage": 0,
        "instruction": "forward",
        "frequency": 1410,
        "time": 0.1,
        "energy": 20,
    }
    return row | changes


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ({}, "the profile must be a list of rows with the keys stage,instruction,"),
        ([], "the profile has no rows; give at least forward and backward"),
        ([json_row(), 3], "row 2: must be an object with the keys stage,instruction,"),
        ([json_row(energy=True)], "row 1: energy must be a finite number, not True"),
        ([json_row(time=float("nan"))], "row 1: time must be a finite positive number, not nan"),
        ([json_row(time=10**5000)], "row 1: time must be a finite positive number, not a number"),
        ([json_row(), {"stage": 0}], "row 2: instruction is missing"),
        ([json_row(rank=0), json_row()], "row 2: rank is missing"),
        (
            [json_row(), json_row(frequency=900)],
            "row 1: stage 0 has no backward rows, nor both backward_input and backward_weight",
        ),
    ],
)
def test_json_rows_are_refused_by_their_number(rows: object, message: str) -> None:
    with pytest.raises(ProfileError) as raised:
        parse_stage_profile_rows(rows)
    assert raised.value.message.startswith(message)
    row, _, _ = message.partition(":")
    assert raised.value.line == (int(row.removeprefix("row ")) if row.startswith("row ") else None)
