"""Small pipelines on which plans, bounds or prices were wrong once, against all of their plans."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.planning.tiny_pipelines import (
    B,
    F,
    delays,
    enumerable_models,
    every_choice,
    profile_of,
    request_of,
)

from flyball_profiles.stage_profile import StageProfile
from flyball_server.planning.frontier.solver import DeadlineSolver
from flyball_server.planning.model.late_clocks import LateClockSimulator
from flyball_server.planning.model.pipeline_model import PipelineModel
from flyball_server.planning.model.simulator import time_and_energy
from flyball_server.planning.planner import make_plan, model_of_request
from flyball_server.planning.policies._base import PolicyRequest
from flyball_server.planning.policies.frontier import frontier
from flyball_wire.plan_options import Effort, PlanOptions

ROUNDING = 1e-9


def one_stage() -> StageProfile:
    """A stage of three clocks; with three microbatches it has 729 plans."""
    return profile_of(
        [
            {
                F: [
                    (1440, 0.046826, 13.35612),
                    (1230, 0.051756, 11.95585),
                    (960, 0.067628, 9.35806),
                ],
                B: [
                    (1440, 0.096906, 28.79089),
                    (1230, 0.1061, 23.49561),
                    (960, 0.123818, 19.21272),
                ],
            }
        ]
    )


def clocks_by_kind() -> StageProfile:
    """Each kind of instruction has clocks of its own: the highest clocks change too."""
    return profile_of(
        [
            {
                F: [
                    (1170, 0.059778, 12.16236),
                    (1065, 0.064195, 11.20707),
                    (720, 0.087779, 9.00013),
                ],
                B: [
                    (1005, 0.134268, 21.43582),
                    (915, 0.144528, 20.12849),
                    (870, 0.150455, 19.54928),
                ],
            },
            {
                F: [(1185, 0.059185, 12.30341), (930, 0.071308, 10.1618), (765, 0.083459, 9.19628)],
                B: [
                    (1320, 0.109325, 27.46608),
                    (1170, 0.119503, 24.3138),
                    (810, 0.159309, 18.84885),
                ],
            },
            {
                F: [(1020, 0.049715, 8.1173), (765, 0.062546, 6.89191), (615, 0.075065, 6.47912)],
                B: [
                    (1455, 0.076411, 23.01994),
                    (1140, 0.091325, 17.79341),
                    (630, 0.147091, 13.01748),
                ],
            },
        ]
    )


def least_j(model: PipelineModel, deadline_s: float) -> float:
    """Return the least energy of all plans that meet a deadline, clocks requested at ends."""
    every = LateClockSimulator(model).run(every_choice(model))
    in_time = every.iteration_time_s <= deadline_s * (1 + ROUNDING)
    return float(every.total_energy_j[in_time].min())


def test_the_bound_is_on_all_plans_within_the_target_and_late_changes_are_apart() -> None:
    options: dict[str, Any] = {
        "target": "slowdown:15%",
        "blocking_power_w": (0.0,),
        "reserve": 0.0,
        "early_requests": False,
    }
    request = request_of(one_stage(), 3, **options)
    at_once = make_plan(request).plan
    late = make_plan(request.with_options(transition_ms=2.0)).plan
    bound_j = late.predicted.lower_bound_j
    assert bound_j == at_once.predicted.lower_bound_j == pytest.approx(100.96, abs=0.01)
    assert late.predicted.energy_j == pytest.approx(102.08, abs=0.01)
    assert at_once.predicted.energy_j == pytest.approx(101.99, abs=0.01)
    assert late.predicted.gap_percent == pytest.approx(1.10, abs=0.01)
    cost_j = late.predicted.energy_j - at_once.predicted.energy_j
    assert late.predicted.late_changes_j == pytest.approx(cost_j)
    model = model_of_request(request.with_options(transition_ms=2.0))
    deadline_s = 1.15 * late.predicted.baseline_iteration_time_s
    assert late.predicted.energy_j == pytest.approx(least_j(model, deadline_s))


VARYING = delays((0.004413, 0.006586, 0.01704), (0.020068, 0.020877, 0.021877))


@pytest.mark.parametrize(
    ("early_requests", "delay", "max_switches"),
    [
        (False, {"transitions": VARYING}, 6),
        (True, {"transition_ms": 15.0}, 6),
    ],
)
def test_the_fastest_plan_never_needs_more_than_the_baseline_with_its_late_changes(
    early_requests: bool, delay: dict[str, Any], max_switches: int | None
) -> None:
    request = request_of(
        clocks_by_kind(),
        1,
        blocking_power_w=(84.0,),
        tail_ms=67.473,
        transfer_ms=(7.183,),
        early_requests=early_requests,
        max_switches=max_switches,
        **delay,
    )
    plan = make_plan(request).plan
    model = model_of_request(request)
    baseline_s, baseline_j = time_and_energy(model, model.baseline())
    assert (plan.predicted.baseline_iteration_time_s, plan.predicted.baseline_energy_j) == (
        baseline_s,
        baseline_j,
    )
    # Its changes cost time: the target is what the highest clocks really take.
    assert baseline_s > time_and_energy(model.without_transitions(), model.baseline())[0]
    assert plan.predicted.energy_j <= baseline_j
    assert plan.iteration_time_s <= baseline_s
    assert plan.predicted.lower_bound_j is not None
    assert plan.predicted.lower_bound_j <= plan.predicted.energy_j * (1 + ROUNDING)
    sources = plan.predicted.saving_sources
    assert sources is not None
    saved_j = sources.imbalance_j + sources.bubbles_j + sources.iteration_time_j
    assert saved_j == pytest.approx(baseline_j - plan.predicted.energy_j, abs=1e-9 * baseline_j)


@pytest.mark.parametrize("target", ["least-energy", "slowdown:100%"])
@pytest.mark.parametrize("num_microbatches", [1, 4])
def test_where_waiting_costs_nothing_late_changes_have_no_price(
    target: str, num_microbatches: int
) -> None:
    profile = profile_of(
        [
            {
                F: [(1410, 0.010, 3.0), (900, 0.014, 2.4)],
                B: [(1410, 0.020, 6.0), (900, 0.028, 4.8)],
            },
            {
                F: [(1410, 0.012, 3.6), (900, 0.0168, 2.9)],
                B: [(1410, 0.024, 7.2), (900, 0.0336, 5.8)],
            },
        ]
    )
    request = request_of(
        profile,
        num_microbatches,
        blocking_power_w=(0.0,),
        transition_ms=8.0,
        early_requests=False,
        target=target,
    )
    plan = make_plan(request).plan
    assert plan.predicted.energy_j == pytest.approx(num_microbatches * (2.4 + 4.8 + 2.9 + 5.8))


def test_with_low_effort_too_the_best_of_81_plans_is_found() -> None:
    """Times of the two higher clocks hardly differ: the search took one for the other."""
    stages = [
        {
            F: [
                (1485, 0.0386479, 11.285526),
                (1425, 0.0376081, 10.742),
                (885, 0.0539158, 7.113223),
            ],
            B: [
                (1485, 0.0746734, 22.571053),
                (1425, 0.0752162, 21.484),
                (885, 0.1078317, 14.226446),
            ],
        },
        {
            F: [
                (1485, 0.0458598, 13.745155),
                (1425, 0.0458046, 13.08317),
                (885, 0.0656665, 8.663517),
            ],
            B: [
                (1485, 0.0924727, 27.490311),
                (1425, 0.0916092, 26.16634),
                (885, 0.1313331, 17.327035),
            ],
        },
    ]
    request = request_of(
        profile_of(stages),
        1,
        blocking_power_w=(0.0,),
        reserve=0.0,
        target="slowdown:10%",
        effort=Effort.LOW,
    )
    assert make_plan(request).plan.predicted.energy_j == pytest.approx(67.056, abs=0.001)


@settings(max_examples=25)
@given(enumerable_models(), st.data())
def test_without_any_search_the_plan_of_a_tiny_pipeline_is_the_best_of_all(
    model: PipelineModel, data: st.DataObject
) -> None:
    late = replace(model, transitions=delays(0.0, 0.0))
    every = LateClockSimulator(late).run(every_choice(model))
    times_s = sorted(every.iteration_time_s.tolist())
    solver = DeadlineSolver(model)
    assert solver.fastest_time_s == pytest.approx(times_s[0])
    # At the very times of plans, and between them.
    deadline_s = data.draw(st.sampled_from(times_s)) + data.draw(st.sampled_from([0.0, 0.03]))
    deadline_s = max(deadline_s, solver.fastest_time_s)
    plan = solver.plan(solver.relax(deadline_s), num_steps=0)
    in_time = every.iteration_time_s <= deadline_s * (1 + ROUNDING)
    best_j = float(every.total_energy_j[in_time].min())
    assert plan.energy_j == pytest.approx(best_j, rel=ROUNDING)
    assert plan.lower_bound_j <= best_j * (1 + ROUNDING)
    assert plan.iteration_time_s <= deadline_s
    assert time_and_energy(model, plan.assignment) == (plan.iteration_time_s, plan.energy_j)


@settings(max_examples=15)
@given(enumerable_models(), st.data())
def test_late_plans_of_tiny_pipelines_are_the_best_of_all_and_the_bound_is_below_all_of_them(
    model: PipelineModel, data: st.DataObject
) -> None:
    up_s, down_s = (data.draw(st.sampled_from([0.0, 0.01, 0.2])) for _ in range(2))
    model = replace(model, transitions=delays(up_s, down_s))
    slowdown = data.draw(st.sampled_from([0.0, 0.05, 0.3]))
    choice = frontier(
        PolicyRequest(
            model=model,
            options=PlanOptions(
                target=f"slowdown:{slowdown}", effort=Effort.LOW, reserve=0.0, early_requests=False
            ),
            reconfigure_granularity_mhz=30,
        )
    )
    baseline_s, baseline_j = time_and_energy(model, model.baseline())
    best_j = least_j(model, baseline_s * (1 + slowdown))
    energy_j = time_and_energy(model, choice.assignment)[1]
    assert energy_j == pytest.approx(best_j, rel=ROUNDING)
    assert energy_j <= baseline_j * (1 + ROUNDING)
    assert choice.lower_bound_j is not None
    assert choice.lower_bound_j <= best_j * (1 + ROUNDING)
    assert np.isfinite(choice.lower_bound_j)
