"""A plan that was written down, held against the same profile and against others."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given

from flyball_server.planning.documents.planned_instructions import PlannedInstruction
from flyball_server.planning.documents.recorded_plan import model_of_plan
from flyball_server.planning.errors import PlanningError
from flyball_server.planning.model.simulator import simulate
from flyball_server.planning.planner import PlanRequest, make_plan
from flyball_wire.plan_options import PlanOptions, Policy

from .tiny_pipelines import B, F, I, W, any_requests, equal_profile, profile_of

PLAN = make_plan(
    PlanRequest(
        profile=equal_profile(2),
        num_microbatches=2,
        options=PlanOptions(blocking_power_w=(5.0, 7.0), policy=Policy.ENVELOPE),
    )
).plan


@given(any_requests())
def test_a_plan_simulates_to_its_own_prediction(request: PlanRequest) -> None:
    plan = make_plan(request).plan
    simulation = simulate(*model_of_plan(request.profile, plan))
    assert simulation.iteration_time_s == plan.iteration_time_s
    assert simulation.energy_j == plan.energy_j


@pytest.mark.parametrize(
    ("virtual_stages", "said"),
    [
        (((0,),), "1 entries for 2 stages"),
        (((0,), (2,)), "must hold each of 0 to 1 once"),
        (((0, 1), (2, 3)), "does not run all 2 microbatches of every chunk"),
        (((1,), (0,)), "deadlocks"),
        (((), ()), "stage 0 runs chunk 0, but has 0"),
    ],
)
def test_a_plan_whose_chunks_make_no_model_is_refused(
    virtual_stages: tuple[tuple[int, ...], ...], said: str
) -> None:
    """With the stages the other way round, stage 1's order waits for stage 0 for ever."""
    with pytest.raises(PlanningError, match=said):
        model_of_plan(equal_profile(2), replace(PLAN, virtual_stages=virtual_stages))


@pytest.mark.parametrize("weight_versions", [(), (1,), (1, 1, 1), (0, 1)])
def test_a_plan_with_weight_versions_of_other_stages_is_refused(
    weight_versions: tuple[int, ...],
) -> None:
    with pytest.raises(PlanningError) as error:
        model_of_plan(equal_profile(2), replace(PLAN, weight_versions=weight_versions))
    assert error.value.field == "weight_versions"


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


def test_a_plan_of_stages_in_another_order_than_the_models_keeps_their_places() -> None:
    """Stage 1 holds the begin of the model, stage 0 its end; one chunk each. 1 + 1 + 2 + 2 s."""
    stage = (("forward", 0), ("backward", 0))
    plan = make_plan(
        PlanRequest(
            profile=equal_profile(2),
            num_microbatches=1,
            options=PlanOptions(
                blocking_power_w=(5.0,),
                schedule="explicit",
                policy=Policy.BASELINE,
                order=(stage, stage),
                virtual_stages=((1,), (0,)),
            ),
        )
    ).plan
    model, assignment = model_of_plan(equal_profile(2), plan)
    assert model.schedule.virtual_stages == ((1,), (0,))
    assert simulate(model, assignment).iteration_time_s == plan.iteration_time_s == 6


def test_a_period_with_several_clocks_for_one_kind_of_a_stage_is_refused() -> None:
    plan = make_plan(
        PlanRequest(
            profile=equal_profile(2),
            num_microbatches=3,
            options=PlanOptions(
                blocking_power_w=(5.0,), schedule="pipedream", policy=Policy.BASELINE
            ),
        )
    ).plan
    first, *others = plan.stages[0]
    mixed = (first._replace(frequency_mhz=1000), *others)
    with pytest.raises(PlanningError, match="stage 0 runs forward at several clocks") as error:
        model_of_plan(equal_profile(2), replace(plan, stages=(mixed, *plan.stages[1:])))
    assert error.value.field == "stages"
