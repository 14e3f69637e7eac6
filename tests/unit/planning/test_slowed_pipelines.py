"""GPUs that are slower than their profile: the others stretch to the time of the slowest."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flyball_pipeline.errors import PipelineError
from flyball_pipeline.instruction import InstructionKind
from flyball_profiles.stage_profile import OperatingPoint, StageProfile
from flyball_server.planning.data_parallel import make_data_parallel_plan, separate_pipelines
from flyball_server.planning.documents.plan_document import plan_document, plan_from_document
from flyball_server.planning.documents.recorded_plan import models_by_dp_rank
from flyball_server.planning.errors import TargetUnreachableError
from flyball_server.planning.frontier_curve import make_frontier
from flyball_server.planning.planner import make_plan
from flyball_server.planning.policies import POLICIES
from flyball_server.planning.stragglers.slowed_pipelines import (
    SlowedRequest,
    make_slowed_frontier,
    make_slowed_plan,
)
from flyball_wire.plan_options import Effort
from flyball_wire.plans.plan import PipelinePlan, Plan, Slowdown

from .tiny_pipelines import (
    B,
    F,
    changed_points,
    equal_profile,
    merged_profile,
    profiles,
    refuses,
    request_of,
    slowed_request,
)

# One pipeline of one stage takes 3 s and 40 J at its highest clocks; with its forward slow 3.25 s
# and 38 J, its backward slow 3.5 s and 30 J, both slow 3.75 s and 28 J. Waiting takes 5 W.


def planned(request: SlowedRequest) -> Plan:
    plan = make_slowed_plan(request)
    assert not plan.is_separate
    return plan


def planned_apart(request: SlowedRequest) -> Plan:
    plan = make_slowed_plan(request)
    assert plan.is_separate
    return plan


def clocks_mhz(pipeline: PipelinePlan | Plan, stage: int = 0) -> list[int]:
    return [item.frequency_mhz for item in pipeline.stages[stage]]


# ------------------------------------------------------------------ on paper


def test_the_other_stages_stretch_to_what_a_slow_stage_leaves_them() -> None:
    """Stage 1 takes 1.5 times as long, 1.5 and 3 s: two microbatches end after 1 + 9 + 2 = 12 s.

    Stage 0 then has 0.5 s to spare after its second forward, and 1 s between its backwards.
    """
    plan = planned(
        slowed_request(equal_profile(2), Slowdown(stage=1, slowdown=1.5), num_microbatches=2)
    )
    assert plan.iteration_time_s == plan.predicted.baseline_iteration_time_s == 12.0
    assert set(clocks_mhz(plan, 1)) == {1410}
    first = {(item.kind, item.microbatch): item.frequency_mhz for item in plan.stages[0]}
    assert first == {(F, 0): 1410, (F, 1): 1000, (B, 0): 1000, (B, 1): 1410}
    # Stage 1: 1.5 times 80 J. Stage 0: 10 + 8 + 20 + 30 J, busy for 6.75 s, else 5 W; stage 1
    # is busy for 9 s.
    assert plan.predicted.energy_j == pytest.approx(120 + 68 + 5 * (12 - 6.75) + 5 * (12 - 9))
    assert plan.predicted.lower_bound_j is not None
    assert plan.predicted.lower_bound_j <= plan.predicted.energy_j


def test_pipelines_without_a_slow_gpu_stretch_to_its_pipelines_time() -> None:
    """The slow one takes 3.5 s, 7/6 of 3 s and of 40 J: the three others slow their backward."""
    plan = planned_apart(
        slowed_request(
            merged_profile(4), Slowdown(stage=0, slowdown=7 / 6, dp_rank=2), num_pipelines=4
        )
    )
    assert plan.iteration_time_s == pytest.approx(3.5)
    assert [pipeline.stands_for for pipeline in plan.pipelines] == [(0, 1, 3), (2,)]
    assert [clocks_mhz(pipeline) for pipeline in plan.pipelines] == [[1410, 1000], [1410, 1410]]
    assert plan.predicted.energy_j == pytest.approx(3 * 30 + 40 * 7 / 6)
    assert plan.predicted.lower_bound_j == pytest.approx(plan.predicted.energy_j)
    assert [pipeline.energy_j for pipeline in plan.pipelines] == pytest.approx([90, 40 * 7 / 6])
    assert plan.predicted.baseline_energy_j == pytest.approx(3 * (40 + 0.5 * 5) + 40 * 7 / 6)
    assert plan.blocking_power_w == (5.0, 5.0)


def test_a_deadline_is_kept_as_it_is_and_refused_where_the_slow_one_misses_it() -> None:
    slow = Slowdown(stage=0, slowdown=1.5, dp_rank=0)
    two = slowed_request(merged_profile(2), slow, num_pipelines=2)
    with pytest.raises(TargetUnreachableError, match=r"the fastest takes 4\.5 s"):
        make_slowed_plan(replace(two, request=two.request.with_options(target="deadline:4")))
    plan = planned_apart(replace(two, request=two.request.with_options(target="deadline:5")))
    assert plan.iteration_time_s <= 5.0


@pytest.mark.parametrize(
    ("slowdowns", "time_s", "energy_j"),
    [
        ([Slowdown(stage=0, slowdown=1.2, kind=F)], 1.2 + 2, 12 + 30),
        (
            [Slowdown(stage=0, slowdown=1.25), Slowdown(stage=0, slowdown=2.0, kind=B)],
            1.25 + 5,
            12.5 + 75,
        ),
    ],
)
def test_a_slowdown_may_be_of_one_kind_and_those_of_one_kind_multiply(
    slowdowns: list[Slowdown], time_s: float, energy_j: float
) -> None:
    plan = planned(slowed_request(equal_profile(1), *slowdowns, policy="baseline"))
    assert (plan.iteration_time_s, plan.predicted.energy_j) == pytest.approx((time_s, energy_j))


def test_two_pipelines_that_are_slow_alike_are_planned_once() -> None:
    slow = [Slowdown(stage=0, slowdown=7 / 6, dp_rank=dp_rank) for dp_rank in (0, 2)]
    plan = planned_apart(slowed_request(merged_profile(3), *slow, num_pipelines=3))
    assert [pipeline.stands_for for pipeline in plan.pipelines] == [(0, 2), (1,)]
    assert [pipeline.dp_ranks[0] for pipeline in plan.by_dp_rank] == [0, 1, 0]


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_without_slowdowns_the_plan_is_the_ordinary_one(policy: str) -> None:
    three = merged_profile(3, 2)
    request = slowed_request(three, num_pipelines=3, num_microbatches=3, policy=policy)
    assert make_slowed_plan(request) == make_plan(request.request).plan
    as_profiled = replace(request, slowdowns=(Slowdown(stage=0, slowdown=1.0, dp_rank=1),))
    assert make_slowed_plan(as_profiled) == make_plan(request.request).plan


def test_every_pipeline_keeps_its_order_although_envpipes_would_change_with_the_times() -> None:
    """With stage 1 four times as slow EnvPipe's order would put more forwards before it."""
    two = merged_profile(2, 3)
    request = slowed_request(two, num_pipelines=2, num_microbatches=6, schedule="envpipe")
    slow = replace(request, slowdowns=(Slowdown(stage=0, slowdown=4.0, dp_rank=1),))
    as_profiled = planned(request)
    order = [[(item.kind, item.microbatch) for item in stage] for stage in as_profiled.stages]
    for pipeline in planned_apart(slow).pipelines:
        kept = [[(item.kind, item.microbatch) for item in stage] for stage in pipeline.stages]
        assert kept == order


