"""The contract of a relaxation (`planning/frontier/relaxation.py`), over all implementations."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.planning.oracles import plain_program_bound_j
from tests.unit.planning.tiny_pipelines import (
    B,
    F,
    I,
    Points,
    W,
    equal_profile,
    model_of,
    models_with_delays,
    profile_of,
)

from flyball_profiles.stage_profile import OperatingPoint
from flyball_server.planning.frontier.curves import model_curves
from flyball_server.planning.frontier.event_network import EventNetwork, build_network
from flyball_server.planning.frontier.highs_relaxation import HighsRelaxation
from flyball_server.planning.frontier.interior_point import InteriorPointRelaxation
from flyball_server.planning.frontier.relaxation import RelaxedOptimum
from flyball_server.planning.frontier.solver import DeadlineSolver
from flyball_server.planning.model.pipeline_model import PipelineModel

WITHIN = 1e-4  # of the optimum, by the contract
SHARES = [0.0, 0.001, 0.1, 0.5, 0.9, 1.0, 1.5, 20.0]
"""From the fastest to the slowest iteration that is of any use, and far beyond it."""

RelaxationClass = type[HighsRelaxation] | type[InteriorPointRelaxation]


def measured(time_s: float, energy_j: float, num_points: int = 8) -> Points:
    """Points as a GPU has them: time grows and energy falls with the clock, ever less of it."""
    return [
        (
            1410 - 90 * step,
            time_s * (1 + 0.08 * step),
            energy_j * (1 - 0.06 * step + 0.003 * step**2),
        )
        for step in range(num_points)
    ]


def uneven_model(
    num_stages: int,
    num_microbatches: int,
    time_s: float = 0.1,
    power_w: float = 300.0,
    blocking_power_w: float = 80.0,
    schedule: str = "1f1b",
) -> PipelineModel:
    """Stages that differ by some percent; forwards take `time_s` or so at `power_w` W."""
    stages = []
    for stage in range(num_stages):
        forward_s = time_s * (1 + 0.07 * (stage % 3))
        stages.append(
            {
                F: measured(forward_s, forward_s * power_w),
                B: measured(2.1 * forward_s, 2.3 * forward_s * power_w),
            }
        )
    return model_of(profile_of(stages), num_microbatches, schedule, [blocking_power_w])


SINGLE_USE: Points = [(1410, 1.0, 10.0), (1000, 1.5, 20.0)]
EQUAL_POINTS: Points = [(1410, 1.0, 10.0), (1200, 1.0, 10.0), (1000, 1.0, 10.0)]
NEARLY_EQUAL: Points = [
    (1410, 0.3, 30.0), (1300, 0.1 + 0.2, 20.0), (1200, 0.3 + 1e-9, 19.0), (1000, 0.5, 10.0),
]  # fmt: skip

PIPELINES = {
    "equal stages": model_of(equal_profile(4), 6),
    "uneven stages": uneven_model(4, 6),
    "GPipe": uneven_model(3, 4, schedule="gpipe"),
    "one stage, one microbatch": uneven_model(1, 1),
    "one stage": uneven_model(1, 8),
    "one microbatch": uneven_model(6, 1),
    "a backward in two parts": model_of(
        profile_of([{F: measured(1, 30), I: measured(1, 30), W: measured(0.8, 25)}] * 3), 4
    ),
    "one clock of any use": model_of(profile_of([{F: SINGLE_USE, B: SINGLE_USE}] * 3), 4),
    "one clock of any use on one stage": model_of(
        profile_of([{F: SINGLE_USE, B: SINGLE_USE}, {F: measured(1, 30), B: measured(2, 60)}]), 4
    ),
    "equal points": model_of(profile_of([{F: EQUAL_POINTS, B: measured(2, 60)}] * 3), 4),
    "times equal but for rounding": model_of(
        profile_of([{F: NEARLY_EQUAL, B: NEARLY_EQUAL}] * 3), 4
    ),
    "waiting costs nothing": uneven_model(4, 6, blocking_power_w=0.0),
    "waiting costs more than working": uneven_model(4, 6, blocking_power_w=2_000.0),
    "microseconds": uneven_model(4, 6, time_s=1e-6),
    "nanoseconds": uneven_model(4, 6, time_s=2e-9),
    "hours": uneven_model(4, 6, time_s=1e4),
    "microwatts": uneven_model(4, 6, power_w=1e-6, blocking_power_w=1e-7),
    "megawatts": uneven_model(4, 6, power_w=1e6, blocking_power_w=1e5),
}


def in_other_units(model: PipelineModel, time_factor: float, energy_factor: float) -> PipelineModel:
    """The same pipeline with all times and energies by these factors."""
    points = {
        points: tuple(
            OperatingPoint(
                frequency_mhz=point.frequency_mhz,
                time_s=point.time_s * time_factor,
                energy_j=point.energy_j * energy_factor,
            )
            for point in points
        )
        for points in set(model.points)
    }
    power_factor = energy_factor / time_factor
    return dataclasses.replace(
        model,
        points=tuple(points[of_node] for of_node in model.points),
        blocking_power_w=tuple(watt * power_factor for watt in model.blocking_power_w),
    )


def network_of(model: PipelineModel) -> EventNetwork:
    return build_network(model, model_curves(model))


def deadlines_of(model: PipelineModel) -> list[float]:
    solver = DeadlineSolver(model)
    fastest_s, slowest_s = solver.fastest_time_s, solver.slowest_time_s
    span_s = slowest_s - fastest_s or fastest_s
    return [fastest_s + share * span_s for share in SHARES]


def worst_window_error(network: EventNetwork, optimum: RelaxedOptimum) -> float:
    """By how much a window is below its minimum, as a share of the deadline."""
    window_s = optimum.event_time_s[network.head] - optimum.event_time_s[network.tail]
    return float((network.min_window_s - window_s).max()) / optimum.deadline_s


@pytest.mark.parametrize("relaxation", [HighsRelaxation, InteriorPointRelaxation])
class TestRelaxation:
    @pytest.mark.parametrize("name", PIPELINES)
    def test_finds_the_optimum_of_a_textbook_program_with_events_that_can_be_run(
        self, relaxation: RelaxationClass, name: str
    ) -> None:
        model = PIPELINES[name]
        scale_s = min(point.time_s for points in model.points for point in points)
        scale_j = max(point.energy_j for points in model.points for point in points)
        # The textbook program's solver has absolute tolerances: it gets seconds and joules.
        scaled = in_other_units(model, 1 / scale_s, 1 / scale_j)
        network = network_of(model)
        solver = relaxation(network)
        deadlines_s = deadlines_of(model)
        optima = [solver.solve(deadline_s) for deadline_s in deadlines_s]
        for deadline_s, optimum in zip(deadlines_s, optima, strict=True):
            expected_j = plain_program_bound_j(scaled, deadline_s / scale_s * (1 + 1e-12)) * scale_j
            assert optimum.lower_bound_j == pytest.approx(expected_j, rel=WITHIN)
            assert optimum.deadline_s == deadline_s
            assert optimum.event_time_s.shape == (network.num_events,)
            assert worst_window_error(network, optimum) <= 1e-6
            assert (optimum.event_time_s <= deadline_s * (1 + 1e-6)).all()
        # Beyond the least-energy time the bound stays.
        *_, slowest, later, far_later = optima
        for optimum in (later, far_later):
            assert optimum.lower_bound_j == pytest.approx(slowest.lower_bound_j, rel=WITHIN)
            fall_j = -optimum.bound_slope_w * (far_later.deadline_s - slowest.deadline_s)
            assert 0 <= fall_j <= 0.1 * slowest.lower_bound_j

    @pytest.mark.parametrize("name", ["times equal but for rounding", "microwatts"])
    def test_the_order_of_deadlines_does_not_matter_and_the_same_order_gives_the_same_results(
        self, relaxation: RelaxationClass, name: str
    ) -> None:
        network = network_of(PIPELINES[name])
        deadlines_s = deadlines_of(PIPELINES[name])
        solver = relaxation(network)
        rising = [solver.solve(deadline_s) for deadline_s in deadlines_s]
        falling = [solver.solve(deadline_s) for deadline_s in reversed(deadlines_s)]
        alone = [relaxation(network).solve(deadline_s) for deadline_s in deadlines_s]
        for others in (falling[::-1], alone):
            for one, other in zip(rising, others, strict=True):
                assert one.lower_bound_j == pytest.approx(other.lower_bound_j, rel=WITHIN)
        again_solver = relaxation(network_of(PIPELINES[name]))
        for one, deadline_s in zip(rising, deadlines_s, strict=True):
            again = again_solver.solve(deadline_s)
            assert (one.lower_bound_j, one.bound_slope_w) == (
                again.lower_bound_j,
                again.bound_slope_w,
            )
            assert one.event_time_s.tobytes() == again.event_time_s.tobytes()

    @settings(max_examples=12)
    @given(model=models_with_delays(), share=st.sampled_from(SHARES))
    def test_noisy_pipelines_are_no_exception(
        self, relaxation: RelaxationClass, model: PipelineModel, share: float
    ) -> None:
        network = network_of(model)
        deadline_s = deadlines_of(model)[SHARES.index(share)]
        optimum = relaxation(network).solve(deadline_s)
        expected_j = plain_program_bound_j(model, deadline_s)
        assert optimum.lower_bound_j == pytest.approx(expected_j, rel=WITHIN)
        assert worst_window_error(network, optimum) <= 1e-6


def test_both_agree_on_a_pipeline_of_real_size() -> None:
    model = uneven_model(8, 24)
    network = network_of(model)
    highs, interior = HighsRelaxation(network), InteriorPointRelaxation(network)
    for deadline_s in deadlines_of(model):
        one, other = highs.solve(deadline_s), interior.solve(deadline_s)
        assert one.lower_bound_j == pytest.approx(other.lower_bound_j, rel=WITHIN)
        assert np.isfinite(other.event_time_s).all()
