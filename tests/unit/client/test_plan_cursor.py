from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flyball_client.errors import CodecError
from flyball_client.plan_cursor import CompiledPlan, PlanCursor, compile_plan
from flyball_client.wire import RankPlan

SUPPORTED_MHZ = (1410, 1200, 900)
INSTRUCTIONS: tuple[tuple[str | int, ...], ...] = (
    ("forward", 0, 1200),
    ("forward", 1, 900),
    ("backward", 0, 1200),
    ("backward", 1, 900),
)


def rank_plan(*instructions: tuple[str | int, ...], stage: int = 0) -> RankPlan:
    return RankPlan(
        job_id="gpt",
        version=1,
        stage=stage,
        first_step=None,
        instructions=instructions,
        predicted_iteration_time_s=1.0,
    )


def compiled(*instructions: tuple[str | int, ...]) -> CompiledPlan:
    return compile_plan(rank_plan(*instructions), stage=0, supported_mhz=SUPPORTED_MHZ)


def cursor_in_step(*instructions: tuple[str | int, ...]) -> PlanCursor:
    cursor = PlanCursor(compiled(*instructions))
    cursor.begin_step()
    return cursor


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["forward", "backward"]),
            st.integers(0, 3),
            st.sampled_from(SUPPORTED_MHZ),
            st.integers(0, 2),
        ),
        max_size=20,
    ),
    st.booleans(),
)
def test_a_step_that_goes_as_planned_gets_each_planned_clock(
    rows: list[tuple[str, int, int, int]], names_microbatches: bool
) -> None:
    cursor = PlanCursor(compiled(*rows))
    for _ in range(2):
        cursor.begin_step()
        clocks = [
            cursor.next_sm_clock_mhz(kind, microbatch if names_microbatches else None, chunk)
            for kind, microbatch, _, chunk in rows
        ]
        assert clocks == [mhz for _, _, mhz, _ in rows]
        assert cursor.num_unplanned == 0
        assert cursor.surprise is None
        cursor.end_step()


@pytest.mark.parametrize(
    ("kind", "microbatch", "chunk", "surprise"),
    [
        ("backward", None, 0, "backward at position 1, where the plan has forward of microbatch 1"),
        (
            "forward",
            2,
            0,
            "forward of microbatch 2 at position 1, where the plan has forward of microbatch 1",
        ),
        (
            "forward",
            1,
            1,
            "forward of microbatch 1 in chunk 1 at position 1,"
            " where the plan has forward of microbatch 1",
        ),
    ],
)
def test_after_a_surprise_the_rest_of_the_step_runs_at_the_highest_clock(
    kind: str, microbatch: int | None, chunk: int, surprise: str
) -> None:
    cursor = cursor_in_step(*INSTRUCTIONS)
    assert cursor.next_sm_clock_mhz("forward", 0, 0) == 1200
    assert cursor.next_sm_clock_mhz(kind, microbatch, chunk) == 1410
    assert cursor.next_sm_clock_mhz("forward", 1, 0) == 1410
    assert cursor.num_unplanned == 2
    assert cursor.surprise == surprise


def test_the_next_step_starts_afresh() -> None:
    cursor = cursor_in_step(*INSTRUCTIONS)
    cursor.next_sm_clock_mhz("recompute", None, 0)
    cursor.end_step()
    cursor.begin_step()
    assert cursor.next_sm_clock_mhz("forward", 0, 0) == 1200
    assert cursor.num_unplanned == 0


def test_more_instructions_than_planned_are_unplanned() -> None:
    cursor = cursor_in_step(("forward", 0, 900))
    assert cursor.next_sm_clock_mhz("forward", None, 0) == 900
    assert cursor.next_sm_clock_mhz("backward", None, 0) == 1410
    assert cursor.num_unplanned == 1
    assert cursor.surprise == "backward after all 1 planned instructions"


def test_between_steps_every_instruction_gets_the_highest_clock_uncounted() -> None:
    cursor = PlanCursor(compiled(*INSTRUCTIONS))
    assert cursor.next_sm_clock_mhz("forward", 0, 0) == 1410
    cursor.begin_step()
    cursor.end_step()
    assert cursor.next_sm_clock_mhz("forward", 0, 0) == 1410
    assert cursor.num_unplanned == 0
    assert cursor.surprise == "the step ended after 0 of 4 planned instructions"


def test_the_row_that_comes_next_may_be_taken_by_whoever_sees_it_come() -> None:
    cursor = cursor_in_step(*INSTRUCTIONS)
    assert cursor.next_sm_clock_mhz("forward", 0, 0) == 1200
    assert cursor.rows[cursor.position][:3] == ("forward", 1, 0)
    cursor.position += 1
    third = cursor.rows[cursor.position]
    assert cursor.next_sm_clock_mhz(*third[:3]) == third[3]
    assert cursor.num_unplanned == 0


@pytest.mark.parametrize("leave", ["before a step", "after a surprise", "after the last", "after"])
def test_where_nothing_is_expected_the_next_row_matches_no_instruction(leave: str) -> None:
    cursor = PlanCursor(compiled(*INSTRUCTIONS))
    if leave != "before a step":
        cursor.begin_step()
    if leave == "after a surprise":
        cursor.next_sm_clock_mhz("recompute", None, 0)
    elif leave == "after the last":
        for kind, microbatch, _ in INSTRUCTIONS:
            cursor.next_sm_clock_mhz(str(kind), int(microbatch), 0)
    elif leave == "after":
        cursor.end_step()
    assert cursor.rows[cursor.position][0] == ""


def test_a_clock_that_the_gpu_lacks_is_raised_to_the_next_above() -> None:
    plan = compiled(("forward", 0, 901), ("forward", 1, 900), ("backward", 0, 2000))
    assert plan.sm_clocks_mhz == (1200, 900, 1410)
    assert plan.num_raised == 2


@pytest.mark.parametrize(
    "instruction",
    [
        (),
        ("forward",),
        ("forward", 0),
        ("forward", "0", 1410),
        (0, "forward", 1410),
        ("forward", 0, 0),
        ("forward", 0, -1410),
        ("forward", 0, 1410, 0, 0),
        ("forward", 0, 1410, "a"),
    ],
)
def test_an_instruction_of_another_shape_is_refused(instruction: tuple[str | int, ...]) -> None:
    with pytest.raises(CodecError, match=r"^instructions\[1\] must be \[kind, microbatch, MHz\]"):
        compiled(("forward", 0, 1410), instruction)


def test_a_plan_for_another_stage_is_refused() -> None:
    with pytest.raises(CodecError, match="plan version 1 is for stage 1, and this is stage 0"):
        compile_plan(rank_plan(stage=1), stage=0, supported_mhz=SUPPORTED_MHZ)
