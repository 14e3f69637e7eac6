"""Data-parallel pipelines with clocks of their own: the slowest sets the time of all."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flyball_profiles.stage_profile import InstructionKind, StageProfile
from flyball_server.planning.documents.plan_document import (
    data_parallel_document,
    data_parallel_plan_from_document,
    is_data_parallel,
    plan_document,
)
from flyball_server.planning.documents.planned_instructions import PlannedInstruction
from flyball_server.planning.documents.recorded_plan import models_of_data_parallel_plan
from flyball_server.planning.errors import PlanningError, TargetUnreachableError
from flyball_server.planning.frontier_curve import make_frontier
from flyball_server.planning.model.data_parallel import (
    DataParallelRequest,
    join_pipelines,
    make_data_parallel_plan,
    separate_pipelines,
    simulate_jointly,
    split_assignment,
)
from flyball_server.planning.model.finish_times import earliest_finish_s
from flyball_server.planning.model.pipeline_model import PipelineModel
from flyball_server.planning.model.simulator import simulate
from flyball_server.planning.plan import DataParallelPlan
from flyball_server.planning.planner import PlanRequest, make_plan, model_of_request
from flyball_server.planning.policies import POLICIES
from flyball_wire.plan_options import Effort, PlanOptions, Policy, Reconfigure

from .oracles import every_plan
from .tiny_pipelines import TICK_S, B, F, Points, equal_profile, profile_of, profiles

ROUNDING = 1e-12

# One stage, one microbatch. At its highest clocks FAST takes 3 s and 40 J; with its forward slow
# 3.25 s and 38 J, with its backward slow 3.5 s and 30 J, with both slow 3.75 s and 28 J.
FAST = equal_profile(1)
HEAVY_BACKWARD: Points = [(1410, 2.0, 30.0), (1000, 2.5, 20.0)]
# 3.5 s and 40 J at its highest clocks; both slow 4.5 s and 29 J.
SLOW = profile_of([{F: [(1410, 1.5, 10.0), (1000, 2.0, 9.0)], B: HEAVY_BACKWARD}])
# 3.4 s and 40 J at its highest clocks.
LESS_SLOW = profile_of([{F: [(1410, 1.4, 10.0), (1000, 2.0, 9.0)], B: HEAVY_BACKWARD}])


def request_of(
    *pipelines: StageProfile,
    num_microbatches: int = 1,
    blocking_power_w: tuple[float, ...] = (5.0,),
    policy: Policy = Policy.FRONTIER,
    reconfigure: Reconfigure = Reconfigure.BALANCED,
    target: str = "fastest",
    schedule: str = "1f1b",
    effort: Effort = Effort.NORMAL,
) -> DataParallelRequest:
    request = PlanRequest(
        profile=pipelines[0],
        num_microbatches=num_microbatches,
        options=PlanOptions(
            blocking_power_w=blocking_power_w,
            policy=policy,
            reconfigure=reconfigure,
            target=target,
            schedule=schedule,
            effort=effort,
        ),
    )
    return separate_pipelines(request, pipelines)


def clocks_mhz(plan: DataParallelPlan, dp_rank: int) -> list[int]:
    stages = plan.pipelines[dp_rank].stages
    return [item.frequency_mhz for stage in stages for item in stage]


# ------------------------------------------------------------------ on paper


def test_a_fast_pipeline_stretches_to_the_time_of_the_slow_one() -> None:
    """SLOW takes 3.5 s: FAST then has room for its slow backward, which fills it exactly.

    30 J and 40 J. Baseline: 40 J each, and FAST waits for 0.5 s at 5 W. A second more is worth
    13 J to the forward and 25 J to the backward, so that no mix of clocks does better.
    """
    plan = make_data_parallel_plan(request_of(FAST, SLOW)).plan
    assert (plan.iteration_time_s, plan.energy_j) == (3.5, 70.0)
    assert (plan.baseline_iteration_time_s, plan.baseline_energy_j) == (3.5, 82.5)
    assert plan.lower_bound_j == pytest.approx(70.0, rel=1e-9)
    assert clocks_mhz(plan, 0) == [1410, 1000]
    assert clocks_mhz(plan, 1) == [1410, 1410]
    assert [pipeline.dp_rank for pipeline in plan.pipelines] == [0, 1]
    assert [pipeline.energy_j for pipeline in plan.pipelines] == [30.0, 40.0]


def test_what_a_pipeline_cannot_fill_it_waits_for_and_pays() -> None:
    """In 3.4 s FAST can slow its forward only: done at 3.25 s, 38 J and 0.15 s at 5 W."""
    plan = make_data_parallel_plan(request_of(LESS_SLOW, FAST)).plan
    waiting = plan.pipelines[1]
    assert plan.iteration_time_s == 3.4
    assert waiting.iteration_time_s == 3.25
    assert waiting.energy_j == pytest.approx(38.75)
    assert clocks_mhz(plan, 1) == [1000, 1410]
    assert plan.energy_j == pytest.approx(40 + 38.75)


def test_each_pipeline_waits_at_its_own_blocking_power() -> None:
    """LESS_SLOW and FAST as above, FAST's GPU at 40 W: 0.15 s of it, 6 J."""
    plan = make_data_parallel_plan(request_of(LESS_SLOW, FAST, blocking_power_w=(5.0, 40.0))).plan
    assert plan.blocking_power_w == (5.0, 40.0)
    assert plan.pipelines[1].energy_j == pytest.approx(38 + 6)
    assert plan.baseline_energy_j == pytest.approx(40 + 40 + 0.4 * 40)


