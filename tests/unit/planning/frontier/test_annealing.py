"""Annealing by many shifts at once: independent patches, points, and mixed optima."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.unit.planning.tiny_pipelines import example_model, models, network_of

from flyball_server.planning.frontier.annealing import EventTimes, PointTable
from flyball_server.planning.frontier.curves import model_curves
from flyball_server.planning.frontier.relaxation import mixed_optimum, sandwich_error_j
from flyball_server.planning.frontier.solver import DeadlineSolver
from flyball_server.planning.model.pipeline_model import PipelineModel

SOLVER_ERROR = 1e-6


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


def test_points_are_those_of_a_plain_search() -> None:
    curves = model_curves(example_model(2)).curves
    table = PointTable(curves, tolerance_s=1e-12)
    for number, curve in enumerate(curves):
        times_s = [point.time_s for point in curve.staircase]
        middles_s = [(left + right) / 2 for left, right in pairwise(times_s)]
        windows_s = [-1.0, 0.0, 0.9 * times_s[0], *times_s, *middles_s, 100 * times_s[-1]]
        points = table.points(np.array(number), np.array(windows_s)) - table.first[number]
        assert points.tolist() == [
            sum(time_s <= window_s + 1e-12 for time_s in times_s) - 1 for window_s in windows_s
        ]
        rows: list[int] = points.tolist()
        costs_j = table.costs_j(np.array(number), points + table.first[number])
        expected_j = [curve.staircase[row].cost_j if row >= 0 else 1e18 for row in rows]
        assert costs_j.tolist() == expected_j


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
