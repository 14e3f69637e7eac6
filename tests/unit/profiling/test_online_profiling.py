"""Online profiling against a truth: what it finds, what it costs, and when it refuses."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.unit.profiling.emulated_training import ProfilingRun, Truth, profile_online

from flyball_profiles.examples import load_example_profile
from flyball_profiles.stage_profile import InstructionKind, OperatingPoint, StageProfile
from flyball_server.planning.model.simulator import Simulation, simulate
from flyball_server.planning.plan import FrequencyPlan
from flyball_server.planning.planner import PlanRequest, make_plan, model_of_request
from flyball_server.planning.schedules import make_schedule
from flyball_server.planning.schedules._base import Schedule, ScheduleContext
from flyball_server.profiling.moves import Finished, Refused, next_move
from flyball_server.profiling.observations import ProbeSetup
from flyball_server.profiling.profiling_result import ProfilingResult
from flyball_wire.plan_options import PlanOptions

pytestmark = pytest.mark.slow

BLOCKING_POWER_W = 83.64
CAP = 0.1


def schedule_of(profile: StageProfile, num_microbatches: int) -> Schedule:
    return make_schedule(
        "1f1b", ScheduleContext(profile=profile, num_microbatches=num_microbatches)
    )


def setup_of(profile: StageProfile, num_microbatches: int) -> ProbeSetup:
    clocks_mhz = tuple(point.frequency_mhz for point in profile.points[0, InstructionKind.FORWARD])
    return ProbeSetup(
        schedule=schedule_of(profile, num_microbatches),
        clocks_mhz=(clocks_mhz,) * profile.num_stages,
        num_ranks=(1,) * profile.num_stages,
        slowdown_cap=CAP,
    )


def truth_of(profile: StageProfile, num_microbatches: int, *, noise: float = 0.02) -> Truth:
    return Truth(
        profile=profile,
        schedule=schedule_of(profile, num_microbatches),
        blocking_power_w=(BLOCKING_POWER_W,) * profile.num_stages,
        noise=noise,
    )


def forty_clocks(profile: StageProfile) -> StageProfile:
    """With two clocks more, below the lowest, on the lines through the lowest two."""

    def with_two_more(points: tuple[OperatingPoint, ...]) -> tuple[OperatingPoint, ...]:
        last, before = points[-1], points[-2]
        return points + tuple(
            OperatingPoint(
                frequency_mhz=last.frequency_mhz - step * 15,
                time_s=last.time_s + step * (last.time_s - before.time_s),
                energy_j=last.energy_j + step * abs(last.energy_j - before.energy_j),
            )
            for step in (1, 2)
        )

    return replace(
        profile, points={key: with_two_more(points) for key, points in profile.points.items()}
    )


def slowing_in_inverse_proportion(num_stages: int) -> StageProfile:
    """Times of `1 / f`, the worst that a clock can do."""
    return StageProfile(
        points={
            (stage, kind): tuple(
                OperatingPoint(
                    frequency_mhz=mhz,
                    time_s=scale * 1400 / mhz,
                    energy_j=scale * 1400 / mhz * (100 + 200 * (mhz / 1400) ** 3),
                )
                for mhz in range(1400, 680, -60)
            )
            for stage in range(num_stages)
            for kind, scale in ((InstructionKind.FORWARD, 0.1), (InstructionKind.BACKWARD, 0.2))
        },
        num_ranks_per_stage=(1,) * num_stages,
    )


def found_by(run: ProfilingRun) -> ProfilingResult:
    assert isinstance(run.last, Finished), run.last
    return run.last.result


def on_the_truth(plan: FrequencyPlan, truth: StageProfile, num_microbatches: int) -> Simulation:
    """Return what a plan's clocks take on the true profile."""
    model = model_of_request(
        PlanRequest(
            profile=truth,
            num_microbatches=num_microbatches,
            options=PlanOptions(blocking_power_w=(BLOCKING_POWER_W,)),
        )
    )
    clocks_mhz = {
        (stage, instruction.kind, instruction.microbatch): instruction.frequency_mhz
        for stage, instructions in enumerate(plan.stages)
        for instruction in instructions
    }
    assignment = [
        [point.frequency_mhz for point in points].index(
            clocks_mhz[stage, instruction.kind, instruction.microbatch]
        )
        for stage, instruction, points in zip(
            model.dag.stage, model.dag.instruction, model.points, strict=True
        )
    ]
    return simulate(model, assignment)


