"""Ranks whose single instructions are posted."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.planner.running import Running, two_stages
from tests.planner.sample_plans import frequency_plan
from tests.planner.samples import rank_record

from flyball_pipeline.instruction import InstructionKind
from flyball_server.jobs.measurements import timed_steps
from flyball_server.jobs.measurements.timed_steps import (
    MOST_TIMED_STEPS,
    delays_of_steps,
    is_timed,
    num_timed_steps,
)
from flyball_server.jobs.planning_inputs import PlanningInputs
from flyball_server.jobs.versions.rank_plans import part_of
from flyball_wire.measurements import InstructionReport
from flyball_wire.plans.plan import PipelinePlan, PlannedInstruction, PlannedRequest


def test_one_rank_of_each_stage_is_timed_in_as_many_pipelines_as_fit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    record = Running(effort="low").newest
    inputs = PlanningInputs()

    def steps_of(dp_rank: int = 0, tp_rank: int = 0, cp_rank: int = 0) -> int:
        rank = rank_record(0, stage=1, dp_rank=dp_rank, tp_rank=tp_rank, cp_rank=cp_rank)
        return part_of(record, rank, None, inputs).num_timed_steps

    assert steps_of() == steps_of(dp_rank=7) == num_timed_steps(record.plan) == MOST_TIMED_STEPS
    assert steps_of(tp_rank=1) == steps_of(cp_rank=1) == 0
    # Two stages of four microbatches, forward and backward.
    monkeypatch.setattr(timed_steps, "INSTRUCTIONS_A_STEP", 40)
    assert steps_of(dp_rank=1) == MOST_TIMED_STEPS
    assert steps_of(dp_rank=2) == 0
    assert not is_timed(record.plan, rank_record(0, stage=0, dp_rank=2))


def test_an_instruction_in_which_the_next_clock_takes_effect_shows_no_jitter() -> None:
    """F0, F1 and B0, B1 of one stage; F1 varies, since B0's higher clock is requested within it."""
    stage = (
        PlannedInstruction(InstructionKind.FORWARD, 0, 1200),
        PlannedInstruction(InstructionKind.FORWARD, 1, 1200),
        PlannedInstruction(InstructionKind.BACKWARD, 0, 1410),
        PlannedInstruction(InstructionKind.BACKWARD, 1, 1200),
    )
    pipeline = PipelinePlan(stages=(stage,))
    plan = replace(frequency_plan(num_stages=1), num_microbatches=2, pipelines=(pipeline,))
    requested = replace(pipeline, requests=(PlannedRequest(0, 2, 1, 0.05),))
    early = replace(plan, pipelines=(requested,))

    def step(number: int) -> list[list[tuple[InstructionReport, ...]]]:
        times_s = (0.1, 0.1 + 0.02 * (-1) ** number, 0.2, 0.2)
        return [
            [
                tuple(
                    (str(item.kind), item.microbatch, 0, 0.2 * position, time_s, 0.0, 0.0, None)
                    for position, (item, time_s) in enumerate(zip(stage, times_s, strict=True))
                )
            ]
        ]

    steps = [step(number) for number in range(8)]
    found = [
        delays_of_steps(1, one, [0.8] * 8, steps, profile=two_stages()).jitter
        for one in (plan, early)
    ]
    assert found[0] > 0.01
    assert found[1] == 0