def test_with_time_to_spare_the_slow_one_slows_down_too() -> None:
    """In 4 s SLOW has room for its slow backward, 30 J; FAST runs all slow, 28 J and 0.25 s."""
    plan = make_data_parallel_plan(request_of(FAST, SLOW, target="deadline:4")).plan
    assert [pipeline.iteration_time_s for pipeline in plan.pipelines] == [3.75, 4.0]
    assert plan.energy_j == pytest.approx(28 + 0.25 * 5 + 30)
    assert plan.slowdown_percent == pytest.approx(100 * (4 / 3.5 - 1))


def test_least_energy_counts_what_the_others_pay_for_waiting() -> None:
    """At 60 W, SLOW alone would take a second more for 11 J less: it never waits.

    Together, its first half second saves it 10 J and takes FAST from 30 J in 3.5 s to 28 J and
    0.25 s of waiting, 13 J more; the next one saves it 1 J and has FAST wait for 30 J.
    """
    alone = make_plan(
        request_of(SLOW, target="least-energy", blocking_power_w=(60.0,)).pipelines[0]
    ).plan
    assert (alone.iteration_time_s, alone.energy_j) == (4.5, 29.0)
    plan = make_data_parallel_plan(
        request_of(FAST, SLOW, target="least-energy", blocking_power_w=(60.0,))
    ).plan
    assert plan.iteration_time_s == 3.5
    assert [pipeline.energy_j for pipeline in plan.pipelines] == [30.0, 40.0]


def test_a_deadline_that_the_slowest_misses_is_refused_with_its_time() -> None:
    with pytest.raises(TargetUnreachableError, match=r"the fastest takes 3\.5 s"):
        make_data_parallel_plan(request_of(FAST, SLOW, target="deadline:3.2"))


def test_uniform_gives_each_pipeline_its_own_valley() -> None:
    """Not reconfigured: FAST 3.75 s and 28 J, SLOW 4.5 s and 29 J; FAST waits for 0.75 s."""
    plan = make_data_parallel_plan(
        request_of(FAST, SLOW, policy=Policy.UNIFORM, reconfigure=Reconfigure.DEFAULT)
    ).plan
    assert plan.iteration_time_s == 4.5
    assert plan.energy_j == pytest.approx(28 + 0.75 * 5 + 29)
    assert plan.lower_bound_j is None


@pytest.mark.parametrize("reconfigure", ["default", "greedy", "balanced"])
@pytest.mark.parametrize("policy", ["baseline", "uniform", "envelope"])
def test_envpipes_policies_decide_for_each_pipeline_as_if_it_were_alone(
    policy: Policy, reconfigure: Reconfigure
) -> None:
    slow = profile_of([{F: [(1500, 2.0, 9.0), (900, 3.0, 7.0)], B: HEAVY_BACKWARD}] * 2)
    request = request_of(
        equal_profile(2), slow, num_microbatches=3, policy=policy, reconfigure=reconfigure
    )
    plan = make_data_parallel_plan(request).plan
    for pipeline, alone in zip(plan.pipelines, request.pipelines, strict=True):
        assert pipeline.stages == make_plan(alone).plan.stages


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_equal_pipelines_take_as_long_as_one_and_as_many_times_its_energy(policy: Policy) -> None:
    one = make_plan(
        PlanRequest(
            profile=equal_profile(2),
            num_microbatches=2,
            options=PlanOptions(blocking_power_w=(5.0,), policy=policy),
        )
    ).plan
    three = make_data_parallel_plan(
        request_of(*[equal_profile(2)] * 3, num_microbatches=2, policy=policy)
    ).plan
    assert three.iteration_time_s == one.iteration_time_s
    assert three.energy_j == pytest.approx(3 * one.energy_j)
    assert three.baseline_energy_j == pytest.approx(3 * one.baseline_energy_j)
    if one.lower_bound_j is not None:
        assert three.lower_bound_j == pytest.approx(3 * one.lower_bound_j)


