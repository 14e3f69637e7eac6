"""Stage profiles: valid ones, accepted forms of CSV and rows, and what is refused."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flyball_pipeline.instruction import InstructionKind
from flyball_profiles.stage_profile import OperatingPoint, ProfileError, StageProfile
from flyball_profiles.stage_profile_csv import (
    parse_stage_profile,
    parse_stage_profile_rows,
    stage_profile_rows,
    write_stage_profile,
)

FORWARD = InstructionKind.FORWARD
BACKWARD = InstructionKind.BACKWARD


def two_points(scale: float = 1.0) -> tuple[OperatingPoint, ...]:
    return (
        OperatingPoint(frequency_mhz=900, time_s=2 * scale, energy_j=3 * scale),
        OperatingPoint(frequency_mhz=1400, time_s=1 * scale, energy_j=5 * scale),
    )


def two_stages() -> StageProfile:
    return StageProfile(
        points={
            (stage, kind): two_points(1 + stage) for stage in (0, 1) for kind in (BACKWARD, FORWARD)
        },
        num_ranks_per_stage=(1, 4),
    )


@pytest.mark.parametrize("field", ["frequency_mhz", "time_s", "energy_j"])
@pytest.mark.parametrize("value", [0, -1, 1e-10, math.nan, math.inf, 1e300])
def test_an_operating_point_refuses_what_no_gpu_does(field: str, value: float) -> None:
    values: dict[str, float] = {"frequency_mhz": 1400, "time_s": 0.1, "energy_j": 10.0}
    values[field] = value
    with pytest.raises(ProfileError, match=f"^{field} must be .*, not "):
        OperatingPoint(**values)  # type: ignore[arg-type]  # a float clock is one of the faults


@pytest.mark.parametrize(
    ("stage", "kind", "frequency_mhz"),
    [(2, FORWARD, 900), (0, InstructionKind.RECOMPUTE, 900), (0, FORWARD, 901)],
)
def test_a_point_that_was_not_measured_is_an_error(
    stage: int, kind: InstructionKind, frequency_mhz: int
) -> None:
    with pytest.raises(ProfileError, match=f"no {kind} of stage {stage} at {frequency_mhz} MHz"):
        two_stages().at(stage, kind, frequency_mhz)


def test_the_highest_clock_is_that_of_any_instruction() -> None:
    lowest = OperatingPoint(frequency_mhz=900, time_s=2.0, energy_j=9.0)
    points = {(0, FORWARD): (lowest,), (0, BACKWARD): two_points()}
    profile = StageProfile(points=points, num_ranks_per_stage=(1,))
    assert profile.highest_mhz == 1400


def test_selected_stages_are_renumbered_and_keep_their_ranks() -> None:
    whole = two_stages()
    shorter = whole.select_stages((1,))
    assert shorter.num_stages == 1
    assert shorter.num_ranks_per_stage == (4,)
    assert shorter.points[0, BACKWARD] == whole.points[1, BACKWARD]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda whole: whole.select_stages((2,)), "no stage 2; the profile has 0 to 1"),
        (lambda whole: whole.select_stages((-1,)), "no stage -1"),
        (lambda whole: whole.select_stages(()), "the profile has no rows"),
        (lambda whole: replace(whole, num_ranks_per_stage=(1,)), "num_ranks_per_stage"),
        (lambda whole: replace(whole, num_ranks_per_stage=(1, 0)), "num_ranks_per_stage"),
        (
            lambda whole: replace(whole, points=whole.points | {(0, FORWARD): 2 * two_points()}),
            "stage 0 forward has the same frequency twice",
        ),
    ],
)
def test_a_profile_that_cannot_be_does_not_exist(
    change: Callable[[StageProfile], StageProfile], text: str
) -> None:
    with pytest.raises(ProfileError, match=text):
        change(two_stages())


SMALLEST = """\
stage,instruction,frequency,time,energy
0,forward,1410,0.1,20
0,forward,1200,0.2,15
0,backward,1410,0.3,40
0,backward,1200,0.4,30
"""

# Two tensor-parallel ranks; rank 1 is the slower at 1410 MHz, rank 0 at 1200 MHz.
WIDE = """\
rank,dp_rank,pp_rank,tp_rank,stage,instruction,frequency,time,energy
0,0,0,0,0,forward,1410,0.10,20
1,0,0,1,0,forward,1410,0.11,21
0,0,0,0,0,forward,1200,0.22,15
1,0,0,1,0,forward,1200,0.20,16
0,0,0,0,0,backward,1410,0.3,40
1,0,0,1,0,backward,1410,0.3,41
0,0,0,0,0,backward,1200,0.4,30
1,0,0,1,0,backward,1200,0.4,31
"""


def test_the_smallest_profile_is_read() -> None:
    profile = parse_stage_profile(SMALLEST)
    assert profile.num_stages == 1
    assert profile.num_ranks_per_stage == (1,)
    assert profile.points[0, FORWARD] == (
        OperatingPoint(frequency_mhz=1410, time_s=0.1, energy_j=20),
        OperatingPoint(frequency_mhz=1200, time_s=0.2, energy_j=15),
    )
    assert profile.at(0, BACKWARD, 1200) == OperatingPoint(
        frequency_mhz=1200, time_s=0.4, energy_j=30
    )


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("\ufeff" + SMALLEST, id="byte order mark"),
        pytest.param(SMALLEST.replace("\n", "\r\n"), id="CRLF"),
        pytest.param(SMALLEST.replace("\n", "\r"), id="CR"),
        pytest.param("\n \n" + SMALLEST.replace("\n", "\n\n"), id="blank lines"),
        pytest.param(SMALLEST.rstrip("\n"), id="no newline at the end"),
        pytest.param(SMALLEST.replace(",", " , ").replace("\n", " \n"), id="spaces"),
        pytest.param(SMALLEST.replace("1410", "1410.0"), id="clock as 1410.0"),
        pytest.param(SMALLEST.replace("1410", "1.41e3"), id="clock as 1.41e3"),
        pytest.param(SMALLEST.replace("1410", '"1410"'), id="quoted value"),
        pytest.param(SMALLEST.replace("0.1,20", ' "0.1" ,20'), id="spaces round a quoted value"),
        pytest.param(SMALLEST.replace("stage,", '"stage",'), id="quoted header"),
        pytest.param(SMALLEST.replace("\n", ",note\n"), id="extra column"),
        pytest.param(SMALLEST.replace("\n", ",\n"), id="comma at each line's end"),
        pytest.param(
            "\n".join(",".join(reversed(line.split(","))) for line in SMALLEST.splitlines()),
            id="columns in another order",
        ),
        pytest.param(
            "\n".join([SMALLEST.splitlines()[0], *reversed(SMALLEST.splitlines()[1:])]),
            id="rows in another order",
        ),
    ],
)
def test_the_same_profile_may_be_written_in_many_ways(text: str) -> None:
    assert parse_stage_profile(text) == parse_stage_profile(SMALLEST)


def test_ranks_of_a_stage_take_the_slowest_time_and_the_energy_of_all() -> None:
    profile = parse_stage_profile(WIDE)
    assert profile.num_ranks_per_stage == (2,)
    assert profile.points[0, FORWARD] == (
        OperatingPoint(frequency_mhz=1410, time_s=0.11, energy_j=41, rank_waiting_s=0.01),
        OperatingPoint(frequency_mhz=1200, time_s=0.22, energy_j=31, rank_waiting_s=0.02),
    )


@pytest.mark.parametrize("kept", [0, 3])
def test_any_one_rank_column_makes_the_key(kept: int) -> None:
    lines = [line.split(",") for line in WIDE.splitlines()]
    narrow = "\n".join(",".join([cells[kept], *cells[4:]]) for cells in lines)
    assert parse_stage_profile(narrow) == parse_stage_profile(WIDE)


def test_json_rows_are_read_like_csv_rows() -> None:
    rows = [
        {"stage": 0, "instruction": "forward", "frequency": 1410.0, "time": 0.1, "energy": 20},
        {"stage": 0, "instruction": "forward", "frequency": 1200, "time": 0.2, "energy": 15},
        {"stage": 0, "instruction": "backward", "frequency": 1410, "time": 0.3, "energy": 40},
        {"stage": "0", "instruction": "backward", "frequency": "1200", "time": 0.4, "energy": 30},
    ]
    assert parse_stage_profile_rows(rows) == parse_stage_profile(SMALLEST)


def test_a_profile_is_written_by_stage_then_kind_then_falling_clock() -> None:
    shuffled = "\n".join([SMALLEST.splitlines()[0], *sorted(SMALLEST.splitlines()[1:])])
    assert write_stage_profile(parse_stage_profile(shuffled)) == SMALLEST.replace(
        ",20\n", ",20.0\n"
    ).replace(",15\n", ",15.0\n").replace(",40\n", ",40.0\n").replace(",30\n", ",30.0\n")


json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=8,
)
json_rows = st.lists(
    st.fixed_dictionaries(
        {},
        optional={
            key: st.sampled_from([0, 1, "forward", 10**400, 10**5000]) | json_values
            for key in ("stage", "instruction", "frequency", "time", "energy", "rank", "num_ranks")
        },
    )
)


@settings(max_examples=30)
@given(st.one_of(json_values, json_rows))
def test_any_json_either_parses_or_is_refused_in_one_line(rows: object) -> None:
    try:
        parse_stage_profile_rows(rows)
    except ProfileError as error:
        assert len(error.located("body").splitlines()) == 1


def test_the_scatter_of_times_is_read_from_what_the_profiler_writes() -> None:
    header, *rows = SMALLEST.splitlines()
    # 16 runs with a standard error of 2 ms: 8 ms each, of 100; the last row has its own jitter.
    cells = ["0.002,16,", ",16,", ",,", "0.001,16,0.25"]
    lines = [f"{header},time_error,num_repetitions,jitter"]
    lines += [f"{row},{cell}" for row, cell in zip(rows, cells, strict=True)]
    profile = parse_stage_profile("\n".join(lines))
    points = [*profile.points[0, FORWARD], *profile.points[0, BACKWARD]]
    assert [(point.time_error_s, point.jitter) for point in points] == [
        (0.002, pytest.approx(0.08)),
        (0.0, 0.0),
        (0.0, 0.0),
        (0.001, 0.25),
    ]


@pytest.mark.parametrize("cell", ["-0.1", "nan", "1.1", "x"])
def test_a_jitter_out_of_its_bounds_is_refused_with_its_line(cell: str) -> None:
    text = "\n".join(f"{row},{cell}" for row in SMALLEST.splitlines()[1:])
    with pytest.raises(ProfileError, match=r"^jitter must be") as caught:
        parse_stage_profile(f"stage,instruction,frequency,time,energy,jitter\n{text}")
    assert caught.value.line == 2


def test_a_stage_scatters_as_its_slowest_rank() -> None:
    rows = [f"{row},0.0{number}" for number, row in enumerate(WIDE.splitlines()[1:], start=1)]
    profile = parse_stage_profile("\n".join([f"{WIDE.splitlines()[0]},jitter", *rows]))
    # Of equally slow ranks the one that scatters more.
    assert [point.jitter for point in profile.points[0, FORWARD]] == [0.02, 0.03]
    assert [point.jitter for point in profile.points[0, BACKWARD]] == [0.06, 0.08]


def test_rows_of_other_instructions_are_left_out_and_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    profile = two_stages()
    header, *rows = write_stage_profile(profile).splitlines()
    columns = header.split(",")
    others = [rows[0].split(","), rows[1].split(",")]
    for cells in others:
        cells[columns.index("instruction")] = "load"
    text = "\n".join([header, rows[0], *(",".join(cells) for cells in others), *rows[1:]])
    assert parse_stage_profile(text) == profile
    assert caplog.messages == ["rows of instruction 'load' are left out (2, the first in line 3)"]
    caplog.clear()
    of_json = stage_profile_rows(profile)
    assert parse_stage_profile_rows([*of_json, of_json[0] | {"instruction": "load"}]) == profile
    assert caplog.messages == [
        f"rows of instruction 'load' are left out (1, the first in row {len(of_json) + 1})"
    ]
    for name in ("Forward", "foward", "fwd", "bwd", "steps", ""):
        with pytest.raises(ProfileError, match=f"unknown instruction {name!r}; known: backward, "):
            parse_stage_profile_rows([*of_json, of_json[0] | {"instruction": name}])


def test_times_that_look_like_milliseconds_are_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    header = "stage,instruction,frequency,time,energy"
    rows = [
        f"{stage},{kind},{mhz},{factor * time},{factor * 3}"
        for stage in (0, 1)
        for kind, time in (("forward", 5000), ("backward", 9000))
        for mhz, factor in ((1410, 1), (1200, 1.1))
    ]
    parse_stage_profile("\n".join([header, *rows]))
    assert caplog.messages == [
        "every forward of the profile takes 5000 s or more: times count as s, energies as J;"
        " divide a column in ms or mJ by 1000"
    ]
