"""Plans that ranks wait for: what they keep to, when there is none, and what is found again."""

from __future__ import annotations

import pickle
from array import array
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flyball_profiles.stage_profile import StageProfile
from flyball_server.jobs.replanning.plan_documents import any_plan_document, any_plan_from_document
from flyball_server.jobs.replanning.slowed_plan import request_digest
from flyball_server.planning.documents.recorded_plan import model_of_plan
from flyball_server.planning.errors import TargetUnreachableError
from flyball_server.planning.model.simulator import time_and_energy
from flyball_server.planning.plan import DataParallelPlan, FrequencyPlan
from flyball_server.planning.planner import PlanRequest, make_plan, model_of_request
from flyball_server.planning.request_options import Effort
from flyball_server.planning.stragglers import first_plans
from flyball_server.planning.stragglers.first_plans import (
    RunningClocks,
    make_first_plan,
    make_plan_at_once,
    running_clocks,
)
from flyball_server.planning.stragglers.slowed_pipelines import (
    Slowdown,
    SlowedRequest,
    make_slowed_plan,
)

from .tiny_pipelines import B, F, any_requests, profile_of

NUM_STAGES, NUM_MICROBATCHES = 4, 12
CLOCKS_MHZ = (1400, 1300, 1200, 1100, 1000)


def profile(factor: float = 1.0) -> StageProfile:
    """Stages that are not quite equal; forward 0.1 s, backward 0.2 s at 1400 MHz."""
    return profile_of(
        [
            {
                kind: [
                    (mhz, factor * uneven * time_s * 1400 / mhz, 60 * time_s * (mhz / 1000) ** 2)
                    for mhz in CLOCKS_MHZ
                ]
                for kind, time_s in ((F, 0.1), (B, 0.2))
            }
            for uneven in (1.0, 1.1, 0.9, 1.0)
        ]
    )


def request(**changes: object) -> PlanRequest:
    plain = PlanRequest(
        profile=profile(),
        num_microbatches=NUM_MICROBATCHES,
        blocking_power_w=(5.0,),
        effort=Effort.LOW,
    )
    return replace(plain, **changes)  # type: ignore[arg-type] # fields by name


def slowed(
    *slowdowns: Slowdown, num_pipelines: int = 1, of: PlanRequest | None = None, **changes: object
) -> SlowedRequest:
    return SlowedRequest(
        request=of or request(**changes), slowdowns=slowdowns, num_pipelines=num_pipelines
    )


SLOW = Slowdown(stage=2, dp_rank=0, slowdown=1.4)


@pytest.fixture(autouse=True)
def first_plans_of_short_pipelines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_plans, "FIRST_PLANS_FROM", 1)


def test_a_first_plan_is_no_slower_than_the_slow_stage_needs_and_saves_against_staying() -> None:
    before = make_plan(request()).plan
    plan = make_first_plan(slowed(SLOW), running_clocks(before))
    whole = make_slowed_plan(slowed(SLOW))
    assert isinstance(plan, FrequencyPlan)
    assert isinstance(whole, FrequencyPlan)
    slow = dict(profile().points)
    for kind in (F, B):
        slow[2, kind] = tuple(
            replace(point, time_s=1.4 * point.time_s, energy_j=1.4 * point.energy_j)
            for point in slow[2, kind]
        )
    slow_profile = replace(profile(), points=slow)
    time_s, energy_j = time_and_energy(*model_of_plan(slow_profile, plan))
    assert (time_s, energy_j) == pytest.approx((plan.iteration_time_s, plan.energy_j))
    assert plan.iteration_time_s <= plan.baseline_iteration_time_s
    left_time_s, left_energy_j = time_and_energy(*model_of_plan(slow_profile, before))
    assert left_time_s > plan.iteration_time_s
    assert plan.energy_j < left_energy_j
    assert plan.lower_bound_j is not None
    assert whole.lower_bound_j is not None
    assert plan.lower_bound_j <= whole.lower_bound_j <= whole.energy_j < 1.05 * plan.energy_j
    assert plan.energy_j < 1.05 * whole.energy_j


