"""A plan that was written down, held against the same profile and against others."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flyball_profiles.stage_profile import StageProfile
from flyball_server.planning.effort import Effort
from flyball_server.planning.errors import PlanningError
from flyball_server.planning.plan import PlannedInstruction
from flyball_server.planning.planner import PlanRequest, make_plan
from flyball_server.planning.recorded_plan import model_of_plan
from flyball_server.planning.simulator import simulate

from .tiny_pipelines import B, F, I, W, equal_profile, profile_of, profiles

PLAN = make_plan(
    PlanRequest(
        profile=equal_profile(2),
        num_microbatches=2,
        blocking_power_w=(5.0, 7.0),
        policy="envelope",
    )
)


@given(profiles(), st.integers(1, 5), st.sampled_from(["gpipe", "1f1b", "envpipe"]))
def test_a_plan_simulates_to_its_own_prediction(
    profile: StageProfile, num_microbatches: int, schedule: str
) -> None:
    plan = make_plan(
        PlanRequest(
            profile=profile,
            num_microbatches=num_microbatches,
            blocking_power_w=(12.5,),
            schedule=schedule,
            effort=Effort.LOW,
        )
    )
    simulation = simulate(*model_of_plan(profile, plan))
    assert simulation.iteration_time_s == plan.iteration_time_s
    assert simulation.energy_j == plan.energy_j


def test_on_another_profile_it_keeps_its_clocks_and_takes_that_ones_times() -> None:
    """Twice as slow everywhere, 1 J each: F 2 s, B 4 s; F1 and B0 of stage 0 at 1000 MHz.

    They have 4 s and 2 s of float and take 0.5 s and 1 s longer: 18 s as before.
    8 J, and waiting 18 - 12 - 1.5 s at 5 W on stage 0, 18 - 12 s at 7 W on stage 1.
    """
    stage = {F: [(1410, 2.0, 1.0), (1000, 2.5, 1.0)], B: [(1410, 4.0, 1.0), (1000, 5.0, 1.0)]}
    simulation = simulate(*model_of_plan(profile_of([stage, stage]), PLAN))
    assert simulation.iteration_time_s == 18
    assert simulation.energy_j == 8 + 4.5 * 5 + 6 * 7


def test_another_blocking_power_may_be_asked_for() -> None:
    model, assignment = model_of_plan(equal_profile(2), PLAN, (100.0,))
    assert model.blocking_power_w == (100.0, 100.0)
    assert simulate(model, assignment).energy_j == 148 + (3 - 0.75) * 100 + 3 * 100


def test_a_profile_of_another_number_of_stages_is_refused() -> None:
    with pytest.raises(PlanningError, match="has 2 stages, the profile 3"):
        model_of_plan(equal_profile(3), PLAN)


def test_a_profile_without_one_of_its_clocks_is_refused() -> None:
    stage = {F: [(1410, 2.0, 1.0), (900, 2.5, 1.0)], B: [(1410, 4.0, 1.0), (900, 5.0, 1.0)]}
    with pytest.raises(PlanningError, match="forward of stage 0 runs at 1000 MHz") as error:
        model_of_plan(profile_of([stage, stage]), PLAN)
    assert error.value.field == "stages"


def test_a_profile_without_one_of_its_instructions_is_refused() -> None:
    points = [(1410, 2.0, 1.0), (1000, 2.5, 1.0)]
    split = {F: points, I: points, W: points}
    with pytest.raises(PlanningError, match="has no backward of stage 0") as error:
        model_of_plan(profile_of([split, split]), PLAN)
    assert error.value.field == "profile"


def test_a_plan_that_lost_an_instruction_is_refused() -> None:
    with pytest.raises(PlanningError, match="stage 0 does not run one forward and one backward"):
        model_of_plan(equal_profile(2), replace(PLAN, stages=(PLAN.stages[0][:-1], PLAN.stages[1])))


def test_a_plan_of_fewer_microbatches_than_it_says_is_refused() -> None:
    with pytest.raises(PlanningError, match="stage 0 does not run all 3 microbatches"):
        model_of_plan(equal_profile(2), replace(PLAN, num_microbatches=3))


def test_a_plan_whose_order_deadlocks_is_refused() -> None:
    crossed = (*PLAN.stages[1][2:], *PLAN.stages[1][:2])
    with pytest.raises(PlanningError, match="deadlocks"):
        model_of_plan(
            equal_profile(2), replace(PLAN, stages=(_alternating(PLAN.stages[0]), crossed))
        )


def _alternating(stage: tuple[PlannedInstruction, ...]) -> tuple[PlannedInstruction, ...]:
    first, second, third, fourth = stage
    return first, third, second, fourth
