"""A target `power:` of jobs whose steps have clocks of their own: kept over blocks of steps."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest
from tests.planner.samples import job_services
from tests.planner.working_ranks import Lengths, WorkingRanks, WorkingStep
from tests.unit.server.test_announced_work import (
    NUM_MICROBATCHES,
    NUM_PIPELINES,
    TRUE,
    job,
    lengths_of,
    loop_state,
    measured,
    own_part,
    profile,
)

from flyball_server.jobs.findings.delays import DelayReconciler
from flyball_server.jobs.findings.step_power import BLOCK_STEPS, StepPowerReconciler, corrected
from flyball_server.jobs.measurements.announced_work import deadline_ratio
from flyball_server.jobs.planning_inputs import PlanningInputs, StepPower, WorkModel
from flyball_server.jobs.reconcile.plans import PlanReconciler
from flyball_server.jobs.registry.inspection import get_plan
from flyball_server.jobs.services import JobServices
from flyball_server.jobs.versions.rank_plans import part_of
from flyball_wire.plans.plan import Plan

pytestmark = pytest.mark.slow

Draw = Callable[[random.Random], Lengths]

WORK = WorkModel(
    version=1,
    num_microbatches=100,
    places=tuple((stage, kind, 0) for stage, kind in TRUE),
    coefficients=tuple(TRUE.values()),
)


def power_w(working: WorkingRanks, steps: list[WorkingStep]) -> float:
    """Mean power of one pipeline's GPUs, for which the profile stands."""
    time_s = sum(step.time_s for step in steps)
    return sum(step.energy_j for step in steps) / working.num_pipelines / time_s


def uneven(chance: random.Random, num_microbatches: int = NUM_MICROBATCHES) -> Lengths:
    """Work of pipelines that wait for each other: it differs up to eightfold."""
    most = chance.choice([900, 1800, 3600])
    return [[chance.uniform(0.5, 1.0) * most for _ in range(2)] for _ in range(num_microbatches)]


def again_and_again(draw: Draw) -> Draw:
    """The same steps in each block, so that blocks differ by their deadlines alone."""
    chance = random.Random(7)
    drawn = itertools.cycle([draw(chance) for _ in range(BLOCK_STEPS * NUM_PIPELINES)])
    return lambda _: next(drawn)


@cache
def plan_at_250_w() -> Plan:
    """The plan of a job with target `power:250`, which corrections start from."""
    services = job_services()
    job(services, {"target": "power:250"}, are_posted=False)
    return get_plan(services, "job", 1).plan


def run_with(working: WorkingRanks, known: StepPower) -> float:
    """Run a block of steps with this correction, whatever the planner thinks; mean power, W."""
    record = get_plan(working.services, "job", 1)
    inputs = PlanningInputs(work=WORK, step_power=known)
    for rank in working.ranks[:: working.num_stages]:
        working.parts[rank.dp_rank] = part_of(record, rank, profile(), inputs)
    return power_w(working, working.run(BLOCK_STEPS))


def powers_w(working: WorkingRanks, num_blocks: int) -> tuple[list[float], StepPower]:
    """Run blocks of steps, each with the correction of those before; the mean power of each, W."""
    plan = get_plan(working.services, "job", 1).plan
    known, found_w = StepPower(target=plan.target), list[float]()
    for _ in range(num_blocks):
        found_w.append(run_with(working, known))
        known = corrected(known, plan, profile(), found_w[-1], error=0.0)
    return found_w, known


@pytest.mark.parametrize(("target_w", "draw"), [(225, lengths_of), (280, uneven)])
def test_the_mean_power_of_blocks_comes_to_the_target(
    services: JobServices, target_w: float, draw: Draw
) -> None:
    working = job(
        services,
        {"target": f"power:{target_w}"},
        draw=again_and_again(draw),
        are_posted=False,
    )
    found_w, known = powers_w(working, 4)
    assert found_w[0] < 0.95 * target_w
    assert found_w[-1] == pytest.approx(target_w, rel=0.01)
    assert known.factor < 0.95
    assert known.note is None


