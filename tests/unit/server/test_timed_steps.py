"""Ranks whose single instructions are posted."""

from __future__ import annotations

import pytest
from tests.planner.running import Running
from tests.planner.samples import rank_record

from flyball_server.jobs.loop_state import PlanningInputs
from flyball_server.jobs.measurements import timed_steps
from flyball_server.jobs.measurements.timed_steps import MOST_TIMED_STEPS, is_timed, num_timed_steps
from flyball_server.jobs.versions.rank_plans import rank_plan


def test_one_rank_of_each_stage_is_timed_in_as_many_pipelines_as_fit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    record = Running(effort="low").newest
    inputs = PlanningInputs()

    def steps_of(dp_rank: int = 0, tp_rank: int = 0, cp_rank: int = 0) -> int:
        rank = rank_record(0, stage=1, dp_rank=dp_rank, tp_rank=tp_rank, cp_rank=cp_rank)
        return rank_plan(record, rank, None, inputs).num_timed_steps

    assert steps_of() == steps_of(dp_rank=7) == num_timed_steps(record.plan) == MOST_TIMED_STEPS
    assert steps_of(tp_rank=1) == steps_of(cp_rank=1) == 0
    # Two stages of four microbatches, forward and backward.
    monkeypatch.setattr(timed_steps, "INSTRUCTIONS_A_STEP", 20)
    assert steps_of(dp_rank=1) == MOST_TIMED_STEPS
    assert steps_of(dp_rank=2) == 0
    assert not is_timed(record.plan, rank_record(0, stage=0, dp_rank=2))