# ------------------------------------------------------------------ against every plan


@settings(max_examples=25)
@given(profiles(max_stages=3), st.integers(1, 4), st.sampled_from([0.8, 1.1, 1.5]), st.data())
def test_classes_are_what_separate_pipelines_of_these_profiles_would_be(
    profile: StageProfile, num_microbatches: int, slowdown: float, data: st.DataObject
) -> None:
    one = replace(profile, num_ranks_per_stage=(1,) * profile.num_stages)
    stage = data.draw(st.integers(0, profile.num_stages - 1))
    request = request_of(one, num_microbatches, effort=Effort.LOW)

    def slower(key: tuple[int, InstructionKind], point: OperatingPoint) -> OperatingPoint:
        factor = slowdown if key[0] == stage else 1.0
        return replace(point, time_s=factor * point.time_s, energy_j=factor * point.energy_j)

    slow = changed_points(one, slower)
    apart = make_data_parallel_plan(separate_pipelines(request, [one, slow])).plan
    slowdowns = (Slowdown(stage=stage, slowdown=slowdown, dp_rank=1),)
    classes = planned_apart(SlowedRequest(request=request, slowdowns=slowdowns, num_pipelines=2))
    # The profile is of one pipeline, so that two have its energy together.
    assert classes.iteration_time_s == pytest.approx(apart.iteration_time_s)
    assert classes.predicted.baseline_energy_j == pytest.approx(
        apart.predicted.baseline_energy_j / 2
    )
    assert classes.predicted.lower_bound_j == pytest.approx(
        (apart.predicted.lower_bound_j or 0) / 2, rel=1e-4
    )


# ------------------------------------------------------------------ documents


