"""Bounds and plans: properties for any pipeline, certificates, rounding, and annealing."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from random import Random

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.unit.planning.oracles import every_plan, least_energy_j, plain_program_bound_j
from tests.unit.planning.tiny_pipelines import (
    B,
    F,
    I,
    Points,
    W,
    any_models,
    enumerable_models,
    example_model,
    four_plan_model,
    model_of,
    models,
    network_of,
    profile_of,
)

from flyball_pipeline.instruction import InstructionKind
from flyball_server.planning.frontier.annealing import EventTimes
from flyball_server.planning.frontier.curves import model_curves
from flyball_server.planning.frontier.event_network import EventNetwork
from flyball_server.planning.frontier.highs_relaxation import HighsRelaxation
from flyball_server.planning.frontier.interior_point import InteriorPointRelaxation
from flyball_server.planning.frontier.relaxation import (
    Relaxation,
    certified_bound,
    mixed_optimum,
    sandwich_error_j,
)
from flyball_server.planning.frontier.solver import DeadlineSolver
from flyball_server.planning.model.pipeline_model import PipelineModel
from flyball_server.planning.model.simulator import simulate, time_and_energy

SOLVER_ERROR = 1e-6

small_models = models(max_stages=3, max_microbatches=3)


def bound_j(model: PipelineModel, deadline_s: float) -> float:
    return DeadlineSolver(model).relax(deadline_s).lower_bound_j


def deadline_within_s(model: PipelineModel, share: float) -> float:
    """So far from the fastest to the slowest iteration that is of any use, and beyond."""
    solver = DeadlineSolver(model)
    return solver.fastest_time_s + share * (solver.slowest_time_s - solver.fastest_time_s)


@settings(max_examples=15)
@given(small_models)
def test_the_bound_never_rises_with_the_deadline_and_is_convex(model: PipelineModel) -> None:
    solver = DeadlineSolver(model)
    deadlines_s = [deadline_within_s(model, step / 6) for step in range(9)]
    assume(deadlines_s[0] < deadlines_s[-1])
    optima = [solver.relax(deadline_s) for deadline_s in deadlines_s]
    tolerance_j = SOLVER_ERROR * optima[0].lower_bound_j
    falls_j = [left.lower_bound_j - right.lower_bound_j for left, right in pairwise(optima)]
    assert all(fall_j >= -tolerance_j for fall_j in falls_j)
    assert all(later_j <= earlier_j + tolerance_j for earlier_j, later_j in pairwise(falls_j))
    for optimum in optima:  # each slope is that of a line below the whole curve
        for other in optima:
            line_j = optimum.lower_bound_j + optimum.bound_slope_w * (
                other.deadline_s - optimum.deadline_s
            )
            assert line_j <= other.lower_bound_j + tolerance_j


@settings(max_examples=20)
@given(any_models(), st.sampled_from([1e-3, 1e-6]), st.sampled_from([0.0, 0.1]))
def test_a_bound_is_not_below_what_computing_takes(
    model: PipelineModel, share: float, reserve: float
) -> None:
    """Energies far below blocking power times time: rounding errors are larger than they are."""
    tiny = {
        id(points): tuple(replace(one, energy_j=share * one.energy_j) for one in points)
        for points in model.points
    }
    model = replace(model, points=tuple(tiny[id(points)] for points in model.points))
    busy_j = math.fsum(min(point.energy_j for point in points) for points in model.points)
    solver = DeadlineSolver(model, reserve=reserve)
    plan = solver.plan_within(1.1 * solver.fastest_time_s, num_steps=50)
    for bound_j in (plan.lower_bound_j, solver.bound_j(solver.relax(solver.slowest_time_s))):
        assert bound_j >= busy_j * (1 - 1e-6)
    assert plan.lower_bound_j <= plan.energy_j * (1 + 1e-6)


def extreme_interleaved_zb(seed: int) -> PipelineModel:
    """Two stages of two chunks; times and energies over six orders of magnitude."""
    chance = Random(seed)

    def points() -> Points:
        clocks = chance.sample(range(50, 95), 4)
        return [
            (15 * clock, 10 ** chance.uniform(-4, 2), 10 ** chance.uniform(-3, 3))
            for clock in clocks
        ]

    chunks = [profile_of([{F: points(), I: points(), W: points()}] * 2) for _ in range(2)]
    return model_of(replace(chunks[0], chunks=tuple(chunks)), 12, "interleaved-zb")


@pytest.mark.parametrize("seed", [110, 531])
@pytest.mark.parametrize("reserve", [0.0, 0.02])
def test_no_plan_takes_more_energy_than_the_highest_clocks(seed: int, reserve: float) -> None:
    model = extreme_interleaved_zb(seed)
    baseline_s, baseline_j = time_and_energy(model, model.baseline())
    solver = DeadlineSolver(model, reserve=reserve)
    plan = solver.plan_within(baseline_s * (1 + 1e-12), num_steps=200)
    assert plan.energy_j <= baseline_j
    assert plan.iteration_time_s <= baseline_s * (1 + 1e-12)
    assert plan.lower_bound_j <= plan.energy_j * (1 + 1e-9)


@pytest.mark.parametrize("relaxation", [HighsRelaxation, InteriorPointRelaxation])
@pytest.mark.parametrize(
    ("slowdown", "error"), [(1.0, 1e-4), (1.000002, 2e-3), (1.02, 1e-4), (1.2, 1e-4)]
)
def test_times_that_nearly_agree_do_not_loosen_the_bound(
    relaxation: Callable[[EventNetwork], Relaxation], slowdown: float, error: float
) -> None:
    """Two clocks whose times differ by 5e-6, and their energies by a third."""
    stage: dict[InstructionKind, Points] = {
        F: [(1410, 1.0, 30.0), (1200, 1.000005, 20.0), (1000, 1.25, 18.0)],
        B: [(1410, 2.0, 60.0), (1200, 2.00001, 40.0), (1000, 2.5, 35.0)],
    }
    model = model_of(profile_of([stage] * 2), 2)
    deadline_s = slowdown * DeadlineSolver(model).fastest_time_s
    exact_j = plain_program_bound_j(model, deadline_s)
    optimum = relaxation(network_of(model)).solve(deadline_s)
    assert exact_j * (1 - error) <= optimum.lower_bound_j <= exact_j * (1 + SOLVER_ERROR)


@settings(max_examples=25)
@given(enumerable_models(), st.data())
def test_no_prices_prove_more_than_the_best_plan_of_all(
    model: PipelineModel, data: st.DataObject
) -> None:
    network, plans = network_of(model), every_plan(model)
    times_s = sorted({time_s for time_s, _ in plans})
    price_w = st.floats(-10, 1000, allow_nan=False)
    num_arcs = len(network.tail)
    for _ in range(3):
        drawn_w = np.array(data.draw(st.lists(price_w, min_size=num_arcs, max_size=num_arcs)))
        deadline_s = data.draw(st.sampled_from(times_s)) + data.draw(st.sampled_from([0, 0.001]))
        bound_j = certified_bound(network, drawn_w, deadline_s)[0]
        assert bound_j <= least_energy_j(plans, deadline_s) * (1 + 1e-12)


def test_good_prices_prove_the_optimum_worked_out_by_hand() -> None:
    """At 3.25 s the backward is to be stretched: a second of it is worth 25 W, of all 5 W less."""
    network = network_of(four_plan_model())
    assert certified_bound(network, np.array([25.0, 25.0, 25.0]), 3.25)[0] == pytest.approx(35)
    assert certified_bound(network, np.array([13.0, 13.0, 13.0]), 3.25)[0] < 35


def tenths(rng: random.Random) -> Points:
    """Four clocks; times are tenths of a second, whose sums depend on their order."""
    times = sorted(rng.sample(range(1, 16), 4))
    energies = sorted(rng.sample(range(1, 40), 4), reverse=True)
    rows = enumerate(zip(times, energies, strict=True))
    return [(1400 - 100 * step, time / 10, float(energy)) for step, (time, energy) in rows]


def model_and_deadline(seed: int) -> tuple[PipelineModel, float]:
    """A pipeline, and how long it takes with clocks drawn at random, s."""
    rng = random.Random(seed)
    num_stages, num_microbatches = rng.choice([1, 2, 3]), rng.choice([4, 8, 16, 32])
    stages = [{F: tenths(rng), B: tenths(rng)} for _ in range(num_stages)]
    model = model_of(profile_of(stages), num_microbatches)
    drawn = [rng.randrange(4) for _ in model.points]
    return model, simulate(model, drawn).iteration_time_s


@pytest.mark.parametrize("seed", [90, 144])
def test_a_plan_that_rounding_errors_make_late_gets_a_higher_clock(seed: int) -> None:
    """Of these seeds the first rounding is late by a few units in the last place."""
    model, deadline_s = model_and_deadline(seed)
    solver = DeadlineSolver(model)
    plan = solver.plan(solver.relax(deadline_s), 2000)
    assert simulate(model, plan.assignment).iteration_time_s <= deadline_s


@settings(max_examples=25)
@given(models(), st.integers(0, 3), st.integers(0, 1000))
def test_no_instruction_has_events_of_two_patches_and_one_patch_at_most_has_a_sink(
    model: PipelineModel, num_growths: int, seed: int
) -> None:
    times = EventTimes(model.dag, network_of(model), model_curves(model))
    found = times.patches(np.random.default_rng(seed), num_growths)
    patch: list[int] = [*found.tolist(), -1]
    finishes: list[int] = times.finish.tolist()
    starts: list[list[int]] = times.starts.tolist()
    for finish, (start, other) in zip(finishes, starts, strict=True):
        assert len({patch[finish], patch[start], patch[other]} - {-1}) <= 1
    sinks: list[int] = np.flatnonzero(times.is_sink).tolist()
    assert len({patch[sink] for sink in sinks} - {-1}) <= 1
    assert sorted(set(patch) - {-1}) == list(range(max(patch) + 1))


@settings(max_examples=20)
@given(models(max_stages=3, max_microbatches=4), st.floats(0, 1), st.floats(0, 1), st.floats(0, 1))
def test_a_mixed_optimum_is_certified_and_as_near_as_its_triangle_says(
    model: PipelineModel, first: float, last: float, share: float
) -> None:
    solver = DeadlineSolver(model)
    span_s = solver.slowest_time_s - solver.fastest_time_s
    ends_s = [solver.fastest_time_s + part * span_s for part in sorted((first, last))]
    assume(ends_s[1] - ends_s[0] > 1e-3 * ends_s[1])
    left, right = (solver.relax(end_s) for end_s in ends_s)
    deadline_s = ends_s[0] + share * (ends_s[1] - ends_s[0])
    mixed, exact = mixed_optimum(left, right, deadline_s), solver.relax(deadline_s)
    error_j = SOLVER_ERROR * abs(exact.lower_bound_j)
    assert mixed.lower_bound_j <= exact.lower_bound_j + error_j
    assert mixed.lower_bound_j >= exact.lower_bound_j - sandwich_error_j(left, right) - error_j
    network = network_of(model)
    window_s = mixed.event_time_s[network.head] - mixed.event_time_s[network.tail]
    assert (window_s >= network.min_window_s - SOLVER_ERROR * deadline_s).all()


@pytest.mark.parametrize("num_steps", [1, 60])
def test_annealed_plans_keep_their_own_deadlines_and_are_no_worse(num_steps: int) -> None:
    solver = DeadlineSolver(example_model(6))
    optima = [solver.relax(solver.fastest_time_s * factor) for factor in (1.0, 1.02, 1.1)]
    rounded, annealed = solver.plans(optima, 0), solver.plans(optima, num_steps)
    for relaxed, before, after in zip(optima, rounded, annealed, strict=True):
        assert after.iteration_time_s <= relaxed.deadline_s
        assert relaxed.lower_bound_j <= after.energy_j <= before.energy_j
