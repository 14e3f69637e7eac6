"""Plans where the power of a waiting GPU depends on its clock: by hand, all plans, the bound."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.planning.tiny_pipelines import (
    B,
    F,
    Points,
    every_choice,
    model_of,
    models_of_any_waiting_power,
    profile_of,
    random_choices,
    request_of,
)

from flyball_profiles.clock_transitions import ClockTransitions
from flyball_server.planning.documents.predicted_timeline import predicted_timeline, timeline_rows
from flyball_server.planning.frontier.saving_sources import saving_sources
from flyball_server.planning.frontier.targets import Target
from flyball_server.planning.model.early_requests import EarlyRequestBatch
from flyball_server.planning.model.pipeline_model import PipelineModel, waiting_power_w
from flyball_server.planning.model.simulator import simulate, time_and_energy
from flyball_server.planning.model.transition_batches import TransitionBatch
from flyball_server.planning.planner import PlanRequest, make_plan, model_of_request
from flyball_server.planning.policies.single_clocks import SingleClocks
from flyball_wire.plan_options import Effort

POINTS: Points = [(1410, 1.0, 50.0), (1000, 1.25, 44.0)]
# At 1000 MHz a GPU that waits draws half of what it does at 1410 MHz.
HALF = ((1000, 30.0), (1410, 60.0))


def transitions_of(
    delay_s: float, powers: tuple[tuple[int, float], ...] = HALF
) -> ClockTransitions:
    """Return one exact delay, and these powers of waiting."""
    return replace(ClockTransitions.exact(delay_s), waiting_powers=powers)


def two_stages() -> PipelineModel:
    """One microbatch through two stages; a GPU that waits at 1410 MHz draws 40 W."""
    profile = profile_of([{F: POINTS, B: POINTS}] * 2)
    model = model_of(profile, 1, blocking_power_w=[40.0])
    return replace(model, waiting_powers=HALF, transitions=transitions_of(0.5))


def test_a_stage_waits_at_the_clock_of_its_next_instruction_once_that_is_in_force() -> None:
    model = two_stages()
    # Stage 0: forward from 0 to 1 s at 1410 MHz, then waits until 3 s, of which the first half
    # second at 1410 MHz; backward until 4.25 s at 1000 MHz. Stage 1 waits 1 s before and 1.25 s
    # after its two seconds, all at 1410 MHz.
    simulation = simulate(model, [0, 1, 0, 0])
    assert simulation.iteration_time_s == pytest.approx(4.25)
    assert simulation.waiting_power_w == pytest.approx(((0.5 * 40 + 1.5 * 20) / 2, 40.0))
    busy_j = 50 + 44 + 50 + 50
    assert simulation.energy_j == pytest.approx(busy_j + 50 + 2.25 * 40)


def test_without_delays_all_of_a_wait_is_at_the_next_clock_and_the_last_at_the_first() -> None:
    simulation = simulate(two_stages().without_transitions(), [0, 1, 1, 0])
    # Stage 1: forward from 1 s to 2.25 s, backward until 3.25 s; then it waits for the end at
    # 4.5 s and for the forward of the next iteration, both at 1000 MHz.
    assert simulation.iteration_time_s == pytest.approx(4.5)
    assert simulation.waiting_power_w == pytest.approx((20.0, 20.0))


def test_powers_between_measured_clocks_are_interpolated_and_relative_to_the_highest() -> None:
    powers = ((900, 30.0), (1300, 50.0), (1500, 60.0))
    assert waiting_power_w(120.0, 1100, 1500, powers) == pytest.approx(80.0)
    assert waiting_power_w(120.0, 800, 1500, powers) == pytest.approx(60.0)
    assert waiting_power_w(120.0, 900, 1300, powers) == pytest.approx(72.0)
    assert waiting_power_w(120.0, 900, 1300, ()) == 120.0
    assert waiting_power_w(120.0, 900, 1300, ((900, 0.0),)) == 120.0


def test_ranks_that_wait_for_the_slowest_of_their_stage_do_so_at_its_clock() -> None:
    profile = profile_of([{F: POINTS, B: POINTS}])
    waiting = {
        key: tuple(replace(point, rank_waiting_s=0.5) for point in points)
        for key, points in profile.points.items()
    }
    request = request_of(replace(profile, points=waiting), 1, transitions=transitions_of(0.5))
    model = model_of_request(request.with_options(blocking_power_w=(40.0,)))
    assert [point.energy_j for point in model.points[0]] == pytest.approx([50 + 20, 44 + 10])


@given(models_of_any_waiting_power(), st.integers(0, 2**16))
def test_single_clocks_and_early_requests_without_a_delay_take_what_the_simulation_says(
    model: PipelineModel, seed: int
) -> None:
    """With one, tests/integration/test_clock_requests.py holds requests against emulated GPUs."""
    at_once = replace(model, transitions=transitions_of(0.0, model.waiting_powers))
    singles = SingleClocks(at_once)
    targets = [Target(kind="deadline", value=slower * singles.baseline_time_s) for slower in (1, 2)]
    instant = replace(model, transitions=None)
    per_stage, for_all = singles.constant(targets), singles.same_for_all(targets)
    assert per_stage[-1].energy_j <= for_all[-1].energy_j * (1 + 1e-9)
    for plan in (*per_stage, *for_all):
        figures = plan.iteration_time_s, plan.energy_j
        assert figures == pytest.approx(time_and_energy(instant, plan.assignment))
    [row] = random_choices(model, Random(seed), 1).tolist()
    run = EarlyRequestBatch(at_once).estimated(np.array([row]))
    figures = run.iteration_time_s[0], run.total_energy_j[0]
    assert figures == pytest.approx(time_and_energy(at_once, row))


# Three clocks, and a light stage beside a heavy one, which waits.
LIGHT: Points = [(1410, 1.0, 60.0), (1200, 1.1, 56.0), (1000, 1.25, 53.0)]
HEAVY: Points = [(1410, 1.5, 90.0), (1200, 1.65, 85.0), (1000, 1.9, 82.0)]
STEEP = ((1000, 12.0), (1200, 25.0), (1410, 50.0))


def uneven_request(delay_s: float = 0.05, num_microbatches: int = 4, **options: Any) -> PlanRequest:  # noqa: ANN401 - any option
    """The light stage beside the heavy one; a GPU that waits draws up to 50 W."""
    return request_of(
        profile_of([{F: LIGHT, B: LIGHT}, {F: HEAVY, B: HEAVY}]),
        num_microbatches,
        transitions=transitions_of(delay_s, STEEP),
        blocking_power_w=(50.0,),
        **options,
    )


@pytest.mark.parametrize(
    ("target", "delay_s"), [("fastest", 0.05), ("slowdown:0.05", 0.4), ("least-energy", 0.05)]
)
def test_the_bound_is_below_every_plan_that_is_as_fast(target: str, delay_s: float) -> None:
    request = uneven_request(delay_s, 2, target=target, early_requests=False, effort=Effort.LOW)
    solved = make_plan(request)
    model, plan = model_of_request(request), solved.plan
    every = TransitionBatch(model).run(every_choice(model))
    as_fast = every.iteration_time_s <= plan.iteration_time_s * (1 + 1e-9)
    least_j = every.total_energy_j[as_fast].min()
    assert plan.lower_bound_j is not None
    assert plan.lower_bound_j <= least_j * (1 + 1e-12)
    assert plan.energy_j <= least_j * 1.01
    # The power at the highest clock would be no bound.
    at_highest = make_plan(request.with_options(transitions=ClockTransitions.exact(delay_s))).plan
    assert at_highest.lower_bound_j is not None
    assert at_highest.lower_bound_j > least_j


def test_saving_its_sources_and_the_timeline_count_waiting() -> None:
    request = uneven_request()
    solved = make_plan(request)
    simulation = simulate(solved.model, solved.assignment)
    sources = saving_sources(solved.model, simulation, solved.plan.baseline_iteration_time_s)
    assert sources.waiting_j > 0
    saved_j = solved.plan.baseline_energy_j - solved.plan.energy_j
    assert sum(vars(sources).values()) == pytest.approx(saved_j)
    flat = make_plan(request.with_options(transitions=ClockTransitions.exact(0.05)))
    assert solved.plan.baseline_energy_j == pytest.approx(flat.plan.baseline_energy_j)
    assert solved.plan.saving_percent > flat.plan.saving_percent
    timeline = predicted_timeline(solved.plan, [(solved.model, solved.assignment)])
    rows = timeline_rows(timeline, (0,))
    energy_j = sum(
        sum(row.energy_j)
        + row.blocking_power_w * (solved.plan.iteration_time_s - sum(row.duration_s))
        for row in rows
    )
    assert energy_j == pytest.approx(solved.plan.energy_j)
    # The light stage waits at lower clocks than the heavy one.
    assert 12 <= rows[0].blocking_power_w < rows[1].blocking_power_w <= 50 * (1 + 1e-9)


def test_a_power_budget_counts_what_waiting_takes_at_each_clock() -> None:
    request = uneven_request(target="power:95")
    plan = make_plan(request).plan
    assert plan.energy_j / plan.iteration_time_s <= 95 * (1 + 1e-9)
    flat = make_plan(request.with_options(transitions=ClockTransitions.exact(0.05))).plan
    assert plan.iteration_time_s <= flat.iteration_time_s * (1 + 1e-9)
