"""Each way in which a profile can be unusable is one clear line at the right place."""

from __future__ import annotations

from pathlib import Path

import pytest

from flyball_profiles.stage_profile import ProfileError
from flyball_profiles.stage_profile_csv import (
    parse_stage_profile,
    parse_stage_profile_rows,
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


@pytest.mark.parametrize("text", ["", "\n", "\ufeff", "  \r\n \n"])
def test_an_empty_file_is_refused(text: str) -> None:
    error = refusal(text)
    assert error.message == f"the profile is empty; its first line must be {HEADER.strip()}"
    assert error.line is None


def test_a_header_without_rows_is_refused() -> None:
    assert refusal(HEADER).message == (
        "the profile has no rows; give at least forward and backward"
    )


@pytest.mark.parametrize("column", ["stage", "instruction", "frequency", "time", "energy"])
def test_a_missing_column_is_named(column: str) -> None:
    error = refusal("\n" + GOOD.replace(column, "other", 1))
    assert error.message.startswith(f"missing column {column}; the header must have ")
    assert error.line == 2


def test_all_missing_columns_are_named() -> None:
    assert refusal("stage;instruction;time\n").message.startswith(
        "missing columns stage, instruction, frequency, time, energy; "
    )


@pytest.mark.parametrize("column", ["time", "rank", "num_ranks"])
def test_a_column_that_stands_twice_is_refused(column: str) -> None:
    error = refusal(f"{column},{column},{HEADER}")
    assert error.message == f"the column {column} stands twice in the header"
    assert error.line == 1


@pytest.mark.parametrize("instruction", ["Forward", "fwd", "", "1", "for ward"])
def test_an_unknown_instruction_is_refused_with_the_known_ones(instruction: str) -> None:
    error = refusal(GOOD + f"0,{instruction},900,1,1\n")
    assert error.message == (
        f"unknown instruction {instruction!r};"
        " known: backward, backward_input, backward_weight, forward, recompute"
    )
    assert error.line == 6


@pytest.mark.parametrize("column", ["frequency", "time", "energy"])
@pytest.mark.parametrize(
    ("value", "rule"),
    [
        ("fast", "must be a finite number"),
        ("nan", "must be a finite number"),
        ("inf", "must be a finite number"),
        ("-inf", "must be a finite number"),
        ("1_000", "must be a finite number"),
        ("1 000", "must be a finite number"),
        ("0x10", "must be a finite number"),
        ("\u0661\u0664", "must be a finite number"),
        ("-1", "must be a finite positive number"),
        ("0", "must be a finite positive number"),
        ("-0.0", "must be a finite positive number"),
        ("1e999", "must be a finite positive number"),
        ("9" * 5000, "must be a finite positive number"),
        ("1e300", "must be from "),
        ("1e10", "must be from "),
    ],
)
def test_what_is_no_positive_number_is_refused(column: str, value: str, rule: str) -> None:
    cells = {"frequency": "900", "time": "0.5", "energy": "10", column: value}
    error = refusal(GOOD + f"0,forward,{cells['frequency']},{cells['time']},{cells['energy']}\n")
    assert error.message.startswith(f"{column} {rule}")
    assert len(error.message) < 160
    assert error.line == 6


@pytest.mark.parametrize("column", ["stage", "frequency", "time", "energy"])
def test_an_empty_cell_is_named_by_its_column(column: str) -> None:
    cells = {"stage": "0", "frequency": "900", "time": "0.5", "energy": "10", column: " "}
    error = refusal(GOOD + ",".join([cells.pop("stage"), "forward", *cells.values()]))
    assert error.message == f"{column} is empty; give a number"
    assert error.line == 6


def test_a_clock_between_two_megahertz_is_refused() -> None:
    error = refusal(GOOD.replace("1200", "1200.5", 1))
    assert error.message == "frequency must be a whole number of MHz, not '1200.5'"
    assert error.line == 3


@pytest.mark.parametrize("stage", ["-1", "0.5", "1e999", "1e300", "2000000"])
def test_a_stage_that_is_no_count_is_refused(stage: str) -> None:
    error = refusal(GOOD + f"{stage},forward,900,1,1\n")
    assert error.message == f"stage must be a whole number from 0 to 1000000, not {stage!r}"
    assert error.line == 6


def test_a_stage_that_is_text_is_refused() -> None:
    assert refusal(GOOD + "first,forward,900,1,1\n").message == (
        "stage must be a finite number, not 'first'"
    )


@pytest.mark.parametrize(("row", "count"), [("0,forward,900,1", 4), ("0,forward,900,1,1,1", 6)])
def test_a_row_of_another_length_than_the_header_is_refused(row: str, count: int) -> None:
    error = refusal(GOOD + row)
    assert error.message == f"{count} cells in the row for 5 columns in the header"
    assert error.line == 6


def test_lines_are_counted_through_blank_lines_and_line_feeds_in_quotes() -> None:
    text = 'note,"a\nb",' + HEADER + "\n" + 'x,"c\nd",0,forward,fast,1,1\n'
    assert refusal(text).line == 4


def test_the_same_key_twice_names_the_first_line() -> None:
    error = refusal(GOOD + "\n0,forward,1410.0,0.7,7\n")
    assert error.message == "stage 0 forward at 1410 MHz is given twice; first in line 2"
    assert error.line == 7


def test_the_same_key_twice_on_one_rank_names_the_rank() -> None:
    rows = wide(FORWARD_ROWS + BACKWARD_ROWS, "3,0,1")
    error = refusal(WIDE_HEADER + rows + "3,0,1,0,forward,1410,0.1,20\n")
    assert error.message == "stage 0 forward at 1410 MHz on rank 3 is given twice; first in line 2"


def test_a_clock_measured_on_one_rank_only_names_rank_and_clock() -> None:
    text = (
        WIDE_HEADER
        + wide(FORWARD_ROWS + BACKWARD_ROWS, "0,0,0")
        + wide(FORWARD_ROWS + BACKWARD_ROWS, "1,0,1")
        + "1,0,1,0,forward,1305,0.15,17\n"
    )
    error = refusal(text)
    assert error.message == ("stage 0 forward at 1305 MHz was measured on rank 1 but not on rank 0")
    assert error.line == 10


def test_an_instruction_measured_on_one_rank_only_names_the_rank_by_its_coordinates() -> None:
    text = (
        "dp_rank,tp_rank,"
        + HEADER
        + wide(FORWARD_ROWS + BACKWARD_ROWS, "0,0")
        + wide(FORWARD_ROWS, "1,2")
    )
    error = refusal(text)
    assert error.message == (
        "stage 0 backward at 1410 MHz was measured on dp_rank 0, tp_rank 0"
        " but not on dp_rank 1, tp_rank 2"
    )
    assert error.line == 4


@pytest.mark.parametrize("rank", ["-1", "x", "0.5", ""])
def test_a_rank_that_is_no_count_is_refused(rank: str) -> None:
    error = refusal(f"rank,{HEADER}{rank},0,forward,1410,0.1,20\n")
    assert error.message.startswith("rank ")
    assert error.line == 2


def test_the_number_of_ranks_is_one_for_a_stage() -> None:
    text = GOOD.replace("\n", ",2\n").replace("energy,2", "energy,num_ranks")
    error = refusal(text.replace("0.4,30,2", "0.4,30,3"))
    assert error.message == (
        "num_ranks of stage 0 must be the same in all its rows: 2 before, 3 here"
    )
    assert error.line == 5
    assert refusal(text.replace(",2\n", ",0\n")).message == "num_ranks must be at least 1"


@pytest.mark.parametrize("rows", ["", "0,backward_input,1410,1,1\n0,backward_input,1200,1,1\n"])
def test_a_stage_that_cannot_run_backward_is_refused_at_its_first_line(rows: str) -> None:
    error = refusal(HEADER + "\n" + FORWARD_ROWS + rows)
    assert error.message == (
        "stage 0 has no backward rows, nor both backward_input and backward_weight"
    )
    assert error.line == 3


def test_a_stage_without_forward_is_refused() -> None:
    assert refusal(HEADER + BACKWARD_ROWS).message == "stage 0 has no forward rows"


def test_a_skipped_stage_is_refused_at_the_stage_after_the_gap() -> None:
    later = (FORWARD_ROWS + BACKWARD_ROWS).replace("0,", "2,", 1).replace("\n0,", "\n2,")
    error = refusal(GOOD + later)
    assert error.message == "stage 1 is missing; stages count from 0 without gaps"
    assert error.line == 6


def test_stages_that_count_from_one_are_refused() -> None:
    rows = (FORWARD_ROWS + BACKWARD_ROWS).replace("0,", "1,", 1).replace("\n0,", "\n1,")
    error = refusal(HEADER + rows)
    assert error.message == "stage 0 is missing; stages count from 0 without gaps"
    assert error.line == 2


def test_a_single_frequency_is_refused() -> None:
    error = refusal(HEADER + "0,forward,1410,0.1,20\n" + BACKWARD_ROWS)
    assert error.message == (
        "stage 0 forward has a single frequency; at least two are needed to choose from"
    )
    assert error.line == 2


def test_a_nul_byte_is_refused_at_its_line() -> None:
    error = refusal(GOOD.replace("0.2,15", "0.2,1\x005"))
    assert error.message == "a NUL byte in the text; save the profile as UTF-8 CSV"
    assert error.line == 3


def test_a_cell_without_end_is_refused() -> None:
    error = refusal(HEADER + '0,forward,1410,0.1,"' + "9" * 200_000)
    assert error.message.startswith("not CSV: ")
    assert error.line == 2


def test_energies_that_add_up_to_no_gpu_are_refused() -> None:
    rows = (FORWARD_ROWS + BACKWARD_ROWS).replace(",20\n", ",9e8\n")
    text = f"rank,{HEADER}" + wide(rows, "0") + wide(rows, "1")
    assert refusal(text).message.startswith("energy_j must be from 1e-09 to 1e+09")


@pytest.mark.parametrize(
    ("content", "line"), [("é,x".encode("latin-1"), 1), (GOOD.encode() + b"\xff\xfe", 6)]
)
def test_a_file_that_is_not_utf_8_is_refused(tmp_path: Path, content: bytes, line: int) -> None:
    path = tmp_path / "profile.csv"
    path.write_bytes(content)
    with pytest.raises(ProfileError, match="not UTF-8 text") as raised:
        read_stage_profile(path)
    assert raised.value.located("profile.csv").startswith(f"profile.csv:{line}: ")


@pytest.mark.parametrize("name", ["missing.csv", ".", "a\0b"])
def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ProfileError, match=r"^cannot read the profile: ") as raised:
        read_stage_profile(tmp_path / name)
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
        ("stage", "the profile must be a list of rows with the keys stage,instruction,"),
        ([], "the profile has no rows; give at least forward and backward"),
        ([json_row(), 3], "row 2: must be an object with the keys stage,instruction,"),
        ([json_row(time=None)], "row 1: time must be a finite number, not None"),
        ([json_row(energy=True)], "row 1: energy must be a finite number, not True"),
        ([json_row(time=float("nan"))], "row 1: time must be a finite positive number, not nan"),
        ([json_row(time=10**400)], "row 1: time must be a finite positive number, not 1000000"),
        ([json_row(stage=[0])], "row 1: stage must be a finite number, not [0]"),
        ([json_row(instruction=7)], "row 1: unknown instruction 7; known: backward, "),
        ([json_row(), {"stage": 0}], "row 2: instruction is missing"),
        ([json_row(rank=0), json_row()], "row 2: rank is missing"),
        (
            [json_row(), json_row(time=1)],
            "row 2: stage 0 forward at 1410 MHz is given twice; first in row 1",
        ),
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