# ------------------------------------------------------------------ the joint model


@given(profiles(max_stages=3), profiles(max_stages=3), st.integers(1, 4), st.data())
def test_side_by_side_each_pipeline_runs_as_it_does_alone(
    first: StageProfile, second: StageProfile, num_microbatches: int, data: st.DataObject
) -> None:
    models = [
        model_of_request(
            PlanRequest(
                profile=profile,
                num_microbatches=num_microbatches,
                options=PlanOptions(blocking_power_w=(power_w,)),
            )
        )
        for profile, power_w in ((first, 5.0), (second, 12.5))
    ]
    joint = join_pipelines(models)
    assignments = [
        [data.draw(st.integers(0, len(points) - 1)) for points in model.points] for model in models
    ]
    both = list(itertools.chain(*assignments))
    assert split_assignment(models, both) == assignments
    assert earliest_finish_s(joint.dag, joint.durations_s(both)) == [
        finish_s
        for model, assignment in zip(models, assignments, strict=True)
        for finish_s in earliest_finish_s(model.dag, model.durations_s(assignment))
    ]
    simulation = simulate_jointly(models, assignments)
    alone = [simulate(*pair) for pair in zip(models, assignments, strict=True)]
    end_s = max(own.iteration_time_s for own in alone)
    assert simulation.whole.iteration_time_s == end_s
    energies_j = [
        own.energy_j + (end_s - own.iteration_time_s) * sum(model.stage_blocking_power_w)
        for own, model in zip(alone, models, strict=True)
    ]
    assert [own.energy_j for own in simulation.pipelines] == pytest.approx(energies_j)
    assert simulation.whole.energy_j == pytest.approx(sum(energies_j))
    stages = [model.schedule.num_stages for model in models]
    idle = [
        own.bubble_fraction * num for own, num in zip(simulation.pipelines, stages, strict=True)
    ]
    assert simulation.whole.bubble_fraction == pytest.approx(sum(idle) / sum(stages), abs=1e-9)


# ------------------------------------------------------------------ against every plan


def best_energy_j(models: Sequence[PipelineModel], deadline_s: float) -> float:
    """The least energy of all choices of one plan for each pipeline, all done by the deadline."""
    power_w = [sum(model.stage_blocking_power_w) for model in models]
    best_j = float("inf")
    for plans in itertools.product(*(every_plan(model) for model in models)):
        end_s = max(time_s for time_s, _ in plans)
        energy_j = sum(
            energy_j + (end_s - time_s) * waiting_w
            for (time_s, energy_j), waiting_w in zip(plans, power_w, strict=True)
        )
        if end_s <= deadline_s:
            best_j = min(best_j, energy_j)
    return best_j


def drawn_profile(rng: random.Random, num_stages: int, num_points: int) -> StageProfile:
    """Times are multiples of a tick; energy mostly falls with the clock, as on a GPU."""

    def points() -> Points:
        clocks = sorted(rng.sample(range(50, 95), num_points), reverse=True)
        ticks, energy_j, rows = rng.randint(4, 30), rng.randint(45, 60), []
        for clock in clocks:
            rows.append((15 * clock, ticks * TICK_S, float(energy_j)))
            ticks, energy_j = ticks + rng.randint(1, 8), energy_j - rng.randint(0, 12)
        return rows

    kinds: tuple[InstructionKind, ...] = (F, B)
    stages = [{kind: points() for kind in kinds} for _ in range(num_stages)]
    return profile_of(stages, [rng.randint(1, 2) for _ in range(num_stages)])


def slowed(profile: StageProfile, sixteenths: int) -> StageProfile:
    """The profile of GPUs that take so many sixteenths longer for everything."""
    return StageProfile(
        points={
            key: tuple(
                replace(point, time_s=point.time_s * (16 + sixteenths) / 16) for point in points
            )
            for key, points in profile.points.items()
        },
        num_ranks_per_stage=profile.num_ranks_per_stage,
    )


