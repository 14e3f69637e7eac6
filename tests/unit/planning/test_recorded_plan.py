"""A plan that was written down, held against the same profile and against others."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given

from flyball_profiles.stage_profile import StageProfile
from flyball_server.planning.documents.recorded_plan import model_of_plan
from flyball_server.planning.errors import PlanningError
from flyball_server.planning.model.simulator import simulate
from flyball_server.planning.planner import PlanRequest, make_plan
from flyball_wire.plan_options import Policy

from .tiny_pipelines import B, F, I, W, any_requests, equal_profile, profile_of, refuses, request_of

PLAN = make_plan(
    request_of(equal_profile(2), 2, blocking_power_w=(5.0, 7.0), policy=Policy.ENVELOPE)
).plan
POINTS = [(1410, 2.0, 1.0), (900, 2.5, 1.0)]


@given(any_requests())
def test_a_plan_simulates_to_its_own_prediction(request: PlanRequest) -> None:
    plan = make_plan(request).plan
    simulation = simulate(*model_of_plan(request.profile, plan))
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


def test_a_plan_of_stages_in_another_order_than_the_models_keeps_their_places() -> None:
    """Stage 1 holds the begin of the model, stage 0 its end; one chunk each. 1 + 1 + 2 + 2 s."""
    stage = (("forward", 0), ("backward", 0))
    request = request_of(
        equal_profile(2),
        schedule="explicit",
        policy=Policy.BASELINE,
        order=(stage, stage),
        virtual_stages=((1,), (0,)),
    )
    plan = make_plan(request).plan
    model, assignment = model_of_plan(equal_profile(2), plan)
    assert model.schedule.virtual_stages == ((1,), (0,))
    assert simulate(model, assignment).iteration_time_s == plan.iteration_time_s == 6


def test_a_period_with_several_clocks_for_one_kind_of_a_stage_is_refused() -> None:
    request = request_of(equal_profile(2), 3, schedule="pipedream", policy=Policy.BASELINE)
    plan = make_plan(request).plan
    first, *others = plan.stages[0]
    mixed = (first._replace(frequency_mhz=1000), *others)
    with refuses("stages", "stage 0 runs forward at several clocks"):
        model_of_plan(equal_profile(2), replace(plan, stages=(mixed, *plan.stages[1:])))


@pytest.mark.parametrize(
    ("profile", "said"),
    [
        (equal_profile(3), "has 2 stages, the profile 3"),
        (profile_of([{F: POINTS, B: POINTS}] * 2), "forward of stage 0 runs at 1000 MHz"),
        (profile_of([{F: POINTS, I: POINTS, W: POINTS}] * 2), "has no backward of stage 0"),
    ],
)
def test_a_profile_that_lacks_something_of_the_plan_is_refused(
    profile: StageProfile, said: str
) -> None:
    with pytest.raises(PlanningError, match=said):
        model_of_plan(profile, PLAN)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"virtual_stages": ((0,),)}, "1 entries for 2 stages"),
        ({"virtual_stages": ((1,), (0,))}, "deadlocks"),
        ({"virtual_stages": ((), ())}, "stage 0 runs chunk 0, but has 0"),
        ({"weight_versions": (1,)}, "^weight_versions: "),
        ({"weight_versions": (0, 1)}, "^weight_versions: "),
        ({"stages": (PLAN.stages[0][:-1], PLAN.stages[1])}, "one forward and one backward"),
        ({"num_microbatches": 3}, "stage 0 does not run all 3 microbatches"),
    ],
)
def test_a_plan_that_cannot_run_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(PlanningError, match=said):
        model_of_plan(equal_profile(2), replace(PLAN, **changes))
