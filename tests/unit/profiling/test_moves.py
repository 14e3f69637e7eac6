"""Decisions of `next_move` on small emulated jobs."""

from __future__ import annotations

import math
import random
import re
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from tests.unit.planning.tiny_pipelines import changed_points
from tests.unit.profiling.emulated_training import (
    EmulatedTraining,
    ProfilingRun,
    Truth,
    profile_online,
)
from tests.unit.profiling.true_profiles import a100_truth, setup_of

from flyball_pipeline.dag import build_dag
from flyball_pipeline.errors import PipelineError
from flyball_pipeline.instruction import WHOLE_STEP, InstructionKind, equal_stages
from flyball_pipeline.schedules.inputs import ScheduleInputs
from flyball_pipeline.schedules.table import make_schedule
from flyball_profiles.stage_profile import OperatingPoint
from flyball_server.planning.documents.plan_document import plan_document, plan_from_document
from flyball_server.profiling.differing_work import shared_scatter, work_scatter
from flyball_server.profiling.moves import Finished, KeepWatching, Probe, Refused, next_move
from flyball_server.profiling.observations import (
    MAX_WITH_WAITING,
    InstructionTimes,
    ProbedVersion,
    ProbeSetup,
    StageStep,
)
from flyball_server.profiling.version_design import baseline_plan

TRUTH = a100_truth(12, stages=(0, 7))
SETUP = setup_of(TRUTH)


@cache
def whole_run() -> ProfilingRun:
    return profile_online(SETUP, TRUTH, seed=1)


def steps_before(step: int) -> list[StageStep]:
    return [each for each in whole_run().observed if each.step < step]


def refused(
    setup: ProbeSetup = SETUP, truth: Truth = TRUTH, *, steps: int = 60, **changes: object
) -> str:
    """The problem, when all steps were observed with these changes."""
    run = profile_online(setup, truth, seed=1, observe=lambda step: replace(step, **changes))  # type: ignore[arg-type]
    assert isinstance(run.last, Refused)
    assert "\n" not in run.last.problem
    assert run.observed[-1].step <= steps
    return run.last.problem


def test_it_waits_for_a_first_step_and_then_for_enough_steps() -> None:
    (first, *_) = whole_run().versions
    assert next_move(SETUP, [replace(first, first_step=None)], []) == KeepWatching(num_steps=1)
    assert next_move(SETUP, [first], []) == KeepWatching(num_steps=12)
    assert next_move(SETUP, [first], steps_before(7)) == KeepWatching(num_steps=5)
    assert isinstance(next_move(SETUP, [first], steps_before(12)), Probe)
    early = [replace(step, step=step.step - 12) for step in steps_before(12)]
    assert next_move(SETUP, [first], early) == KeepWatching(num_steps=12)
    unstarted = [first, replace(whole_run().versions[1], first_step=None)]
    assert next_move(SETUP, unstarted, steps_before(40)) == KeepWatching(num_steps=1)


def test_the_same_observations_give_the_same_move_after_a_restart() -> None:
    versions = whole_run().versions
    stored = [
        replace(version, plan=plan_from_document(plan_document(version.plan, solve_s=0.0)))
        for version in versions[:2]
    ]
    end = (versions[1].first_step or 0) + len(versions[1].plan.cycle_mhz)
    move = next_move(SETUP, stored, list(reversed(steps_before(end))))
    assert isinstance(move, Probe)
    assert move.plan == versions[2].plan


def test_it_walks_down_from_the_highest_clocks_with_one_kind_of_a_stage_slowed_in_a_step() -> None:
    versions = whole_run().versions
    lowest = [
        min(mhz for row in version.plan.cycle_mhz for stage in row for mhz in stage)
        for version in versions
    ]
    assert lowest[0] == 1410
    assert lowest[0] > lowest[1] > lowest[2]
    assert lowest[1] > 1100
    for row in versions[1].plan.cycle_mhz:
        for instructions, clocks_mhz in zip(versions[1].plan.stages, row, strict=True):
            slowed = {
                instruction.kind
                for instruction, mhz in zip(instructions, clocks_mhz, strict=True)
                if mhz < 1410
            }
            assert len(slowed) < 2


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"energy_j": 0.0}, "stage 0: its energy counters have not moved in 1"),
        ({"energy_j": None}, "stage 0: no step's energy could be read from its energy counters"),
        ({"is_clean": False}, "as planned on every stage"),
    ],
)
def test_steps_that_show_nothing_are_refused(changes: dict[str, Any], said: str) -> None:
    assert said in refused(**changes)