def test_eight_stages_of_forty_clocks_are_profiled_as_the_limits_say() -> None:
    truth, num_microbatches = forty_clocks(load_example_profile()), 24
    assert {len(points) for points in truth.points.values()} == {40}
    setup = setup_of(truth, num_microbatches)
    found = found_by(profile_online(setup, truth_of(truth, num_microbatches), seed=11))
    assert found.num_steps <= 200
    assert found.cost.largest_slowdown is not None
    assert found.cost.largest_slowdown <= CAP
    assert found.cost.extra_energy_j is not None
    for point in found.points:
        true = truth.at(point.stage, InstructionKind(point.instruction), point.frequency_mhz)
        if point.num_probes:
            assert point.time_s == pytest.approx(true.time_s, rel=0.02)
            assert point.energy_j == pytest.approx(true.energy_j, rel=0.03)
        assert point.time_error_s > 0
        assert point.energy_error_j > 0
    request = PlanRequest(
        profile=found.profile(setup),
        num_microbatches=num_microbatches,
        options=PlanOptions(blocking_power_w=found.blocking_power_w),
    )
    best = make_plan(
        replace(request, profile=truth).with_options(blocking_power_w=(BLOCKING_POWER_W,))
    ).plan
    planned = on_the_truth(make_plan(request).plan, truth, num_microbatches)
    assert planned.energy_j <= 1.01 * best.energy_j
    assert planned.iteration_time_s <= 1.01 * best.iteration_time_s


def test_the_cap_holds_where_times_grow_as_fast_as_clocks_fall() -> None:
    truth, num_microbatches = slowing_in_inverse_proportion(3), 24
    setup = setup_of(truth, num_microbatches)
    run = profile_online(setup, truth_of(truth, num_microbatches), seed=5)
    highest_s = max(step.iteration_time_s for step in run.observed if step.version == 1)
    slowest_s = max(step.iteration_time_s for step in run.observed)
    assert highest_s < slowest_s <= (1 + CAP) * highest_s


def test_the_same_observations_give_the_same_move() -> None:
    truth, num_microbatches = slowing_in_inverse_proportion(2), 16
    setup = setup_of(truth, num_microbatches)
    run = profile_online(setup, truth_of(truth, num_microbatches), seed=3)
    first_two = run.versions[:2]
    assert first_two[1].first_step is not None
    until = first_two[1].first_step + first_two[1].plan.num_steps + 5
    seen = [step for step in run.observed if step.step < until]
    assert next_move(setup, first_two, seen) == next_move(setup, first_two, list(reversed(seen)))


def test_a_counter_that_never_moves_is_refused() -> None:
    truth, num_microbatches = slowing_in_inverse_proportion(2), 16
    setup = setup_of(truth, num_microbatches)
    run = profile_online(setup, truth_of(truth, num_microbatches), seed=3)
    first = run.versions[0]
    still = [replace(step, energy_j=0.0) for step in run.observed if step.version == 1]
    move = next_move(setup, [first], still)
    assert isinstance(move, Refused)
    assert "stage 0" in move.problem


def test_what_scatters_by_a_quarter_is_not_planned_with() -> None:
    truth, num_microbatches = slowing_in_inverse_proportion(2), 8
    setup = replace(setup_of(truth, num_microbatches), max_steps=60)
    run = profile_online(setup, truth_of(truth, num_microbatches, noise=0.25), seed=3)
    assert isinstance(run.last, Refused)
    assert run.last.problem