def test_a_power_that_no_step_meets_is_said(services: JobServices) -> None:
    """GPUs that wait draw more than the profile says."""
    working = job(
        services,
        {"target": "power:222"},
        draw=again_and_again(lengths_of),
        are_posted=False,
        waiting_power_w=150.0,
    )
    found_w, known = powers_w(working, 3)
    assert known.least_power_w == pytest.approx(found_w[-1], abs=0.1)
    assert known.note is not None
    assert known.note.startswith("target power:222 is not met: steps draw 2")
    slowest = run_with(working, replace(known, factor=2 * known.factor))
    assert slowest == pytest.approx(found_w[-1], rel=1e-3)
    # Where they can, it is not said any more.
    plan = get_plan(services, "job", 1).plan
    assert corrected(known, plan, profile(), 222.5, error=0.0).least_power_w is None


def test_less_power_than_the_target_at_the_highest_clocks_is_no_miss(services: JobServices) -> None:
    working = job(
        services,
        {"target": "power:350"},
        draw=again_and_again(uneven),
        are_posted=False,
    )
    found_w, known = powers_w(working, 3)
    assert found_w[-1] < 0.97 * 350
    assert known.note is None
    plan = get_plan(services, "job", 1).plan
    assert deadline_ratio(plan, known) == pytest.approx(1.0, abs=1e-4)
    assert corrected(known, plan, profile(), found_w[-1], error=0.0) == known


def test_a_miss_within_the_scatter_of_steps_changes_nothing() -> None:
    plan = plan_at_250_w()
    known = StepPower(target="power:250")
    assert corrected(known, plan, profile(), 251.0, error=0.0) == known
    assert corrected(known, plan, profile(), 257.0, error=0.02) == known
    assert corrected(known, plan, profile(), 257.0, error=0.01).factor > 1


def test_chance_and_coarse_clocks_do_not_make_versions_for_ever() -> None:
    plan, chance = plan_at_250_w(), random.Random(3)
    cases: list[tuple[float, Callable[[], float]]] = [
        (0.01, lambda: 1 + 0.01 * chance.gauss(0, 1)),
        (0.0, lambda: chance.choice([0.991, 1.009])),
    ]
    for error, share in cases:
        known = StepPower(target="power:250")
        for _ in range(500):
            known = corrected(known, plan, profile(), 250 * share(), error=error)
        assert 4 <= known.num_changes <= 6
        # A miss that is much larger is corrected still.
        assert corrected(known, plan, profile(), 280.0, error=error) != known


def test_a_factor_of_another_target_does_not_hold_back_a_correction() -> None:
    """With this plan it would end steps before they can end at the highest clocks."""
    plan = plan_at_250_w()
    known = StepPower(target="power:250", factor=0.5)
    assert deadline_ratio(plan, known) == 1
    found = corrected(known, plan, profile(), 1.1**2 * 250, error=0.0)
    assert deadline_ratio(plan, found) == pytest.approx(1.1, abs=1e-4)


def test_the_planner_corrects_the_deadlines_of_the_next_version(services: JobServices) -> None:
    """Although each fifth step has no energy."""
    working = job(
        services,
        {"num_microbatches": 2, "target": "power:130"},
        num_stages=1,
        num_pipelines=2,
        draw=lambda chance: uneven(chance, 2),
        error=0.005,
        unmeasured_every=5,
    )
    measured(working, 49)
    measured(working, 49)
    reconciler = StepPowerReconciler()

    def reconcile() -> None:
        DelayReconciler()(services, "job")
        reconciler(services, "job")
        PlanReconciler()(services, "job")

    version, part = working.newest, own_part(working)
    before_w = power_w(working, working.run(BLOCK_STEPS))
    timed = loop_state(services)
    with services.store.writing("job") as writer:
        writer.save_loop_state(timed.evolve(timed_version=0))
    reconciler(services, "job")
    with services.store.writing("job") as writer:
        assert writer.find_loop_state("job").step_power is None, "its delays are not measured yet"
        writer.save_loop_state(timed)
    reconcile()
    found = loop_state(services).step_power
    assert before_w < 0.97 * 130
    assert found is not None
    assert working.take() == version + 1
    after = own_part(working)
    assert after.deadline_ratio == pytest.approx(found.factor * part.deadline_ratio)
    working.run(49)
    reconcile()
    after_w = power_w(working, working.run(2 * BLOCK_STEPS))
    assert abs(after_w - 130) < 0.5 * abs(before_w - 130)