def test_times_that_scatter_beyond_use_are_refused() -> None:
    run = whole_run()
    wild = [
        replace(
            step,
            instructions=tuple(
                replace(times, variance_s2=times.mean_s**2) for times in step.instructions
            ),
        )
        for step in steps_before(12)
    ]
    move = next_move(SETUP, run.versions[:1], wild)
    assert isinstance(move, Refused)
    assert move.problem.startswith("stage 0: ")
    assert "takes a time that scatters by 9" in move.problem


@pytest.mark.parametrize("work", [0.1, 0.5])
def test_steps_whose_work_differs_are_refused_within_twenty_steps(work: float) -> None:
    problem = refused(truth=replace(TRUTH, work=work), steps=20)
    found = re.search(r"the work of steps differs: .* by (\d+) %; one plan", problem)
    assert found is not None
    assert float(found[1]) / 100 == pytest.approx(work, rel=0.35)


def baseline_steps(setup: ProbeSetup, truth: Truth, *, seed: int) -> list[StageStep]:
    """Twelve steps at the highest clocks."""
    training = EmulatedTraining(truth, seed=seed)
    version = ProbedVersion(version=1, first_step=0, plan=baseline_plan(setup))
    return [each for step in range(12) for each in training.run_step(step, version)]


@pytest.mark.parametrize("seed", range(10))
def test_noise_of_each_instruction_and_slow_steps_are_no_work(seed: int) -> None:
    steps = baseline_steps(SETUP, replace(TRUTH, noise=0.2), seed=seed)
    assert work_scatter(SETUP, steps) is None
    slow = [
        step
        if step.step not in {3, 9}
        else replace(
            step,
            instructions=tuple(
                replace(times, mean_s=2 * times.mean_s) for times in step.instructions
            ),
        )
        for step in steps
    ]
    assert work_scatter(SETUP, slow) is None


@pytest.mark.parametrize(("scatter", "says_work"), [(0.03, False), (0.2, True), (0.5, True)])
def test_a_step_of_one_instruction_scatters_with_its_work_alone(
    *, scatter: float, says_work: bool
) -> None:
    shape = equal_stages(1, 1, kinds=WHOLE_STEP)
    setup = ProbeSetup(
        schedule=make_schedule("step", ScheduleInputs(shape=shape)),
        clocks_mhz=((1410, 1200),),
        num_ranks=(1,),
    )
    chance = random.Random(2)
    steps = [
        StageStep(
            stage=0,
            step=step,
            version=1,
            iteration_time_s=1.0,
            energy_j=None,
            instructions=(
                InstructionTimes(
                    kind=InstructionKind.STEP,
                    chunk=0,
                    sm_clock_mhz=1410,
                    count=1,
                    mean_s=math.exp(chance.gauss(0, scatter)),
                    variance_s2=0.0,
                ),
            ),
        )
        for step in range(12)
    ]
    found = work_scatter(setup, steps)
    assert (found is not None) is says_work


def test_noise_beyond_the_limits_is_refused_with_error_and_limit() -> None:
    setup = replace(SETUP, max_steps=60)
    problem = refused(setup, replace(TRUTH, noise=0.06), steps=70)
    found = re.search(r" MHz is known within ([\d.]+) % .*; the limit is ([\d.]+) %$", problem)
    assert found is not None
    error, limit = map(float, found.groups())
    assert error > limit
    assert limit in {100 * setup.limits.time, 100 * setup.limits.energy}


def test_a_cap_that_allows_nothing_is_refused() -> None:
    setup = replace(SETUP, slowdown_cap=1e-4, max_steps=60)
    assert "could not be run below 1410 MHz without more than 0.01 % of slowdown" in refused(
        setup, steps=70
    )


