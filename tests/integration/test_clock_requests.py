"""Iterations of a plan where clocks change late: by 5 ms, and with the default physics."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from statistics import fmean

import pytest

from flyball_client.gpu.emulated import DEFAULT_PHYSICS, EmulatedGpuSettings, RandomTime
from flyball_lab.demo.options import demo_profile
from flyball_lab.emulation.emulated_pipeline import EmulatedRank, planned_ranks, run_step
from flyball_profiles.clock_transitions import ClockTransitions
from flyball_profiles.stage_profile import StageProfile
from flyball_server.planning.documents.recorded_plan import model_of_plan
from flyball_server.planning.model.simulator import time_and_energy
from flyball_server.planning.planner import PlanRequest, make_plan
from flyball_wire.plan_options import Effort, PlanOptions
from flyball_wire.plans.plan import Plan

# Forward and backward of 50 and 92 ms at the highest clock.
PROFILE = demo_profile()
NUM_STAGES, NUM_MICROBATCHES, BLOCKING_POWER_W = PROFILE.num_stages, 8, 83.64


@pytest.fixture(scope="module")
def plan() -> Plan:
    """The least energy at no slowdown, made for clocks that change at once."""
    options = PlanOptions(blocking_power_w=(BLOCKING_POWER_W,))
    return make_plan(
        PlanRequest(profile=PROFILE, num_microbatches=NUM_MICROBATCHES, options=options)
    ).plan


@contextmanager
def emulated_ranks(
    plan: Plan,
    settings: EmulatedGpuSettings,
    requests: Sequence[Sequence[tuple[int, int, float]]] = (),
    profile: StageProfile = PROFILE,
) -> Iterator[list[EmulatedRank]]:
    """Ranks that follow the plan."""
    with planned_ranks(
        profile,
        [[item[:3] for item in of_stage] for of_stage in plan.stages],
        iteration_time_s=plan.iteration_time_s,
        blocking_power_w=BLOCKING_POWER_W,
        settings=settings,
        requests=requests,
    ) as ranks:
        yield ranks


def test_a_plan_for_the_calls_of_a_node_is_in_time_where_another_is_late() -> None:
    """Four stages with a GPU each in one node, an eighth as long: forwards of some 6 ms."""
    call = DEFAULT_PHYSICS.call_time
    assert call is not None
    times = replace(
        ClockTransitions.of_medians(
            DEFAULT_PHYSICS.delay_up.p50_s, DEFAULT_PHYSICS.delay_down.p50_s
        ),
        call_p50_s=call.p50_s,
        call_p95_s=2 * call.p50_s,
    )
    points = {
        key: tuple(
            replace(point, time_s=point.time_s / 8, energy_j=point.energy_j / 8) for point in of_key
        )
        for key, of_key in PROFILE.points.items()
    }
    profile = replace(PROFILE, points=points)
    options = PlanOptions(
        blocking_power_w=(BLOCKING_POWER_W,), transitions=times, reserve=0.0, effort=Effort.LOW
    )
    request = PlanRequest(profile=profile, num_microbatches=NUM_MICROBATCHES, options=options)
    longer: list[float] = []
    for asked in (request, request.with_options(gpus_in_node=NUM_STAGES)):
        plan = make_plan(asked).plan
        assert plan.slowdown_percent < 1e-6
        with emulated_ranks(plan, DEFAULT_PHYSICS, request_rows(plan), profile) as ranks:
            _, *steps = (run_step(ranks, num_stages=NUM_STAGES) for _ in range(13))
        mean_s = fmean(step[0].time_s for step in steps)
        longer.append(mean_s / plan.predicted.baseline_iteration_time_s - 1)
    assert longer[0] > 0.02
    assert longer[1] < 0.003
    assert plan.predicted.saving_percent > 5


def request_rows(plan: Plan) -> list[list[tuple[int, int, float]]]:
    """Rows of each stage's early requests."""
    return [
        [row[1:] for row in plan.pipelines[0].requests if row.stage == stage]
        for stage in range(NUM_STAGES)
    ]


def test_ranks_take_what_the_planner_predicts_with_its_own_requests() -> None:
    delay_s = 0.03
    options = PlanOptions(blocking_power_w=(BLOCKING_POWER_W,), transition_ms=1e3 * delay_s)
    plan = make_plan(
        PlanRequest(profile=PROFILE, num_microbatches=NUM_MICROBATCHES, options=options)
    ).plan
    assert plan.pipelines[0].requests
    settings = EmulatedGpuSettings.exact_delay(delay_s)
    with emulated_ranks(plan, settings, request_rows(plan)) as ranks:
        _, *steps = (run_step(ranks, num_stages=NUM_STAGES) for _ in range(4))
    for step in steps:
        assert step[0].time_s == pytest.approx(plan.iteration_time_s, rel=1e-6)
        assert sum(rank.energy_j or 0.0 for rank in step) == pytest.approx(
            plan.predicted.energy_j, rel=1e-6
        )


def test_rows_of_another_number_of_stages_are_refused(plan: Plan) -> None:
    with (
        pytest.raises(ValueError, match="requests must be of 4 stages, not 1"),
        emulated_ranks(plan, DEFAULT_PHYSICS, [[]]),
    ):
        pass


@pytest.mark.parametrize(("up_s", "down_s"), [(0.009, 0.004), (0.06, 0.11)])
def test_the_planner_predicts_what_the_ranks_take(plan: Plan, up_s: float, down_s: float) -> None:
    """Also where a delay is longer than an instruction, and the first clocks come late."""
    settings = EmulatedGpuSettings(
        call_time=RandomTime(),
        delay_up=RandomTime(p50_s=up_s),
        delay_down=RandomTime(p50_s=down_s),
    )
    with emulated_ranks(plan, settings) as ranks:
        *_, step = (run_step(ranks, num_stages=NUM_STAGES) for _ in range(4))
    late = replace(
        plan,
        transitions=ClockTransitions(
            up_p5_s=up_s,
            up_p50_s=up_s,
            up_p95_s=up_s,
            down_p5_s=down_s,
            down_p50_s=down_s,
            down_p95_s=down_s,
        ),
    )
    time_s, energy_j = time_and_energy(*model_of_plan(PROFILE, late))
    assert step[0].time_s == pytest.approx(time_s, rel=1e-6)
    assert sum(rank.energy_j or 0.0 for rank in step) == pytest.approx(energy_j, rel=1e-6)


def test_by_default_an_iteration_is_as_long_as_the_baselines_and_takes_the_predicted_energy(
    plan: Plan,
) -> None:
    baseline_s = plan.predicted.baseline_iteration_time_s
    with emulated_ranks(plan, DEFAULT_PHYSICS) as ranks:
        # The first step's first clocks are requested as it begins.
        _, *steps = (run_step(ranks, num_stages=NUM_STAGES) for _ in range(31))
    time_s = fmean(step[0].time_s for step in steps)
    energy_j = fmean(sum(rank.energy_j or 0.0 for rank in step) for step in steps)
    assert 1 < time_s / baseline_s < 1.005
    assert energy_j == pytest.approx(plan.predicted.energy_j, rel=0.01)
    assert energy_j < 0.9 * plan.predicted.baseline_energy_j