def slow_in_the_middle() -> Plan:
    slow = Slowdown(stage=0, slowdown=7 / 6, dp_rank=1)
    request = slowed_request(merged_profile(4), slow, num_pipelines=4, policy="envelope")
    return planned_apart(request)


def fresh_document() -> dict[str, Any]:
    document = plan_document(slow_in_the_middle(), solve_s=0.5)
    return cast("dict[str, Any]", json.loads(json.dumps(document)))


@pytest.mark.parametrize(
    ("position", "dp_rank", "dp_ranks", "said"),
    [
        (0, 0, [2, 3], r"pipelines\[0\]\.dp_ranks: must rise from 0 on"),
        (0, 0, [0, 3, 2], r"pipelines\[0\]\.dp_ranks: must rise from 0 on"),
        (0, 0, "all", r"pipelines\[0\]\.dp_ranks: must be a valid array"),
        (0, 0, [0, 2, 10**9], "pipelines: must be ordered by dp_rank, and run each"),
        (0, 0, [0, 2, 4], "pipelines: must be ordered by dp_rank, and run each"),
        (1, 1, [1, 3], "pipelines: must be ordered by dp_rank, and run each"),
    ],
)
def test_each_pipeline_of_a_document_must_be_stood_for_once(
    position: int, dp_rank: int, dp_ranks: object, said: str
) -> None:
    document = fresh_document()
    document["pipelines"][position] |= {"dp_rank": dp_rank, "dp_ranks": dp_ranks}
    with pytest.raises(PipelineError, match=said):
        plan_from_document(document)


def test_with_a_profile_of_each_pipeline_those_that_run_alike_are_modelled_one_by_one() -> None:
    plan = slow_in_the_middle()
    first, _, third, fourth = models_by_dp_rank([equal_profile(1)] * 4, plan)
    assert first[1] == third[1] == fourth[1]
    with pytest.raises(PipelineError, match="has 4 pipelines, the profile 2"):
        models_by_dp_rank([equal_profile(1)] * 2, plan)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        *(({"slowdown": wrong}, "slowdown") for wrong in (0.0, 101.0, float("nan"))),
        *(({"stage": wrong}, "stage") for wrong in (2, -1)),
        ({"dp_rank": 2}, "dp_rank"),
    ],
)
def test_a_slowdown_out_of_bounds_is_refused(changes: dict[str, Any], field: str) -> None:
    options = {"stage": 0, "slowdown": 1.1, "dp_rank": 0, **changes}
    with refuses(field):
        slowed_request(merged_profile(2, 2), Slowdown(**options), num_pipelines=2)


# ------------------------------------------------------------------ what stragglers add


def test_a_plan_says_how_much_of_its_baseline_is_stragglers() -> None:
    """Three pipelines take 3 s, the one with the straggler 3.5 s; a drift is none."""
    slow = Slowdown(stage=0, slowdown=7 / 6, dp_rank=2)
    apart = planned_apart(slowed_request(merged_profile(4), slow, num_pipelines=4))
    assert apart.predicted.stragglers_s == pytest.approx(0.5)
    assert plan_from_document(plan_document(apart, solve_s=1.0)).predicted == apart.predicted
    drift = Slowdown(stage=1, slowdown=1.5)
    drifted = planned(slowed_request(equal_profile(2), drift, num_microbatches=2))
    assert drifted.predicted.stragglers_s == 0.0
    # Its only rank is a straggler: what its stage has drifted by is the rank's.
    alone = Slowdown(stage=1, slowdown=1.1, dp_rank=0)
    both = planned(slowed_request(equal_profile(2), drift, alone, num_microbatches=2))
    as_profiled_s = 9.0
    beyond_s = both.predicted.baseline_iteration_time_s - as_profiled_s
    assert both.predicted.stragglers_s == pytest.approx(beyond_s)


def test_a_frontier_begins_at_the_time_of_the_slowest_pipeline() -> None:
    """Its baseline and its plans are of the job as it is, as the plan in force is."""
    slow = Slowdown(stage=0, slowdown=7 / 6, dp_rank=2)
    slowed = slowed_request(merged_profile(4), slow, num_pipelines=4)
    curve, plan = make_slowed_frontier(slowed, 5), planned_apart(slowed)
    assert curve.baseline.iteration_time_s == plan.predicted.baseline_iteration_time_s
    assert curve.baseline.energy_j == pytest.approx(plan.predicted.baseline_energy_j)
    assert curve.points[0].iteration_time_s == pytest.approx(plan.iteration_time_s)
    assert curve.points[0].energy_j == pytest.approx(plan.predicted.energy_j)
    as_profiled = replace(slowed, slowdowns=())
    assert make_slowed_frontier(as_profiled, 5) == make_frontier(slowed.request, 5)
