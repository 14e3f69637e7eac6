"""Properties of the bound for any pipeline, and agreement with a textbook program."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from random import Random

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.unit.planning.oracles import plain_program_bound_j
from tests.unit.planning.tiny_pipelines import (
    B,
    F,
    I,
    Points,
    W,
    any_models,
    changed_points,
    four_plan_model,
    model_of,
    models,
    network_of,
    profile_of,
)

from flyball_profiles.stage_profile import InstructionKind, StageProfile
from flyball_server.planning.frontier.event_network import EventNetwork
from flyball_server.planning.frontier.highs_relaxation import HighsRelaxation
from flyball_server.planning.frontier.interior_point import InteriorPointRelaxation
from flyball_server.planning.frontier.relaxation import Relaxation
from flyball_server.planning.frontier.solver import DeadlineSolver
from flyball_server.planning.model.pipeline_model import PipelineModel, build_model
from flyball_server.planning.model.simulator import time_and_energy

SOLVER_ERROR = 1e-6

small_models = models(max_stages=3, max_microbatches=3)


def profile_of_model(model: PipelineModel) -> StageProfile:
    nodes = zip(model.dag.stage, model.dag.instruction, model.points, strict=True)
    return StageProfile(
        points={(stage, instruction.kind): points for stage, instruction, points in nodes},
        num_ranks_per_stage=model.num_ranks,
    )


def bound_j(model: PipelineModel, deadline_s: float) -> float:
    return DeadlineSolver(model).relax(deadline_s).lower_bound_j


def deadline_within_s(model: PipelineModel, share: float) -> float:
    """So far from the fastest to the slowest iteration that is of any use, and beyond."""
    solver = DeadlineSolver(model)
    return solver.fastest_time_s + share * (solver.slowest_time_s - solver.fastest_time_s)


shares = st.one_of(st.sampled_from([0.0, 0.5, 1.0]), st.floats(0, 1.5))


@settings(max_examples=30)
@given(small_models, shares)
def test_a_textbook_program_has_the_same_optimum(model: PipelineModel, share: float) -> None:
    deadline_s = deadline_within_s(model, share)
    expected_j = plain_program_bound_j(model, deadline_s)
    assert bound_j(model, deadline_s) == pytest.approx(expected_j, rel=SOLVER_ERROR)


@pytest.mark.parametrize(
    ("deadline_s", "energy_j"), [(3.0, 40.0), (3.25, 35.0), (3.5, 30.0), (3.75, 28.0), (9.0, 28.0)]
)
def test_the_bound_of_one_microbatch_on_one_stage_is_what_the_hand_computes(
    deadline_s: float, energy_j: float
) -> None:
    """First the backward is stretched for 20 J/s, then the forward for 8, then nothing."""
    assert bound_j(four_plan_model(), deadline_s) == pytest.approx(energy_j, rel=1e-9)


@settings(max_examples=25)
@given(small_models)
def test_the_bound_never_rises_with_the_deadline_and_is_convex(model: PipelineModel) -> None:
    solver = DeadlineSolver(model)
    deadlines_s = [deadline_within_s(model, step / 10) for step in range(14)]
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
@given(small_models, shares, st.sampled_from([1e-3, 0.3, 7.5, 1e3]), st.booleans())
def test_scaling_energies_or_times_scales_the_bound(
    model: PipelineModel, share: float, factor: float, scales_time: bool
) -> None:
    """Energies and blocking power by a factor, or energies and times: the bound by it too."""
    time_factor = factor if scales_time else 1.0
    scaled = changed_points(
        profile_of_model(model),
        lambda _, point: replace(
            point, time_s=point.time_s * time_factor, energy_j=point.energy_j * factor
        ),
    )
    power_w = [watt * factor / time_factor for watt in model.blocking_power_w]
    deadline_s = deadline_within_s(model, share)
    scaled_model = build_model(scaled, model.schedule, power_w)
    # The scaled fastest time is rounded: no deadline may lie below it.
    scaled_deadline_s = max(deadline_s * time_factor, DeadlineSolver(scaled_model).fastest_time_s)
    assert bound_j(scaled_model, scaled_deadline_s) == pytest.approx(
        bound_j(model, deadline_s) * factor, rel=SOLVER_ERROR
    )


def test_a_backward_in_two_parts_may_use_its_float_in_either() -> None:
    """Each part is worth 8 J/s less 5 W of stage 1's waiting and 5 W of stage 0's."""
    points: Points = [(1410, 1.0, 20.0), (1000, 1.5, 5.0)]
    model = model_of(profile_of([{F: points, I: points, W: points}]), 1)
    for deadline_s in (3.0, 3.2, 3.7, 4.4, 4.5):
        expected_j = 60 - 30 * (deadline_s - 3)  # whichever is stretched gains 30 J/s
        assert bound_j(model, deadline_s) == pytest.approx(expected_j, rel=1e-9)


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


@pytest.mark.parametrize("seed", [110, 405, 531])
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
