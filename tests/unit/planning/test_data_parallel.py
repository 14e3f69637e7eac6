"""Data-parallel pipelines with clocks of their own: the slowest sets the time of all."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from flyball_pipeline.errors import PipelineError
from flyball_pipeline.paths import earliest_finish_s
from flyball_profiles.stage_profile import StageProfile
from flyball_profiles.stage_profile_csv import (
    parse_pipeline_profiles,
    parse_stage_profile,
)
from flyball_server.planning.data_parallel import (
    make_data_parallel_plan,
    separate_pipelines,
)
from flyball_server.planning.documents.recorded_plan import models_by_dp_rank
from flyball_server.planning.frontier_curve import make_frontier
from flyball_server.planning.model.joint_model import (
    join_pipelines,
    split_assignment,
)
from flyball_server.planning.model.pipeline_model import PipelineModel
from flyball_server.planning.model.simulator import simulate, simulate_jointly, time_and_energy
from flyball_server.planning.planner import PlanRequest, make_plan, model_of_request
from flyball_wire.plan_options import Effort
from flyball_wire.plans.plan import Plan, PlannedInstruction

from .oracles import every_plan
from .tiny_pipelines import (
    B,
    F,
    Points,
    equal_profile,
    operating_points,
    profile_of,
    profiles,
    refuses,
    request_of,
)

ROUNDING = 1e-12

# One stage, one microbatch. At its highest clocks FAST takes 3 s and 40 J; with its forward slow
# 3.25 s and 38 J, with its backward slow 3.5 s and 30 J, with both slow 3.75 s and 28 J.
FAST = equal_profile(1)
HEAVY_BACKWARD: Points = [(1410, 2.0, 30.0), (1000, 2.5, 20.0)]
# 3.5 s and 40 J at its highest clocks; both slow 4.5 s and 29 J.
SLOW = profile_of([{F: [(1410, 1.5, 10.0), (1000, 2.0, 9.0)], B: HEAVY_BACKWARD}])


def pipelines_of(
    *pipelines: StageProfile,
    num_microbatches: int = 1,
    **options: Any,  # noqa: ANN401 - any option
) -> tuple[PlanRequest, ...]:
    return separate_pipelines(request_of(pipelines[0], num_microbatches, **options), pipelines)


def clocks_mhz(plan: Plan, dp_rank: int) -> list[int]:
    stages = plan.pipelines[dp_rank].stages
    return [item.frequency_mhz for stage in stages for item in stage]


# ------------------------------------------------------------------ on paper


def test_a_fast_pipeline_stretches_to_the_time_of_the_slow_one() -> None:
    """SLOW takes 3.5 s: FAST then has room for its slow backward, which fills it exactly.

    30 J and 40 J. Baseline: 40 J each, and FAST waits for 0.5 s at 5 W. A second more is worth
    13 J to the forward and 25 J to the backward, so that no mix of clocks does better.
    """
    plan = make_data_parallel_plan(pipelines_of(FAST, SLOW)).plan
    assert (plan.iteration_time_s, plan.predicted.energy_j) == (3.5, 70.0)
    assert (plan.predicted.baseline_iteration_time_s, plan.predicted.baseline_energy_j) == (
        3.5,
        82.5,
    )
    assert plan.predicted.lower_bound_j == pytest.approx(70.0, rel=1e-9)
    assert clocks_mhz(plan, 0) == [1410, 1000]
    assert clocks_mhz(plan, 1) == [1410, 1410]
    assert [pipeline.dp_ranks for pipeline in plan.pipelines] == [(0,), (1,)]
    assert [pipeline.energy_j for pipeline in plan.pipelines] == [30.0, 40.0]


def test_least_energy_counts_what_the_others_pay_for_waiting() -> None:
    """At 60 W, SLOW alone would take a second more for 11 J less: it never waits.

    Together, its first half second saves it 10 J and takes FAST from 30 J in 3.5 s to 28 J and
    0.25 s of waiting, 13 J more; the next one saves it 1 J and has FAST wait for 30 J.
    """
    alone = make_plan(pipelines_of(SLOW, target="least-energy", blocking_power_w=(60.0,))[0]).plan
    assert (alone.iteration_time_s, alone.predicted.energy_j) == (4.5, 29.0)
    plan = make_data_parallel_plan(
        pipelines_of(FAST, SLOW, target="least-energy", blocking_power_w=(60.0,))
    ).plan
    assert plan.iteration_time_s == 3.5
    assert [pipeline.energy_j for pipeline in plan.pipelines] == [30.0, 40.0]


# ------------------------------------------------------------------ the joint model


@given(profiles(max_stages=3), profiles(max_stages=3), st.integers(1, 4), st.data())
def test_side_by_side_each_pipeline_runs_as_it_does_alone(
    first: StageProfile, second: StageProfile, num_microbatches: int, data: st.DataObject
) -> None:
    models = [
        model_of_request(request_of(profile, num_microbatches, blocking_power_w=(power_w,)))
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


@st.composite
def enumerable_requests(draw: st.DrawFn) -> tuple[PlanRequest, ...]:
    """Two pipelines, each of at most 16 plans, or three of 4."""
    num_pipelines, num_stages, num_microbatches, num_points = draw(
        st.sampled_from([(2, 1, 1, 4), (2, 2, 1, 2), (2, 1, 2, 2), (3, 1, 1, 2)])
    )

    def drawn_list(least: int, most: int, length: int) -> list[int]:
        return draw(st.lists(st.integers(least, most), min_size=length, max_size=length))

    pipelines = [
        profile_of(
            [
                {kind: draw(operating_points())[:num_points] for kind in (F, B)}
                for _ in range(num_stages)
            ],
            drawn_list(1, 2, num_stages),
        )
        for _ in range(num_pipelines)
    ]
    return pipelines_of(
        *pipelines,
        num_microbatches=num_microbatches,
        blocking_power_w=tuple(map(float, drawn_list(0, 150, num_pipelines * num_stages))),
        schedule=draw(st.sampled_from(["gpipe", "1f1b", "envpipe"])),
        effort=Effort.LOW,
    )


def models_of_plausible(requests: Sequence[PlanRequest]) -> list[PipelineModel]:
    """The pipelines' models; a profile whose units are taken for wrong is not drawn."""
    try:
        return [model_of_request(pipeline) for pipeline in requests]
    except PipelineError as error:
        assume("check the units" not in str(error))
        raise