def drawn_request(
    seed: int, target: str, effort: Effort, *, are_alike: bool = False
) -> DataParallelRequest:
    """Two pipelines, each of at most 16 plans, or three of 4.

    Alike ones run the same program on GPUs of other speed; the others have nothing in common.
    """
    rng = random.Random(seed)
    num_pipelines, num_stages, num_microbatches, num_points = rng.choice(
        [(2, 1, 1, 4), (2, 2, 1, 2), (2, 1, 2, 2), (3, 1, 1, 2)]
    )
    drawn = [drawn_profile(rng, num_stages, num_points) for _ in range(num_pipelines)]
    power_w = [float(rng.randint(0, 150)) for _ in range(num_pipelines * num_stages)]
    if are_alike:
        drawn = [slowed(drawn[0], rng.randint(0, 6)) for _ in drawn]
        power_w = power_w[:num_stages]
    return request_of(
        *drawn,
        num_microbatches=num_microbatches,
        blocking_power_w=tuple(power_w),
        schedule=rng.choice(["gpipe", "1f1b", "envpipe"]),
        target=target,
        effort=effort,
    )


@settings(max_examples=40)
@given(st.integers(0, 10**6), st.sampled_from([0.0, 0.05, 0.3]))
def test_bound_below_best_of_all_below_plan_and_no_plan_late(seed: int, slowdown: float) -> None:
    request = drawn_request(seed, f"slowdown:{slowdown}", Effort.LOW)
    plan = make_data_parallel_plan(request).plan
    deadline_s = plan.baseline_iteration_time_s * (1 + slowdown)
    models = [model_of_request(pipeline) for pipeline in request.pipelines]
    best_j = best_energy_j(models, deadline_s)
    assert plan.iteration_time_s <= deadline_s
    assert plan.lower_bound_j is not None
    assert plan.lower_bound_j <= best_j * (1 + ROUNDING)
    assert plan.energy_j >= best_j * (1 - ROUNDING)
    ends_s = [pipeline.iteration_time_s for pipeline in plan.pipelines]
    assert plan.iteration_time_s == max(ends_s)
    shares_j = [pipeline.energy_j for pipeline in plan.pipelines]
    assert plan.energy_j == pytest.approx(sum(shares_j))


LIMITS = {"fastest": 1.0, "slowdown:0.1": 1.1, "least-energy": 100.0}


def test_the_frontier_of_both_starts_where_the_slowest_allows_and_ends_at_the_least_energy() -> (
    None
):
    """From 70 J in 3.5 s down to 59.25 J in 4 s; slower than that SLOW gains 1 J in 0.5 s.

    Waiting for 0.5 s costs both 5 J.
    """
    curve = make_frontier(request_of(FAST, SLOW), 8)
    figures = {(point.iteration_time_s, point.energy_j) for point in curve.points}
    assert min(figures) == (3.5, 70.0)
    assert max(figures) == pytest.approx((4.0, 59.25))
    assert all(point.lower_bound_j <= point.energy_j * (1 + ROUNDING) for point in curve.points)
    assert (curve.baseline.iteration_time_s, curve.baseline.energy_j) == (3.5, 82.5)
    assert curve.envpipe[0].name == "uniform, default"
    assert curve.envpipe[0].energy_j == pytest.approx(28 + 0.75 * 5 + 29)


# ------------------------------------------------------------------ documents

PLAN = make_data_parallel_plan(
    request_of(
        equal_profile(2),
        profile_of([{F: [(1500, 1.2, 9.0), (900, 3.0, 7.0)], B: HEAVY_BACKWARD}] * 2),
        num_microbatches=2,
        blocking_power_w=(5.0, 6.0, 7.0, 8.0),
    )
).plan
PROFILES = [
    equal_profile(2),
    profile_of([{F: [(1500, 1.2, 9.0), (900, 3.0, 7.0)], B: HEAVY_BACKWARD}] * 2),
]


def fresh_document() -> dict[str, Any]:
    document: dict[str, Any] = json.loads(json.dumps(data_parallel_document(PLAN, solve_s=0.5)))
    return document