def test_pipelines_without_a_slow_gpu_have_clocks_of_their_own() -> None:
    before = make_plan(request()).plan
    asked = slowed(SLOW, num_pipelines=3)
    plan = make_first_plan(asked, running_clocks(before))
    whole = make_slowed_plan(asked)
    assert isinstance(plan, DataParallelPlan)
    assert [pipeline.stands_for for pipeline in plan.pipelines] == [(0,), (1, 2)]
    assert plan.blocking_power_w == whole.blocking_power_w
    assert plan.baseline_iteration_time_s == whole.baseline_iteration_time_s
    assert plan.baseline_energy_j == pytest.approx(whole.baseline_energy_j)
    assert max(one.iteration_time_s for one in plan.pipelines) == plan.iteration_time_s
    assert plan.iteration_time_s <= plan.baseline_iteration_time_s
    assert sum(one.energy_j for one in plan.pipelines) == pytest.approx(plan.energy_j)
    assert plan.lower_bound_j is not None
    assert plan.lower_bound_j <= plan.energy_j < 1.05 * whole.energy_j
    # And from there when another one becomes slow.
    two = slowed(SLOW, Slowdown(stage=0, dp_rank=2, slowdown=1.5), num_pipelines=3)
    again = make_first_plan(two, running_clocks(plan))
    assert isinstance(again, DataParallelPlan)
    assert len(again.pipelines) == 3


def test_a_plan_for_a_late_deadline_has_a_bound_and_is_read_as_it_was_written() -> None:
    """Slower clocks need more than they save, by what ranks draw that wait meanwhile."""
    points = [(1400, 1.0, 110.0), (1200, 2.0, 150.0), (1000, 4.0, 250.0)]
    asked = slowed(
        Slowdown(stage=1, slowdown=1.2),
        profile=profile_of([{F: points, B: points}] * 4),
        num_microbatches=8,
        blocking_power_w=(100.0,),
        target="slowdown:2.5",
    )
    plan = make_first_plan(asked)
    assert plan is not None
    assert 0.9 * plan.energy_j < (plan.lower_bound_j or 0.0) <= plan.energy_j
    assert any_plan_from_document(any_plan_document(plan, solve_s=0.0)) == plan


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    any_requests(),
    st.integers(1, 3),
    st.lists(st.tuples(st.integers(0, 2), st.floats(1.0, 6.0)), max_size=3),
    st.sampled_from(["fastest", "slowdown:0.05", "slowdown:0.5", "slowdown:5", "least-energy"]),
    st.sampled_from([0.0, 0.02, 0.5]),
)
def test_any_first_plan_is_in_time_and_is_read_as_it_was_written(
    of: PlanRequest, num_pipelines: int, slow: list[tuple[int, float]], target: str, reserve: float
) -> None:
    slowdowns = [
        Slowdown(
            stage=stage % of.profile.num_stages, dp_rank=stage % num_pipelines, slowdown=slowdown
        )
        for stage, slowdown in slow
    ]
    asked = slowed(
        *slowdowns, num_pipelines=num_pipelines, of=replace(of, target=target, reserve=reserve)
    )
    plan = make_first_plan(asked)
    if plan is None:
        return
    assert plan.reserve == reserve
    if target != "least-energy":
        allowed = 1.0 if target == "fastest" else 1.0 + float(target.removeprefix("slowdown:"))
        assert plan.iteration_time_s <= allowed * plan.baseline_iteration_time_s
    assert 0 < (plan.lower_bound_j or 0.0) <= plan.energy_j * (1 + 1e-9)
    assert any_plan_from_document(any_plan_document(plan, solve_s=0.0)) == plan


@pytest.mark.parametrize("target", ["slowdown:0.1", "deadline:9"])
def test_other_targets_with_a_deadline_are_met(target: str) -> None:
    plan = make_first_plan(slowed(SLOW, target=target))
    assert plan is not None
    limit_s = 9.0 if target == "deadline:9" else 1.1 * plan.baseline_iteration_time_s
    assert plan.baseline_iteration_time_s < plan.iteration_time_s <= limit_s


@pytest.mark.parametrize(
    "changes",
    [
        {"policy": "envelope"},
        {"schedule": "auto"},
    ],
)
def test_what_has_no_first_plan_is_searched_for_as_ever(changes: dict[str, Any]) -> None:
    asked = slowed(SLOW, **changes)
    assert make_first_plan(asked) is None
    assert make_plan_at_once(asked) == make_slowed_plan(asked)


def test_a_short_pipeline_is_searched_for_as_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_plans, "FIRST_PLANS_FROM", 2 * NUM_STAGES * NUM_MICROBATCHES + 1)
    assert make_first_plan(slowed(SLOW)) is None
    assert make_first_plan(slowed(SLOW, num_pipelines=2)) is not None