def test_a_version_that_never_comes_ends_profiling() -> None:
    setup = replace(SETUP, max_steps=40)
    first, second = whole_run().versions[:2]
    versions = [first, replace(second, first_step=10**6)]
    waiting = [
        replace(step, step=step.step + 12 * turn)
        for turn in range(MAX_WITH_WAITING * setup.max_steps // 12 + 1)
        for step in steps_before(12)
    ]
    assert isinstance(next_move(setup, versions, waiting[: len(waiting) // 2]), KeepWatching)
    last = next_move(setup, versions, waiting)
    assert isinstance(last, Refused)
    assert last.problem.startswith("not all ranks ran version 2 within 408 steps; look into")


def test_the_walk_ends_below_the_valley() -> None:
    # Each step down costs more energy from 1200 MHz on: nothing below is of use.
    valley = changed_points(
        TRUTH.profile,
        lambda _, point: replace(
            point, energy_j=point.energy_j + 0.2 * max(0, 1200 - point.frequency_mhz)
        ),
    )
    run = profile_online(SETUP, replace(TRUTH, profile=valley), seed=1)
    assert isinstance(run.last, Finished)
    lowest = min(point.frequency_mhz for point in run.last.result.points)
    assert 950 < lowest < 1150


def test_a_plateau_where_power_limits_the_gpu_does_not_end_the_walk() -> None:
    # Down to 1250 MHz times stay and energies rise a little; below, energies fall far.
    def on_plateau(key: tuple[int, InstructionKind], point: OperatingPoint) -> OperatingPoint:
        if point.frequency_mhz <= 1250:
            return point
        highest = TRUTH.profile.points[key][0]
        energy_j = highest.energy_j * (1 + (1410 - point.frequency_mhz) / 3000)
        return replace(point, time_s=highest.time_s, energy_j=energy_j)

    plateau = changed_points(TRUTH.profile, on_plateau)
    run = profile_online(SETUP, replace(TRUTH, profile=plateau), seed=1)
    rows = [row for each in run.versions for row in each.plan.cycle_mhz]
    assert all(min(mhz for row in rows for mhz in row[stage]) < 1000 for stage in range(2))


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"clocks_mhz": ((1410, 1200),)}, "clocks_mhz"),
        ({"clocks_mhz": ((1410, 1200), (1200, 1410))}, "clocks_mhz"),
        ({"num_ranks": (1, 0)}, "num_ranks"),
        ({"slowdown_cap": 0.0}, "slowdown_cap"),
        ({"blocking_power_w": (70.0, -1.0)}, "blocking_power_w"),
        ({"max_steps": 0}, "max_steps"),
    ],
)
def test_a_setup_that_does_not_fit_is_refused(changes: dict[str, object], field: str) -> None:
    with pytest.raises(PipelineError, match=f"^{field}: "):
        replace(SETUP, **changes)  # type: ignore[arg-type]


# ------------------------------------------------------------------ work that differs


NUM_STEPS = 12


def scatter_of(
    *,
    noise: float,
    work: float = 0.0,
    of_step: float = 0.0,
    num_stages: int = 4,
    num_microbatches: int = 6,
    num_pipelines: int = 2,
    seed: int = 0,
) -> float:
    """The scatter found in steps of these, each log-normal; stages take different times."""
    shape = equal_stages(num_stages, num_microbatches)
    dag = build_dag(make_schedule("1f1b", ScheduleInputs(shape=shape)))
    draws = np.random.default_rng(seed)
    microbatch = np.array([instruction.microbatch for instruction in dag.instruction])
    of_microbatch = work * draws.standard_normal((num_microbatches, NUM_STEPS, num_pipelines))
    of_each = noise * draws.standard_normal((dag.num_nodes, NUM_STEPS, num_pipelines))
    of_steps = of_step * draws.standard_normal((1, NUM_STEPS, 1))
    usual_s = draws.uniform(0.5, 2, (dag.num_nodes, 1, 1))
    return shared_scatter(dag, usual_s * np.exp(of_microbatch[microbatch] + of_each + of_steps))


@pytest.mark.parametrize("noise", [0.0005, 0.01, 0.05])
@pytest.mark.parametrize("num_stages", [1, 4])
def test_noise_and_slow_steps_are_no_work(noise: float, num_stages: int) -> None:
    found = [
        scatter_of(noise=noise, of_step=0.1, num_stages=num_stages, seed=seed) for seed in range(20)
    ]
    assert found == [0] * 20


@pytest.mark.parametrize(("noise", "work"), [(0.0, 0.02), (0.01, 0.05), (0.05, 0.2), (0.01, 0.5)])
@pytest.mark.parametrize("num_pipelines", [1, 4])
def test_work_is_found_with_its_scatter(noise: float, work: float, num_pipelines: int) -> None:
    found = [
        scatter_of(noise=noise, work=work, num_pipelines=num_pipelines, seed=seed)
        for seed in range(10)
    ]
    assert np.mean(found) == pytest.approx(work, rel=0.35)
    assert min(found) > 0.4 * work


def test_too_few_instructions_tell_nothing() -> None:
    assert scatter_of(noise=0.0, work=0.3, num_microbatches=1, num_pipelines=1) == 0
