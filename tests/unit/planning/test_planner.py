"""From request to plan: what is refused, what a plan says of itself, and whole steps."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from flyball_pipeline.instruction import Instruction
from flyball_pipeline.schedules.inputs import ExplicitOrder
from flyball_server.jobs.probing import probing_schedule
from flyball_server.planning.planner import PlanRequest, make_plan, model_of_request
from flyball_server.planning.scheduling import ScheduleContext, schedule_for
from flyball_wire.messages import JobSpec
from flyball_wire.plan_options import Policy, Reconfigure
from flyball_wire.plans.plan import PlannedInstruction

from .oracles import every_plan, least_energy_j
from .tiny_pipelines import (
    B,
    F,
    S,
    context_of,
    equal_profile,
    profile_of,
    refuses,
    request_of,
)

REQUEST = request_of(equal_profile(2), 2, policy=Policy.ENVELOPE)


def test_a_plan_of_two_stages_is_as_on_paper() -> None:
    """F1 and B0 of stage 0 go to 1000 MHz: F1 has 2 s of float for 0.25 s, B0 1 s for 0.5 s.

    Baseline: 160 J busy and 6 s of waiting at 5 W. Plan: 2 + 10 J less, 0.75 s less of waiting.
    """
    plan = make_plan(REQUEST).plan
    assert plan.stages[0] == (
        PlannedInstruction(kind=F, microbatch=0, frequency_mhz=1410),
        PlannedInstruction(kind=F, microbatch=1, frequency_mhz=1000),
        PlannedInstruction(kind=B, microbatch=0, frequency_mhz=1000),
        PlannedInstruction(kind=B, microbatch=1, frequency_mhz=1410),
    )
    assert {item.frequency_mhz for item in plan.stages[1]} == {1410}
    assert (plan.predicted.baseline_iteration_time_s, plan.predicted.baseline_energy_j) == (9, 190)
    assert (plan.iteration_time_s, plan.predicted.energy_j) == (9, 190 - 12 - 0.75 * 5)
    assert plan.predicted.saving_percent == pytest.approx(100 * 15.75 / 190)
    assert plan.slowdown_percent == 0
    assert plan.predicted.gap_percent is None
    bounded = replace(plan.predicted, lower_bound_j=170.0)
    assert bounded.gap_percent == pytest.approx(100 * 4.25 / 170)


@pytest.mark.parametrize("policy", [Policy.FRONTIER, Policy.BASELINE])
@pytest.mark.parametrize(
    ("time_s", "energy_j", "power_w", "said"),
    [
        # Times in ms, the blocking power in mW, energies in mJ.
        (1000.0, 10.0, 5.0, "time in s (not ms), blocking power in W (not mW)"),
        (1.0, 10.0, 5000.0, "time in s (not ms), blocking power in W (not mW)"),
        (0.05, 20_000.0, 5.0, "draws 400000 W at its highest clocks; check the units: energy in J"),
    ],
)
def test_a_slip_of_units_is_refused_with_its_likely_cause(
    time_s: float, energy_j: float, power_w: float, said: str, policy: Policy
) -> None:
    points = [(1410, time_s, energy_j), (1000, 1.25 * time_s, 0.8 * energy_j)]
    profile = profile_of([{F: points, B: points}])
    with refuses("profile", said):
        make_plan(request_of(profile, policy=policy, blocking_power_w=(power_w,)))


@pytest.mark.parametrize("policy", Policy)
def test_a_stage_whose_clock_cannot_be_set_is_planned_around(policy: Policy) -> None:
    free = {F: [(1410, 1.0, 10.0), (1000, 1.25, 8.0)], B: [(1410, 2.0, 30.0), (1000, 2.5, 20.0)]}
    fixed = {F: [(1200, 1.5, 10.0)], B: [(1200, 3.0, 30.0)]}
    request = request_of(
        profile_of([free, fixed]), 2, policy=policy, reconfigure=Reconfigure.BALANCED
    )
    plan = make_plan(request).plan
    assert {item.frequency_mhz for item in plan.stages[1]} == {1200}
    assert plan.iteration_time_s <= plan.predicted.baseline_iteration_time_s
    assert plan.predicted.energy_j <= plan.predicted.baseline_energy_j
    if policy == Policy.FRONTIER:
        best_j = least_energy_j(
            every_plan(model_of_request(request)), plan.predicted.baseline_iteration_time_s
        )
        assert plan.predicted.energy_j == pytest.approx(best_j, rel=1e-9)


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (replace(REQUEST, num_microbatches=0), "num_microbatches"),
        (REQUEST.with_options(target="soon"), "target"),
        (replace(REQUEST, reconfigure_granularity_mhz=0), "reconfigure_granularity_mhz"),
        (REQUEST.with_options(blocking_power_w=()), "blocking_power_w"),
        (REQUEST.with_options(blocking_power_w=(1.0, 2.0, 3.0)), "blocking_power_w"),
        (REQUEST.with_options(blocking_power_w=(5.0, math.nan)), "blocking_power_w"),
        (REQUEST.with_options(blocking_power_w=(100_001.0,)), "blocking_power_w"),
    ],
)
def test_a_request_that_cannot_be_planned_names_its_field(
    request_: PlanRequest, field: str
) -> None:
    with refuses(field):
        make_plan(request_)


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
def test_a_single_step_runs_at_the_best_clock_of_its_profile(
    target: str, sm_clock_mhz: int
) -> None:
    for policy in (Policy.FRONTIER, Policy.CONSTANT, Policy.GLOBAL):
        plan = make_plan(request_of(PROFILE, target=target, policy=policy, **OPTIONS)).plan
        ((instruction,),) = plan.stages
        assert instruction.frequency_mhz == sm_clock_mhz
        point = PROFILE.at(0, S, sm_clock_mhz)
        assert (plan.iteration_time_s, plan.predicted.energy_j) == pytest.approx(
            (point.time_s, point.energy_j)
        )


def test_a_single_step_is_known_before_its_profile() -> None:
    schedule = probing_schedule(JobSpec(num_stages=1, num_microbatches=1, schedule="step"))
    assert schedule.stages == ((Instruction(S, 0),),)


def test_a_job_is_profiled_in_the_order_that_it_runs() -> None:
    spec = JobSpec(num_stages=2, num_microbatches=3, schedule="envpipe", extra_forwards=(1, 0))
    first, last = (
        "".join(str(kind)[0] for kind, *_ in stage) for stage in probing_schedule(spec).stages
    )
    assert (first, last) == ("fffbbb", "fbfbfb")


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
def test_anything_but_a_single_step_is_refused(
    context: ScheduleContext, field: str, text: str
) -> None:
    with refuses(field, text):
        schedule_for("step" if context.order is None else "explicit", context)