def test_a_deadline_that_cannot_be_met_is_said() -> None:
    with pytest.raises(TargetUnreachableError, match="the fastest takes"):
        make_plan_at_once(slowed(SLOW, target="deadline:2"))


def test_clocks_that_take_less_energy_than_a_first_plan_stay_until_the_search_is_done() -> None:
    """They are planned for as fast an iteration; how slow it is by now does not matter."""
    slowest = array("q", [CLOCKS_MHZ[-1]] * 2 * NUM_STAGES * NUM_MICROBATCHES)
    running = RunningClocks(
        schedule="1f1b",
        num_microbatches=NUM_MICROBATCHES,
        iteration_time_s=1.0,
        clocks_mhz=(slowest,),
        pipeline_of=(0,),
    )
    assert make_first_plan(slowed(SLOW), running) is None
    # Planned for slow iterations, they are no measure of what a fast one needs.
    assert make_first_plan(slowed(SLOW), replace(running, iteration_time_s=100.0)) is not None


def test_each_pipeline_is_weighed_with_the_clocks_that_it_runs() -> None:
    """All are slow by now; one ran apart from the others until now."""
    all_slow = [Slowdown(stage=2, dp_rank=dp_rank, slowdown=1.4) for dp_rank in range(3)]
    num_instructions = 2 * NUM_STAGES * NUM_MICROBATCHES
    slowest, fastest = (array("q", [mhz] * num_instructions) for mhz in (1000, 1400))
    running = RunningClocks(
        schedule="1f1b",
        num_microbatches=NUM_MICROBATCHES,
        iteration_time_s=1.0,
        clocks_mhz=(slowest, fastest),
        pipeline_of=(0, 1, 1),
    )
    asked = slowed(*all_slow, num_pipelines=3)
    plan = make_first_plan(asked, running)
    assert plan is not None, "two of three need more than it"
    assert make_first_plan(asked, replace(running, pipeline_of=(1, 0, 0))) is None
    # Of one that runs what the profile has not, nothing is known; then no plan is held back.
    unknown = replace(running, clocks_mhz=(slowest, array("q", [7] * num_instructions)))
    assert make_first_plan(asked, replace(unknown, pipeline_of=(0, 0, 1))) is not None


@pytest.mark.parametrize(
    "changes",
    [
        {"schedule": "gpipe"},
        {"num_microbatches": NUM_MICROBATCHES + 1},
        {"clocks_mhz": (array("q", [1400]),)},
        {"clocks_mhz": (array("q", [7] * 2 * NUM_STAGES * NUM_MICROBATCHES),)},
    ],
)
def test_clocks_of_another_pipeline_are_not_begun_from(changes: dict[str, object]) -> None:
    running = replace(running_clocks(make_plan(request()).plan), **changes)  # type: ignore[arg-type]
    assert make_first_plan(slowed(SLOW), running) == make_first_plan(slowed(SLOW))


def test_a_plan_and_the_clocks_of_it_come_whole_from_another_process() -> None:
    plan = make_first_plan(slowed(SLOW, num_pipelines=2))
    assert isinstance(plan, DataParallelPlan)
    both = (plan, running_clocks(plan))
    assert pickle.loads(pickle.dumps(both)) == both  # noqa: S301 - from this process


def test_equal_requests_have_one_digest_and_others_another() -> None:
    asked = slowed(SLOW)
    others = [
        slowed(),
        slowed(SLOW, num_pipelines=2),
        slowed(Slowdown(stage=2, dp_rank=0, slowdown=1.41)),
        slowed(SLOW, target="slowdown:0.1"),
        slowed(SLOW, effort=Effort.NORMAL),
        slowed(SLOW, profile=profile(1.01)),
        slowed(SLOW, blocking_power_w=(6.0,)),
    ]
    assert request_digest(slowed(SLOW)) == request_digest(asked)
    assert len({request_digest(one) for one in [asked, *others]}) == len(others) + 1
    assert request_digest(slowed()) == request_digest(slowed(num_pipelines=4))


def test_the_same_pipeline_is_built_once() -> None:
    model = model_of_request(request())
    assert model_of_request(request(target="slowdown:0.1", effort=Effort.HIGH)) is model
    assert model_of_request(request(profile=profile(1.01))) is not model
    assert model_of_request(request(schedule="gpipe")).schedule.name == "gpipe"
