"""A rank's part of a plan as it is sent."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from tests.planner.samples import frequency_plan, plan_record

from flyball_profiles.stage_profile import InstructionKind
from flyball_server.http.dependencies import _rendered
from flyball_server.http.mapping.jobs import rank_plan
from flyball_server.jobs.activation.rank_plans import StagePlan
from flyball_server.planning.documents.planned_instructions import PlannedInstruction
from flyball_wire.codec import decode, encode
from flyball_wire.messages import RankPlan

PLAIN = StagePlan(
    plan=plan_record(3),
    stage=1,
    instructions=frequency_plan().stages[1],
    cycle_mhz=None,
    intended_times_s=None,
    counter_reads=None,
)
WHOLE = replace(
    PLAIN,
    plan=plan_record(3, first_step=17),
    instructions=(
        PlannedInstruction(InstructionKind.FORWARD, 0, 1410),
        PlannedInstruction(InstructionKind.BACKWARD_INPUT, 12, 900, 2),
    ),
    cycle_mhz=((1410, 900), (1410, 1410)),
    intended_times_s=(0.1 + 0.2, 2.0),
    counter_reads=(1, 2),
)


@pytest.mark.parametrize("part", [PLAIN, WHOLE], ids=["plain", "whole"])
def test_it_is_the_json_of_its_wire_type(part: StagePlan) -> None:
    rendered = _rendered(part)
    assert rendered == json.dumps(encode(rank_plan(part)), separators=(",", ":")).encode()
    assert decode(RankPlan, json.loads(rendered)) == rank_plan(part)


@pytest.mark.parametrize("time_s", [1e-9, 2.5e-7, 12345.678901234567, 1e6])
def test_times_come_back_to_the_last_bit(time_s: float) -> None:
    part = replace(WHOLE, intended_times_s=(time_s, 1 / 3))
    assert decode(RankPlan, json.loads(_rendered(part))).intended_times_s == (time_s, 1 / 3)
