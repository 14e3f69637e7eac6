"""Stage profiles whose rows say which model chunk of the stage they are of."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flyball_pipeline.instruction import InstructionKind
from flyball_profiles.gpu_conditions import GpuConditions
from flyball_profiles.stage_profile import EnergyScope, OperatingPoint, ProfileError, StageProfile
from flyball_profiles.stage_profile_csv import (
    parse_pipeline_profiles,
    parse_stage_profile,
    parse_stage_profile_rows,
    stage_profile_rows,
    write_stage_profile,
)
from flyball_server.jobs.store.sql.sql_rows import (
    profile_document,
    profile_from_document,
    profile_from_text,
)

FORWARD, BACKWARD = InstructionKind.FORWARD, InstructionKind.BACKWARD
HEADER = "stage,instruction,frequency,time,energy,chunk\n"


def rows(
    chunk: str,
    time_s: float,
    *,
    kinds: tuple[str, ...] = ("forward", "backward"),
    clocks_mhz: tuple[int, ...] = (1410, 1200),
    stage: int = 0,
    after: str = "",
) -> str:
    """Each kind at each clock, a quarter slower at each lower one, of 8 J."""
    return "".join(
        f"{stage},{kind},{clock_mhz},{time_s * 1.25**lower},8,{chunk}{after}\n"
        for kind in kinds
        for lower, clock_mhz in enumerate(clocks_mhz)
    )


def point(frequency_mhz: int, time_s: float, energy_j: float) -> OperatingPoint:
    return OperatingPoint(frequency_mhz=frequency_mhz, time_s=time_s, energy_j=energy_j)


def test_each_chunk_has_a_profile_and_the_stage_takes_as_long_as_all() -> None:
    profile = parse_stage_profile(HEADER + rows("0", 1.0) + rows("1", 0.5))
    assert [chunk.at(0, FORWARD, 1410).time_s for chunk in profile.chunks] == [1.0, 0.5]
    assert profile.points[0, FORWARD] == (point(1410, 1.5, 16), point(1200, 1.875, 16))
    assert profile.by_chunk(2) == profile.chunks
    assert profile.by_chunk(1) == (profile,)


def test_the_whole_stage_has_the_clocks_and_instructions_that_all_chunks_share() -> None:
    text = HEADER + rows("0", 1.0, clocks_mhz=(1410, 1200, 900))
    text += rows("1", 0.5, clocks_mhz=(1410, 900), kinds=("forward", "backward", "recompute"))
    profile = parse_stage_profile(text)
    assert [p.frequency_mhz for p in profile.points[0, FORWARD]] == [1410, 900]
    assert (0, InstructionKind.RECOMPUTE) not in profile.points
    assert (0, InstructionKind.RECOMPUTE) in profile.chunks[1].points


def test_a_whole_stage_that_was_measured_too_is_as_measured() -> None:
    text = HEADER + rows("", 1.4) + rows("0", 1.0) + rows("1", 0.5)
    profile = parse_stage_profile(text)
    assert profile.at(0, FORWARD, 1410) == point(1410, 1.4, 8)
    assert profile.chunks[1].at(0, FORWARD, 1410) == point(1410, 0.5, 8)


def test_independent_scatter_of_chunks_adds_up_by_squares() -> None:
    columns = f"{HEADER.strip()},time_error,jitter\n"
    text = columns + rows("0", 1.0, after=",0.003,0.3") + rows("1", 3.0, after=",0.004,0.4")
    points = parse_stage_profile(text).points[0, FORWARD]
    assert points[0].time_error_s == pytest.approx(0.005)
    assert points[0].jitter == pytest.approx((0.3**2 + 1.2**2) ** 0.5 / 4)


def test_ranks_of_a_chunk_take_the_slowest_time_and_the_energy_of_all() -> None:
    text = HEADER.replace("\n", ",tp_rank\n")
    for rank, time_s in ((0, 1.0), (1, 2.0)):
        text += rows("0", time_s, after=f",{rank}") + rows("1", 3 - time_s, after=f",{rank}")
    profile = parse_stage_profile(text)
    assert profile.num_ranks_per_stage == (2,)
    of_chunk = replace(point(1410, 2, 16), rank_waiting_s=1.0)
    assert [chunk.at(0, BACKWARD, 1410) for chunk in profile.chunks] == [of_chunk] * 2
    assert profile.at(0, BACKWARD, 1410) == replace(point(1410, 4, 32), rank_waiting_s=2.0)


@pytest.mark.parametrize(
    ("text", "said", "line"),
    [
        (rows("1", 1.0) + rows("2", 1.0), "chunk 0 is missing; chunks count from 0", 2),
        (rows("0", 1.0) + rows("2", 1.0), "chunk 1 is missing; chunks count from 0", 6),
        (
            rows("0", 1.0) + rows("1", 1.0) + rows("1", 1.0, stage=1),
            "chunk 1 has different stages or ranks",
            None,
        ),
        (
            rows("", 1.0) + rows("", 1.0, stage=1) + rows("0", 1.0),
            "chunk 0 has different stages or ranks",
            None,
        ),
        (rows("0", 1.0, kinds=("forward",)), "chunk 0: stage 0 has no backward rows", 2),
        (rows("", 1.0) + rows("0", 1.0, stage=1), "chunk 0: stage 0 is missing", 6),
        (rows("0", 1.0) + rows("0", 1.0), "chunk 0: stage 0 chunk 0 forward at 1410 MHz is giv", 6),
        (
            rows("0", 1.0) + rows("1", 1.0, clocks_mhz=(1000, 900)),
            "the chunks together, each at the same clock: ",
            None,
        ),
        (
            rows("0", 1.0)
            + rows("1", 1.0, kinds=("forward", "backward_input", "backward_weight")),
            "the chunks together, each at the same clock: stage 0 has no backward rows",
            None,
        ),
        (rows("-1", 1.0), "chunk must be a whole number from 0 to 1000000, not '-1'", 2),
    ],
    ids=[
        "first missing", "middle missing", "stage more", "stage less", "no backward", "other stage",
        "given twice", "no clock shared", "no backward shared", "negative",
    ],
)  # fmt: skip
def test_chunks_that_cannot_be_used_are_refused_with_their_line(
    text: str, said: str, line: int | None
) -> None:
    with pytest.raises(ProfileError) as raised:
        parse_stage_profile(HEADER + text)
    assert said in raised.value.message
    assert raised.value.line == line
    assert len(str(raised.value).splitlines()) == 1


def test_another_number_of_chunks_than_measured_is_refused() -> None:
    profile = parse_stage_profile(HEADER + rows("0", 1.0) + rows("1", 0.5))
    for num_chunks in (0, 3):
        with pytest.raises(ProfileError, match=f"has 2 chunks, and {num_chunks} are run; measure"):
            profile.by_chunk(num_chunks)
    whole = parse_stage_profile(HEADER + rows("", 1.0))
    with pytest.raises(ProfileError, match="has no chunks, and 2 are run; measure each chunk"):
        whole.by_chunk(2)


def test_pipelines_whose_chunks_differ_in_their_instructions_are_refused() -> None:
    """Their whole stages are alike; the chunk of one has its backward in two parts."""
    text = HEADER.replace("\n", ",dp_rank\n")
    split = ("forward", "backward_input", "backward_weight")
    for dp_rank, kinds in ((0, ("forward", "backward")), (1, split)):
        text += rows("", 2.0, after=f",{dp_rank}")
        text += rows("0", 1.0, after=f",{dp_rank}", kinds=kinds)
        text += rows("1", 1.0, after=f",{dp_rank}", kinds=kinds)
    with pytest.raises(ProfileError, match=r"was measured on dp_rank \d but not on dp_rank"):
        parse_pipeline_profiles(text)


def test_pipelines_of_different_chunks_are_refused() -> None:
    text = HEADER.replace("\n", ",dp_rank\n") + rows("0", 1.0, after=",0")
    text += rows("0", 1.0, after=",1") + rows("1", 1.0, after=",1")
    with pytest.raises(ProfileError, match="measured with the same number of chunks"):
        parse_pipeline_profiles(text)


def test_json_rows_may_name_chunks_like_csv_rows() -> None:
    header, *lines = (HEADER + rows("", 1.4) + rows("0", 1.0) + rows("1", 0.5)).splitlines()
    csv_rows = [dict(zip(header.split(","), line.split(","), strict=True)) for line in lines]
    as_json = [{**row, "chunk": int(row["chunk"]) if row["chunk"] else None} for row in csv_rows]
    without_nulls = [
        {key: value for key, value in row.items() if value is not None} for row in as_json
    ]
    expected = parse_stage_profile(HEADER + "\n".join(lines))
    for written in (csv_rows, as_json, without_nulls):
        assert parse_stage_profile_rows(written) == expected


quantities = st.floats(min_value=1e-6, max_value=1e6, allow_subnormal=False)


@st.composite
def instruction_points(draw: st.DrawFn) -> tuple[OperatingPoint, ...]:
    """Points of which the highest may be that of a clock that was not held."""
    clocks_mhz = draw(st.sets(st.integers(1, 3000), min_size=2, max_size=3))
    return tuple(
        OperatingPoint(
            frequency_mhz=clock_mhz,
            time_s=draw(quantities),
            energy_j=draw(quantities),
            rank_waiting_s=draw(st.sampled_from([0.0, 0.01])),
            time_error_s=draw(st.sampled_from([0.0, 0.002])),
            jitter=draw(st.sampled_from([0.0, 0.08, 1.0])),
            held_by=draw(st.sampled_from(["", "power thermal"]))
            if clock_mhz == max(clocks_mhz)
            else "",
        )
        for clock_mhz in clocks_mhz
    )


backward_kinds = st.sampled_from(
    [
        (BACKWARD,),
        (InstructionKind.BACKWARD_INPUT, InstructionKind.BACKWARD_WEIGHT),
        tuple(kind for kind in InstructionKind if kind is not FORWARD),
    ]
)


@st.composite
def any_profiles(draw: st.DrawFn) -> StageProfile:
    """One or two stages, of up to three chunks with rows of the whole stages beside them."""
    num_ranks = tuple(draw(st.lists(st.integers(1, 64), min_size=1, max_size=2)))
    some_conditions = st.sampled_from([None, GpuConditions(power_limit_w=299.5, ecc=True)])
    scope = draw(st.none() | st.sampled_from(EnergyScope))
    conditions = tuple(draw(some_conditions) for _ in num_ranks)
    profiles = [
        StageProfile(
            points={
                (stage, kind): draw(instruction_points())
                for stage in range(len(num_ranks))
                for kind in (FORWARD, *draw(backward_kinds))
            },
            num_ranks_per_stage=num_ranks,
        )
        for _ in range(draw(st.integers(1, 4)))
    ]
    chunks = tuple(profiles[1:])
    return replace(profiles[0], chunks=chunks, energy_scope=scope, conditions=conditions)


@settings(max_examples=30)
@given(any_profiles())
def test_writing_and_reading_gives_the_profile_back(profile: StageProfile) -> None:
    assert parse_stage_profile(write_stage_profile(profile)) == profile
    assert parse_stage_profile_rows(stage_profile_rows(profile)) == profile
    assert profile_from_document(profile_document(profile)) == profile
    assert profile_from_text(json.dumps(profile_document(profile))) == profile
    assert pickle.loads(pickle.dumps(profile)) == profile  # noqa: S301 - of this test
