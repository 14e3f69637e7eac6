"""Training without a pipeline: one stage, and one instruction, the whole step."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flyball_profiles.stage_profile import InstructionKind, OperatingPoint, StageProfile
from flyball_server.jobs.probing.probing_setup import probing_schedule
from flyball_server.planning.errors import PlanningError
from flyball_server.planning.plan import DataParallelPlan, Slowdown
from flyball_server.planning.planner import PlanRequest, make_plan
from flyball_server.planning.schedules import make_schedule
from flyball_server.planning.schedules._base import ExplicitOrder, Instruction, ScheduleContext
from flyball_server.planning.stragglers.slowed_pipelines import SlowedRequest, make_slowed_plan
from flyball_wire.messages import JobSpec
from flyball_wire.plan_options import PlanOptions, Policy

from .tiny_pipelines import equal_profile

# SM clock in MHz, time in s, energy in J of both ranks.
_ROWS = ((1400, 1.0, 600.0), (1200, 1.1, 500.0), (1000, 1.25, 460.0), (800, 1.5, 480.0))
_BLOCKING_POWER_W = 80.0


def step_profile() -> StageProfile:
    points = tuple(
        OperatingPoint(frequency_mhz=mhz, time_s=time_s, energy_j=energy_j)
        for mhz, time_s, energy_j in _ROWS
    )
    return StageProfile(points={(0, InstructionKind.STEP): points}, num_ranks_per_stage=(2,))


def request_of(target: str, policy: Policy = Policy.FRONTIER) -> PlanRequest:
    options = PlanOptions(
        schedule="step", policy=policy, target=target, blocking_power_w=(_BLOCKING_POWER_W,)
    )
    return PlanRequest(profile=step_profile(), num_microbatches=1, options=options)


@pytest.mark.parametrize("policy", [Policy.FRONTIER, Policy.CONSTANT, Policy.GLOBAL])
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
def test_the_clock_is_the_best_one_of_the_profile(
    policy: Policy, target: str, sm_clock_mhz: int
) -> None:
    plan = make_plan(request_of(target, policy)).plan
    ((instruction,),) = plan.stages
    assert instruction.frequency_mhz == sm_clock_mhz
    time_s, energy_j = next(row[1:] for row in _ROWS if row[0] == sm_clock_mhz)
    assert (plan.iteration_time_s, plan.energy_j) == pytest.approx((time_s, energy_j))


def test_the_other_ranks_slow_down_to_a_straggler() -> None:
    slowdown = Slowdown(stage=0, slowdown=1.3, dp_rank=1)
    slowed = SlowedRequest(request=request_of("fastest"), slowdowns=(slowdown,), num_pipelines=2)
    plan = make_slowed_plan(slowed)
    assert isinstance(plan, DataParallelPlan)
    clocks = [pipeline.stages[0][0].frequency_mhz for pipeline in plan.pipelines]
    assert clocks == [1000, 1400]
    waiting_j = _BLOCKING_POWER_W * (1.3 - 1.25)
    assert plan.energy_j == pytest.approx(460 / 2 + waiting_j + 1.3 * 600 / 2)


def test_it_is_known_before_there_is_a_profile() -> None:
    schedule = probing_schedule(JobSpec(num_stages=1, num_microbatches=1, schedule="step"))
    assert schedule.stages == ((Instruction(InstructionKind.STEP, 0),),)


@pytest.mark.parametrize(
    ("context", "field", "text"),
    [
        ({"num_microbatches": 2}, "num_microbatches", "must be 1 with schedule step"),
        ({"profile": equal_profile(2)}, "schedule", "the profile has 2 stages"),
        ({"profile": equal_profile(1)}, "schedule", "rows of the instruction step"),
    ],
)
def test_what_is_no_single_step_is_refused(
    context: dict[str, object], field: str, text: str
) -> None:
    fitting = ScheduleContext(profile=step_profile(), num_microbatches=1)
    with pytest.raises(PlanningError, match=text) as refused:
        make_schedule("step", replace(fitting, **context))  # type: ignore[arg-type]
    assert refused.value.field == field


def test_several_stages_have_no_steps() -> None:
    steps = ((Instruction(InstructionKind.STEP, 0),),) * 2
    profile = StageProfile(
        points={
            (stage, InstructionKind.STEP): step_profile().points[0, InstructionKind.STEP]
            for stage in range(2)
        },
        num_ranks_per_stage=(1, 1),
    )
    context = ScheduleContext(
        profile=profile, num_microbatches=1, order=ExplicitOrder(stages=steps)
    )
    with pytest.raises(PlanningError, match="no pipeline"):
        make_schedule("explicit", context)
