"""Instructions with their clocks as columns, and how plans of them are pickled."""

from __future__ import annotations

import pickle
import pickletools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.planner.samples import frequency_plan

from flyball_profiles.stage_profile import InstructionKind
from flyball_server.planning.documents.planned_instructions import (
    PlannedInstruction,
    PlannedStages,
    in_stages,
    packed_stages,
    planned_instructions,
    unpacked_stages,
)

instructions = st.builds(
    PlannedInstruction,
    kind=st.sampled_from(InstructionKind),
    microbatch=st.integers(0, 10**9),
    frequency_mhz=st.integers(0, 10**9),
    chunk=st.integers(0, 3),
)


@given(st.lists(st.lists(instructions, max_size=4).map(tuple), max_size=4).map(tuple))
def test_stages_come_whole_out_of_their_columns(stages: PlannedStages) -> None:
    unpacked = unpacked_stages(packed_stages(stages))
    assert unpacked == stages
    assert all(type(item) is PlannedInstruction for stage in unpacked for item in stage)
    assert all(type(item.kind) is InstructionKind for stage in unpacked for item in stage)


def test_columns_make_instructions_stage_after_stage() -> None:
    forward, backward = InstructionKind.FORWARD, InstructionKind.BACKWARD
    made = planned_instructions([forward, backward, forward], [0, 0, 1], [1400, 900, 1000], [0] * 3)
    assert in_stages(made, [2, 1]) == (
        (
            PlannedInstruction(kind=forward, microbatch=0, frequency_mhz=1400),
            PlannedInstruction(kind=backward, microbatch=0, frequency_mhz=900),
        ),
        (PlannedInstruction(kind=forward, microbatch=1, frequency_mhz=1000),),
    )


def test_columns_of_other_lengths_are_no_instructions() -> None:
    with pytest.raises(ValueError, match="longer"):
        list(planned_instructions([InstructionKind.FORWARD], [0, 1], [1400], [0]))


def test_a_pickled_plan_has_no_object_for_each_instruction() -> None:
    """Of 64 stages x 256 microbatches they took a tenth of a second to come from a process."""
    plan = frequency_plan()
    longer = replace(plan, stages=tuple(stage * 50 for stage in plan.stages))
    for one in (plan, longer):
        assert pickle.loads(pickle.dumps(one)) == one  # noqa: S301 - from this process
    num_steps, num_steps_of_longer = (
        sum(1 for _ in pickletools.genops(pickle.dumps(one))) for one in (plan, longer)
    )
    assert num_steps == num_steps_of_longer
