"""Training without a pipeline: one stage, and one instruction, the whole step."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from flyball_server.jobs.probing.probing_setup import probing_schedule
from flyball_server.planning.plan import DataParallelPlan, Slowdown
from flyball_server.planning.planner import make_plan
from flyball_server.planning.schedules import make_schedule
from flyball_server.planning.schedules._base import ExplicitOrder, Instruction, ScheduleContext
from flyball_server.planning.stragglers.slowed_pipelines import make_slowed_plan
from flyball_wire.messages import JobSpec
from flyball_wire.plan_options import Policy

from .tiny_pipelines import (
    S,
    context_of,
    equal_profile,
    profile_of,
    refuses,
    request_of,
    slowed_request,
)

# SM clock in MHz, time in s, energy in J of both ranks.
ROWS = [(1400, 1.0, 600.0), (1200, 1.1, 500.0), (1000, 1.25, 460.0), (800, 1.5, 480.0)]
PROFILE = profile_of([{S: ROWS}], [2])
OPTIONS: dict[str, Any] = {"schedule": "step", "blocking_power_w": (80.0,)}


@pytest.mark.parametrize(
    ("target", "sm_clock_mhz"),
    [
        ("fastest", 1400),
        ("slowdown:0.09", 1400),
        ("slowdown:0.1", 1200),
        ("deadline:1.3", 1000),
        ("power:460", 1200),  # 500 J in 1.1 s
        ("power:370", 1000),  # 460 J in 1.25 s
        ("least-energy", 1000),
    ],
)
def test_the_clock_is_the_best_one_of_the_profile(target: str, sm_clock_mhz: int) -> None:
    for policy in (Policy.FRONTIER, Policy.CONSTANT, Policy.GLOBAL):
        plan = make_plan(request_of(PROFILE, target=target, policy=policy, **OPTIONS)).plan
        ((instruction,),) = plan.stages
        assert instruction.frequency_mhz == sm_clock_mhz
        point = PROFILE.at(0, S, sm_clock_mhz)
        assert (plan.iteration_time_s, plan.energy_j) == pytest.approx(
            (point.time_s, point.energy_j)
        )


def test_the_other_ranks_slow_down_to_a_straggler() -> None:
    slowdown = Slowdown(stage=0, slowdown=1.3, dp_rank=1)
    plan = make_slowed_plan(slowed_request(PROFILE, slowdown, num_pipelines=2, **OPTIONS))
    assert isinstance(plan, DataParallelPlan)
    clocks = [pipeline.stages[0][0].frequency_mhz for pipeline in plan.pipelines]
    assert clocks == [1000, 1400]
    waiting_j = 80.0 * (1.3 - 1.25)
    assert plan.energy_j == pytest.approx(460 / 2 + waiting_j + 1.3 * 600 / 2)


def test_it_is_known_before_there_is_a_profile() -> None:
    schedule = probing_schedule(JobSpec(num_stages=1, num_microbatches=1, schedule="step"))
    assert schedule.stages == ((Instruction(S, 0),),)


STEPS = ExplicitOrder(stages=((Instruction(S, 0),),) * 2)


@pytest.mark.parametrize(
    ("context", "field", "text"),
    [
        (context_of(PROFILE, 2), "num_microbatches", "must be 1 with schedule step"),
        (context_of(equal_profile(2), 1), "schedule", "the profile has 2 stages"),
        (context_of(equal_profile(1), 1), "schedule", "rows of the instruction step"),
        (replace(context_of(profile_of([{S: ROWS}] * 2), 1), order=STEPS), "order", "no pipeline"),
    ],
)
def test_what_is_no_single_step_is_refused(context: ScheduleContext, field: str, text: str) -> None:
    with refuses(field, text):
        make_schedule("step" if context.order is None else "explicit", context)