def test_a_document_has_the_fields_of_a_plan_and_pipelines_in_the_place_of_stages() -> None:
    document = fresh_document()
    single = make_plan(request_of(FAST).pipelines[0]).plan
    fields = set(plan_document(single, solve_s=0.5)) - {"stages"}
    assert set(document) == fields | {"pipelines"}
    assert document["num_stages"] == 2
    for dp_rank, pipeline in enumerate(document["pipelines"]):
        assert set(pipeline) == {"dp_rank", "iteration_time_s", "energy_j", "stages"}
        assert pipeline["dp_rank"] == dp_rank
    assert is_data_parallel(document)
    assert not is_data_parallel(plan_document(single, solve_s=0.5))
    assert not is_data_parallel(["pipelines"])


def test_a_plan_simulates_to_its_own_prediction() -> None:
    models, assignments = zip(*models_of_data_parallel_plan(PROFILES, PLAN), strict=True)
    simulation = simulate_jointly(models, assignments)
    assert simulation.whole.iteration_time_s == PLAN.iteration_time_s
    assert simulation.whole.energy_j == PLAN.energy_j
    assert [own.energy_j for own in simulation.pipelines] == [
        pipeline.energy_j for pipeline in PLAN.pipelines
    ]


@pytest.mark.parametrize(
    ("place", "value", "said"),
    [
        (("pipelines",), [], "pipelines: must hold at least one pipeline"),
        (("pipelines",), {}, "pipelines: must be a list"),
        (("pipelines", 0), 7, r"pipelines\[0\]: must be an object"),
        (("pipelines", 1, "dp_rank"), 2, r"pipelines\[1\]\.dp_rank: must be 1"),
        (("pipelines", 1, "dp_rank"), None, r"pipelines\[1\]\.dp_rank: must be a count"),
        (("pipelines", 1, "energy_j"), -1, r"pipelines\[1\]\.energy_j: must be a number above"),
        (("pipelines", 0, "stages"), None, r"pipelines\[0\]\.stages: must be a list"),
        (
            ("pipelines", 0, "stages", 1, 0),
            ["sideways", 0, 1410],
            r"pipelines\[0\]\.stages\[1\]\[0\]: unknown instruction",
        ),
        (("baseline",), None, "baseline: must be an object"),
    ],
)
def test_a_document_with_one_wrong_part_is_refused_with_the_part(
    place: tuple[str | int, ...], value: object, said: str
) -> None:
    document: Any = fresh_document()
    part = document
    for step in place[:-1]:
        part = part[step]
    part[place[-1]] = value
    with pytest.raises(PlanningError, match=said):
        data_parallel_plan_from_document(document)


def test_a_plan_of_two_pipelines_does_not_fit_a_profile_of_three() -> None:
    with pytest.raises(PlanningError, match="has 2 pipelines, the profile 3") as error:
        models_of_data_parallel_plan([*PROFILES, PROFILES[0]], PLAN)
    assert error.value.field == "pipelines"


def test_a_clock_that_one_pipelines_profile_does_not_have_is_refused_with_the_pipeline() -> None:
    unknown = PlannedInstruction(kind=F, microbatch=0, frequency_mhz=7)
    stages = PLAN.pipelines[1].stages
    changed = replace(PLAN.pipelines[1], stages=((unknown, *stages[0][1:]), stages[1]))
    with pytest.raises(PlanningError, match="runs at 7 MHz, which the profile") as error:
        models_of_data_parallel_plan(
            PROFILES, replace(PLAN, pipelines=(PLAN.pipelines[0], changed))
        )
    assert error.value.field == "pipelines[1].stages"


# ------------------------------------------------------------------ refusals


@pytest.mark.parametrize("num_values", [0, 3, 5])
def test_blocking_power_is_one_value_or_one_per_stage_or_per_stage_of_each(
    num_values: int,
) -> None:
    with pytest.raises(PlanningError, match="for 2 pipelines of 2 stages") as error:
        request_of(equal_profile(2), equal_profile(2), blocking_power_w=(5.0,) * num_values)
    assert error.value.field == "blocking_power_w"


def test_one_blocking_power_per_stage_is_that_of_every_pipeline() -> None:
    request = request_of(equal_profile(2), equal_profile(2), blocking_power_w=(5.0, 6.0))
    assert [pipeline.blocking_power_w for pipeline in request.pipelines] == [(5.0, 6.0)] * 2
    request = request_of(equal_profile(2), equal_profile(2), blocking_power_w=(5.0, 6.0, 7.0, 8.0))
    assert [pipeline.blocking_power_w for pipeline in request.pipelines] == [(5, 6), (7, 8)]
