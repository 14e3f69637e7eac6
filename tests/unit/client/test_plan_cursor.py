"""A rank's plans: the one that is run, instruction by instruction, and those that wait."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.client.memory_planner import Instruction, compiled_plan, plan_of
from tests.unit.client.recording_gpu import SUPPORTED_MHZ

from flyball_client.session.active_plan import PendingPlans, compile_plan
from flyball_client.session.plan_cursor import CompiledPlan, PlanCursor
from flyball_wire.errors import CodecError

INSTRUCTIONS: tuple[tuple[str, int, int], ...] = (
    ("forward", 0, 1200),
    ("forward", 1, 900),
    ("backward", 0, 1200),
    ("backward", 1, 900),
)


CYCLE_MHZ = ((1400, 1400, 1400, 1400), (1200, 900, 1200, 900), (900, 900, 900, 900))


@pytest.mark.parametrize(
    ("kind", "microbatch", "chunk", "came"),
    [
        ("backward", None, 0, "backward"),
        ("forward", 2, 0, "forward of microbatch 2"),
        ("forward", 1, 1, "forward of microbatch 1 in chunk 1"),
    ],
)
def test_after_a_surprise_the_rest_of_the_step_runs_at_the_highest_clock(
    kind: str, microbatch: int | None, chunk: int, came: str
) -> None:
    cursor = PlanCursor(compiled_plan(*INSTRUCTIONS))
    # Between steps every instruction does, and is not counted.
    assert cursor.next_sm_clock_mhz("forward", 0, 0) == 1400
    cursor.begin_step(0)
    assert cursor.next_sm_clock_mhz("forward", 0, 0) == 1200
    assert cursor.next_sm_clock_mhz(kind, microbatch, chunk) == 1400
    assert cursor.next_sm_clock_mhz("forward", 1, 0) == 1400
    assert cursor.num_unplanned == 2
    assert cursor.surprise == f"{came} at position 1, where the plan has forward of microbatch 1"
    cursor.begin_step(1)
    cursor.end_step()
    assert cursor.surprise == "the step ended after 0 of 4 planned instructions"
    assert cursor.num_unplanned == 0


def test_a_clock_that_the_gpu_lacks_is_raised_and_another_stages_plan_is_refused() -> None:
    plan = compiled_plan(("forward", 0, 901), ("forward", 1, 900), ("backward", 0, 2000))
    assert plan.sm_clocks_mhz == (1200, 900, 1400)
    assert plan.num_raised == 2
    with pytest.raises(CodecError, match="plan version 1 is for stage 1, this rank runs stage 0"):
        compile_plan(plan_of(stage=1), stage=0, supported_mhz=SUPPORTED_MHZ)


@pytest.mark.parametrize(
    "instruction", [(2, 0, 0, 0), (0, -1, 0, 0), (0, 0, 2**31, 0), (0, 0, 0, 1)]
)
def test_an_instruction_that_does_not_fit_is_refused(
    instruction: tuple[int, int, int, int],
) -> None:
    plan = plan_of(("forward", 0, 1400), ("backward", 0, 1400))
    wrong = replace(plan, instructions=(plan.instructions[0], instruction))
    with pytest.raises(CodecError, match=r"^instructions\[1\] must be \[kind, microbatch, chunk, "):
        compile_plan(wrong, stage=0, supported_mhz=SUPPORTED_MHZ)
    none = replace(plan, sm_clocks_mhz=(0,))
    with pytest.raises(CodecError, match="must have clocks above 0 MHz only"):
        compile_plan(none, stage=0, supported_mhz=SUPPORTED_MHZ)


Row = tuple[str, int, int, int]


@st.composite
def plans(draw: st.DrawFn) -> tuple[list[Row], list[tuple[int, ...]]]:
    """Instructions, and the clocks of up to four steps; of none, those of the instructions."""
    clocks, microbatches, chunks = (
        st.sampled_from(SUPPORTED_MHZ),
        st.integers(0, 3),
        st.integers(0, 2),
    )
    kinds = st.sampled_from(["forward", "backward"])
    rows = draw(st.lists(st.tuples(kinds, microbatches, clocks, chunks), max_size=12))
    return rows, draw(st.lists(st.tuples(*len(rows) * [clocks]), max_size=4))


@given(
    plan=plans(),
    first_step=st.integers(0, 50),
    # Steps may be left out, and a rank may take the plan up late.
    steps_since=st.lists(st.integers(0, 30)).map(sorted),
    names_microbatches=st.booleans(),
)
def test_each_step_that_goes_as_planned_runs_the_row_of_the_cycle_that_its_number_says(
    plan: tuple[list[Row], list[tuple[int, ...]]],
    first_step: int,
    steps_since: list[int],
    names_microbatches: bool,
) -> None:
    rows, cycle_mhz = plan
    cursor = PlanCursor(compiled_plan(*rows, cycle_mhz=cycle_mhz), first_step=first_step)
    of_steps = cycle_mhz or [tuple(row[2] for row in rows)]
    for since in steps_since:
        cursor.begin_step(first_step + since)
        clocks_mhz = tuple(
            cursor.next_sm_clock_mhz(kind, microbatch if names_microbatches else None, chunk)
            for kind, microbatch, _, chunk in rows
        )
        cursor.end_step()
        assert clocks_mhz == of_steps[since % len(of_steps)]
        assert (cursor.num_unplanned, cursor.surprise) == (0, None)


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"cycle": (0, 3)}, "cycle must have indices into cycle_rows"),
        ({"cycle_rows": ("AAAA",)}, r"cycle_rows\[0\] must have a clock for each of the 4"),
        ({"cycle_rows": ("AA=A",)}, r"cycle_rows\[0\] must be base64"),
        ({"cycle_rows": ("AAAAAw==",)}, r"cycle_rows\[0\] must have indices into sm_clocks_mhz"),
        ({"cycle_rows": 200_000 * ("AAAA",)}, "200000 rows of 4 clocks, of which a rank takes"),
    ],
)
def test_a_cycle_that_does_not_fit_is_refused(wrong: dict[str, Any], text: str) -> None:
    plan = plan_of(*INSTRUCTIONS, cycle_mhz=CYCLE_MHZ)
    plan = replace(plan, **{"cycle": (0,)} | wrong)
    with pytest.raises(CodecError, match=text):
        compile_plan(plan, stage=0, supported_mhz=SUPPORTED_MHZ)


# Clocks 1200, 1200, 900, 900, 900 MHz, and 1200 of the next step's first.
RUN: tuple[Instruction, ...] = tuple(
    ("forward", number, mhz) for number, mhz in enumerate((1200, 1200, 900, 900, 900))
)


@pytest.mark.parametrize(
    ("requests", "text"),
    [
        (((2, 2, 0.0),), r"requests\[0\] must be \[position, after_position, offset_s\]"),
        (((2, 1, 0.0), (6, 4, 0.0)), r"requests\[1\] must be .* rise within 0 to 5"),
        (((2, 1, -0.1),), r"requests\[0\] must be .* a finite offset that is not negative"),
        (((2, 1, math.inf),), r"requests\[0\] must be "),
        (((2, 1, 0.0), (2, 0, 0.0)), r"requests\[1\] must have a position and an after_position"),
        (((2, 0, 0.0), (5, 0, 0.0)), r"requests\[1\] must have .* that no other row has"),
        (((1, 0, 0.0),), r"requests\[0\] must have equal clocks from position 0 to 0 and another"),
        (((3, 1, 0.0),), r"requests\[0\] must have equal clocks from position 1 to 2 and another"),
        (tuple((2, 1, 0.0) for _ in range(6)), "6 requests for 5 instructions"),
    ],
)
def test_a_request_that_does_not_fit_is_refused(
    requests: tuple[tuple[int, int, float], ...], text: str
) -> None:
    with pytest.raises(CodecError, match=text) as refused:
        compiled_plan(*RUN, requests=requests)
    assert "\n" not in str(refused.value)


def test_a_request_has_no_effect_in_a_step_of_a_cycle_whose_clocks_it_does_not_fit() -> None:
    cycle_mhz = (
        (1200, 1200, 900, 900, 900),
        (1400, 1200, 900, 900, 1400),  # another change on the way
        (1400, 1400, 1400, 1400, 1400),  # none at the position; the next step's first is one
    )
    cursor = PlanCursor(
        compiled_plan(*RUN, cycle_mhz=cycle_mhz, requests=((2, 0, 0.25), (5, 2, 0.5)))
    )
    timed, upcoming = [], []
    for step in range(3):
        cursor.begin_step(step)
        timed.append(cursor.timed)
        for number in range(5):
            cursor.next_sm_clock_mhz("forward", number, 0)
            if (mhz := cursor.upcoming_mhz()) is not None:
                upcoming.append((step, number + 1, mhz))
        cursor.end_step()
    assert timed == [{0: (900, 0.25), 2: (1400, 0.5)}, {}, {2: (1200, 0.5)}]
    assert upcoming == [(1, 1, 1200), (1, 2, 900), (1, 4, 1400)]


def test_a_request_whose_clocks_become_one_on_this_gpu_has_no_effect() -> None:
    plan = compiled_plan(
        ("forward", 0, 1000), ("forward", 1, 1100), ("backward", 0, 900), requests=((1, 0, 0.1),)
    )
    cursor = PlanCursor(plan)
    cursor.begin_step(0)
    assert cursor.clocks_mhz == (1200, 1200, 900, 1200)
    assert cursor.timed == {}


def plan(version: int) -> CompiledPlan:
    return replace(compiled_plan(("forward", 0, 1200)), version=version)


def test_the_newest_plan_whose_step_has_come_is_run_and_older_ones_are_forgotten() -> None:
    switch = PendingPlans()
    switch.put(plan(1), 2)
    switch.put(plan(2), 1)
    switch.put(plan(3), 5)
    assert switch.take_due(0) is None
    taken = switch.take_due(1)
    assert taken is not None
    assert (taken[0].version, taken[1]) == (2, 1)
    assert switch.take_due(4) is None
    taken = switch.take_due(7)
    assert taken is not None
    assert (taken[0].version, taken[1]) == (3, 5)
    assert switch.take_due(8) is None


def test_plans_that_are_equal_are_still_two() -> None:
    # A planner that has started over counts its versions from 1 again.
    switch = PendingPlans()
    switch.put(plan(1), 0)
    switch.put(plan(1), 1)
    assert switch.take_due(1) == (plan(1), 1)
    assert switch.take_due(2) is None


def test_plans_whose_first_step_never_comes_do_not_pile_up() -> None:
    switch = PendingPlans()
    for version in range(1, 1001):
        switch.put(plan(version), 10**9)
        if version % 100 == 0:
            assert switch.take_due(0) is None
    assert len(switch) <= 128
    taken = switch.take_due(10**9)
    assert taken is not None
    assert taken[0].version == 1000


def test_in_a_comparison_the_baselines_steps_have_no_clocks_of_their_own() -> None:
    # The row of this rank is the same in both: only the cycle tells them apart.
    plan = replace(
        compiled_plan(("forward", 0, 1200), ("backward", 0, 1400)),
        has_step_plans=True,
        baseline_cycle=(False, True),
    )
    cursor = PlanCursor(plan, first_step=4)
    rows = []
    for step in (4, 5, 6):
        cursor.begin_step(step, lambda _, step: (900, 900 + 300 * (step == 6)))
        rows.append(cursor.clocks_mhz)
    # The last is the next step's first one, which is not known: nothing is requested for it.
    assert rows == [(900, 900, 900), (1200, 1400, 1400), (900, 1200, 1200)]