@settings(max_examples=20)
@given(enumerable_requests(), st.sampled_from([0.0, 0.05, 0.3]))
def test_bound_below_best_of_all_below_plan_and_no_plan_late(
    requests: tuple[PlanRequest, ...], slowdown: float
) -> None:
    models = models_of_plausible(requests)
    pipelines = [one.with_options(target=f"slowdown:{slowdown}") for one in requests]
    plan = make_data_parallel_plan(pipelines).plan
    deadline_s = plan.predicted.baseline_iteration_time_s * (1 + slowdown)
    best_j = best_energy_j(models, deadline_s)
    assert plan.iteration_time_s <= deadline_s
    assert plan.predicted.lower_bound_j is not None
    assert plan.predicted.lower_bound_j <= best_j * (1 + ROUNDING)
    assert plan.predicted.energy_j >= best_j * (1 - ROUNDING)
    ends_s = [pipeline.iteration_time_s or 0.0 for pipeline in plan.pipelines]
    assert plan.iteration_time_s == max(ends_s)
    shares_j = [pipeline.energy_j or 0.0 for pipeline in plan.pipelines]
    assert plan.predicted.energy_j == pytest.approx(sum(shares_j))


def test_the_frontier_of_both_starts_where_the_slowest_allows_and_ends_at_the_least_energy() -> (
    None
):
    """From 70 J in 3.5 s down to 59.25 J in 4 s; slower than that SLOW gains 1 J in 0.5 s.

    Waiting for 0.5 s costs both 5 J.
    """
    curve = make_frontier(pipelines_of(FAST, SLOW), 8)
    figures = {(point.iteration_time_s, point.energy_j) for point in curve.points}
    assert min(figures) == (3.5, 70.0)
    assert max(figures) == pytest.approx((4.0, 59.25))
    assert all(point.lower_bound_j <= point.energy_j * (1 + ROUNDING) for point in curve.points)
    assert (curve.baseline.iteration_time_s, curve.baseline.energy_j) == (3.5, 82.5)
    assert curve.envpipe[0].name == "uniform, default"
    assert curve.envpipe[0].energy_j == pytest.approx(28 + 0.75 * 5 + 29)


# ------------------------------------------------------------------ documents


PROFILES = [
    equal_profile(2),
    profile_of([{F: [(1500, 1.2, 9.0), (900, 3.0, 7.0)], B: HEAVY_BACKWARD}] * 2),
]
PLAN = make_data_parallel_plan(
    pipelines_of(*PROFILES, num_microbatches=2, blocking_power_w=(5.0, 6.0, 7.0, 8.0))
).plan


