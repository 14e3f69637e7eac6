"""Iterations of a plan where clocks change late: by 5 ms, and with the default physics."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
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
from flyball_wire.plans.plan import Plan, PlannedInstruction

# Forward and backward of 50 and 92 ms at the highest clock.
PROFILE = demo_profile()
NUM_STAGES, NUM_MICROBATCHES, BLOCKING_POWER_W = PROFILE.num_stages, 8, 83.64
DELAY_S = 0.005

RequestedAt = Callable[[float, float], float]
"""Moment of a request, of the end of the instruction before and the start of its own, in s."""


@pytest.fixture(scope="module")
def plan() -> Plan:
    """The least energy at no slowdown, made for clocks that change at once."""
    options = PlanOptions(blocking_power_w=(BLOCKING_POWER_W,))
    return make_plan(
        PlanRequest(profile=PROFILE, num_microbatches=NUM_MICROBATCHES, options=options)
    ).plan


@dataclass
class Stage:
    """A stage in the formula: its clock, and the ends of its instructions."""

    instructions: Sequence[PlannedInstruction]
    clock_mhz: int
    ended_s: float = 0.0
    num_run: int = 0


def times_by_formula(
    plan: Plan, requested_at: RequestedAt, *, delay_s: float, num_steps: int
) -> list[float]:
    """Iteration times in s of 1F1B: x = clamp(r + L - s, 0, T0), t = x + T1 (1 - x / T0)."""
    stages = [
        Stage(of_stage, PROFILE.points[0, of_stage[0].kind][0].frequency_mhz)
        for of_stage in plan.stages
    ]
    began_s, times_s = 0.0, []
    for _ in range(num_steps):
        ready_s: dict[tuple[int, str, int], float] = {}
        for stage in stages:
            stage.num_run = 0
        while any(stage.num_run < len(stage.instructions) for stage in stages):
            for number, stage in enumerate(stages):
                if stage.num_run < len(stage.instructions):
                    _run(stage, number, ready_s, began_s, requested_at, delay_s)
        ended_s = max(stage.ended_s for stage in stages)
        times_s.append(ended_s - began_s)
        began_s = ended_s
    return times_s


def _run(
    stage: Stage,
    number: int,
    ready_s: dict[tuple[int, str, int], float],
    step_began_s: float,
    requested_at: RequestedAt,
    delay_s: float,
) -> None:
    """Run the stage's next instruction, if its input is there."""
    item = stage.instructions[stage.num_run]
    is_forward = item.kind == "forward"
    is_fed = number > 0 if is_forward else number < NUM_STAGES - 1
    received_s = ready_s.get((number, item.kind, item.microbatch), None if is_fed else 0.0)
    if received_s is None:
        return
    begins_s = max(stage.ended_s, step_began_s, received_s)
    times_s = {point.frequency_mhz: point.time_s for point in PROFILE.points[number, item.kind]}
    before_s, after_s = times_s[stage.clock_mhz], times_s[item.frequency_mhz]
    late_s = requested_at(stage.ended_s, begins_s) + delay_s - begins_s
    old_s = min(max(late_s, 0.0), before_s)
    stage.ended_s = begins_s + old_s + after_s * (1 - old_s / before_s)
    stage.clock_mhz = item.frequency_mhz
    stage.num_run += 1
    target = number + (1 if is_forward else -1)
    ready_s[target, item.kind, item.microbatch] = stage.ended_s


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


def emulated_times_s(plan: Plan, delay_s: float, *, num_steps: int) -> list[float]:
    with emulated_ranks(plan, EmulatedGpuSettings.exact_delay(delay_s)) as ranks:
        return [run_step(ranks, num_stages=NUM_STAGES)[0].time_s for _ in range(num_steps)]


def test_early_requests_take_two_thirds_of_the_loss_away(plan: Plan) -> None:
    at_end = times_by_formula(plan, lambda end_s, _: end_s, delay_s=DELAY_S, num_steps=3)
    at_begin = times_by_formula(plan, lambda _, begin_s: begin_s, delay_s=DELAY_S, num_steps=3)
    early = emulated_times_s(plan, DELAY_S, num_steps=3)
    assert emulated_times_s(plan, 0.0, num_steps=1) == pytest.approx([plan.iteration_time_s])
    # The first step's first clock is requested as it begins.
    assert early[1:] == pytest.approx(at_end[1:], rel=1e-9)
    loss_s, loss_at_begin_s = (each[-1] - plan.iteration_time_s for each in (early, at_begin))
    assert 0 < loss_s < loss_at_begin_s / 3


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
            _, *steps = (run_step(ranks, num_stages=NUM_STAGES) for _ in range(21))
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
        _, *steps = (run_step(ranks, num_stages=NUM_STAGES) for _ in range(51))
    time_s = fmean(step[0].time_s for step in steps)
    energy_j = fmean(sum(rank.energy_j or 0.0 for rank in step) for step in steps)
    assert 1 < time_s / baseline_s < 1.005
    assert energy_j == pytest.approx(plan.predicted.energy_j, rel=0.01)
    assert energy_j < 0.9 * plan.predicted.baseline_energy_j