def test_a_plan_simulates_to_its_own_prediction() -> None:
    models, assignments = zip(*models_by_dp_rank(PROFILES, PLAN), strict=True)
    simulation = simulate_jointly(models, assignments)
    assert simulation.whole.iteration_time_s == PLAN.iteration_time_s
    assert simulation.whole.energy_j == PLAN.predicted.energy_j
    assert [own.energy_j for own in simulation.pipelines] == [
        pipeline.energy_j for pipeline in PLAN.pipelines
    ]


def test_a_clock_that_one_pipelines_profile_does_not_have_is_refused_with_the_pipeline() -> None:
    unknown = PlannedInstruction(kind=F, microbatch=0, frequency_mhz=7)
    stages = PLAN.pipelines[1].stages
    changed = replace(PLAN.pipelines[1], stages=((unknown, *stages[0][1:]), stages[1]))
    with refuses("pipelines[1].stages", "runs at 7 MHz, which the profile"):
        models_by_dp_rank(PROFILES, replace(PLAN, pipelines=(PLAN.pipelines[0], changed)))


def test_blocking_power_is_one_value_or_one_per_stage_or_per_stage_of_each() -> None:
    both = (equal_profile(2), equal_profile(2))
    request = pipelines_of(*both, blocking_power_w=(5.0, 6.0))
    assert [pipeline.blocking_power_w for pipeline in request] == [(5.0, 6.0)] * 2
    request = pipelines_of(*both, blocking_power_w=(5.0, 6.0, 7.0, 8.0))
    assert [pipeline.blocking_power_w for pipeline in request] == [(5, 6), (7, 8)]
    for num_values in (0, 3, 5):
        with refuses("blocking_power_w", "for 2 pipelines of 2 stages"):
            pipelines_of(*both, blocking_power_w=(5.0,) * num_values)


WIDE = """dp_rank,stage,instruction,frequency,time,energy
0,0,forward,1410,1.0,10
0,0,forward,1000,1.25,8
0,0,backward,1410,2.0,30
0,0,backward,1000,2.5,20
1,0,forward,1410,1.5,10
1,0,forward,1000,2.0,9
1,0,backward,1410,2.0,30
1,0,backward,1000,2.5,20
"""


@given(st.data(), st.integers(1, 3), st.integers(1, 3), st.integers(1, 2))
def test_merged_and_separate_differ_by_waiting_for_the_later_end_alone(
    data: st.DataObject, num_stages: int, num_microbatches: int, num_tp_ranks: int
) -> None:
    """At the same clocks, and by no more than the pipeline that is nearest to the slowest is."""
    quantity, num_pipelines = st.integers(1, 40), data.draw(st.integers(1, 3))
    lines = [
        f"{tp_rank},{dp_rank},{stage},{kind},{mhz},{data.draw(quantity) / 64},{data.draw(quantity)}"
        for tp_rank in range(num_tp_ranks)
        for dp_rank in range(num_pipelines)
        for stage in range(num_stages)
        for kind in ("forward", "backward")
        for mhz in (1410, 1000)
    ]
    text = "\n".join([f"tp_rank,{WIDE.partition(chr(10))[0]}", *lines])
    # Up to 16 W, so that no GPU seems to draw far less at work than while it waits.
    power_w = tuple(float(data.draw(st.integers(1, 16))) for _ in range(num_stages))
    merged = model_of_request(
        request_of(parse_stage_profile(text), num_microbatches, blocking_power_w=power_w)
    )
    request = pipelines_of(
        *parse_pipeline_profiles(text),
        num_microbatches=num_microbatches,
        blocking_power_w=power_w,
    )
    models = [model_of_request(pipeline) for pipeline in request]
    clocks = [data.draw(st.integers(0, 1)) for _ in merged.points]
    merged_s, merged_j = time_and_energy(merged, clocks)
    separate_s, separate_j = time_and_energy(join_pipelines(models), clocks * num_pipelines)
    waiting_w = num_pipelines * num_tp_ranks * sum(power_w)
    assert merged_j == pytest.approx(separate_j + (merged_s - separate_s) * waiting_w)
    # Of each pipeline: by how much another one is slower in any of its instructions at most.
    behind = [
        max(
            slowest[clock].time_s / own[clock].time_s
            for slowest, own, clock in zip(merged.points, model.points, clocks, strict=True)
        )
        for model in models
    ]
    assert separate_s * (1 - ROUNDING) <= merged_s
    assert merged_s <= min(behind) * separate_s * (1 + ROUNDING)
