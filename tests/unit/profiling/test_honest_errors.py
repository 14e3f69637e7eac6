"""Over several jobs: the limits that profiling is held to, and whether its errors are honest."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.unit.planning.tiny_pipelines import changed_points
from tests.unit.profiling.emulated_training import Truth, profile_online
from tests.unit.profiling.true_profiles import (
    a100_truth,
    found_errors,
    kind_of,
    plan_excess_percent,
    setup_of,
    truth_of,
)

from flyball_pipeline.instruction import InstructionKind
from flyball_profiles.stage_profile import OperatingPoint, StageProfile
from flyball_server.profiling.moves import Finished
from flyball_wire.plans.plan import Slowdown

pytestmark = pytest.mark.slow


def finished(truth: Truth, seed: int) -> Finished:
    run = profile_online(setup_of(truth), truth, seed=seed)
    assert isinstance(run.last, Finished), run.last
    return run.last


def test_probed_points_and_the_plan_are_within_their_limits() -> None:
    truth = a100_truth(24)
    last = finished(truth, seed=2)
    result = last.result
    errors = found_errors(truth, result)
    assert result.num_steps <= 200
    assert result.extra_energy_j is not None
    assert all(point.time_error_s > 0 and point.energy_error_j > 0 for point in result.points)
    assert errors.time_percent <= 2
    assert errors.energy_percent <= 3
    assert plan_excess_percent(truth, last) <= 1
    assert result.largest_slowdown is not None
    assert result.largest_slowdown <= 0.1


def test_kinds_of_very_different_power_are_divided_equally_and_planned_right() -> None:
    """Backwards draw half as much; a drift of forwards alone is planned right, too."""
    weaker = InstructionKind.BACKWARD
    usual = a100_truth(24, stages=(0, 1, 6, 7))
    profile = changed_points(
        usual.profile,
        lambda key, point: replace(
            point, energy_j=point.energy_j * (0.5 if key[1] is weaker else 1.0)
        ),
    )
    truth = replace(usual, profile=profile)
    last = finished(truth, seed=3)
    assert found_errors(truth, last.result).energy_percent <= 3
    assert plan_excess_percent(truth, last) <= 1
    drift = Slowdown(stage=1, kind=InstructionKind.FORWARD, slowdown=1.15)
    assert plan_excess_percent(truth, last, drift) <= 1


def test_clocks_that_a_power_limit_holds_down_are_found_and_planned_as_they_run() -> None:
    """Forwards run as at 1335 MHz above that, backwards as at 1260 MHz."""
    usual = a100_truth(24, stages=(0, 1, 6, 7))
    held_mhz = {InstructionKind.FORWARD: 1335, InstructionKind.BACKWARD: 1260}

    def held(key: tuple[int, InstructionKind], point: OperatingPoint) -> OperatingPoint:
        at = usual.profile.at(*key, min(point.frequency_mhz, held_mhz[key[1]]))
        return replace(at, frequency_mhz=point.frequency_mhz)

    truth = replace(usual, profile=changed_points(usual.profile, held))
    last = finished(truth, seed=2)
    errors = found_errors(truth, last.result)
    assert errors.time_percent <= 2
    assert errors.energy_percent <= 3
    assert plan_excess_percent(truth, last) <= 1


def test_the_cap_holds_where_times_grow_as_fast_as_clocks_fall() -> None:
    points = {
        (stage, kind): tuple(
            OperatingPoint(
                frequency_mhz=mhz,
                time_s=scale * 1400 / mhz,
                energy_j=scale * 1400 / mhz * (100 + 200 * (mhz / 1400) ** 3),
            )
            for mhz in range(1400, 680, -60)
        )
        for stage in range(3)
        for kind, scale in ((InstructionKind.FORWARD, 0.1), (InstructionKind.BACKWARD, 0.2))
    }
    truth = truth_of(StageProfile(points=points, num_ranks_per_stage=(1, 1, 1)), 24, 83.64)
    run = profile_online(setup_of(truth), truth, seed=5)
    highest_s = max(step.iteration_time_s for step in run.observed if step.version == 1)
    slowest_s = max(step.iteration_time_s for step in run.observed)
    assert highest_s < slowest_s <= 1.1 * highest_s


def test_nine_of_ten_points_are_within_two_standard_errors() -> None:
    # Points of one job err together: what they share must average out over jobs.
    truth = a100_truth(24, stages=(0, 1, 2, 7))
    results = [finished(truth, seed).result for seed in range(10, 15)]
    assert np.mean([found_errors(truth, each).covered_percent for each in results]) >= 90
    times = [
        (point.time_s - truth.point(point.stage, kind_of(point), 0, point.frequency_mhz)[0])
        / point.time_error_s
        for each in results
        for point in each.points
    ]
    assert 0.3 < np.std(times) < 1.2
    powers = [
        abs(power_w - 83.64) <= 2 * error_w
        for each in results
        for power_w, error_w in zip(
            each.blocking_power_w or (), each.blocking_power_error_w or (), strict=True
        )
    ]
    assert np.mean(powers) >= 0.85


def test_chunks_are_profiled_one_by_one() -> None:
    """Interleaved 1F1B, two fifths of each stage being its first chunk."""
    whole = a100_truth(24, stages=(0, 1, 6, 7)).profile

    def part(share: float) -> StageProfile:
        return changed_points(
            whole,
            lambda _, point: replace(
                point, time_s=share * point.time_s, energy_j=share * point.energy_j
            ),
        )

    chunked = replace(whole, chunks=(part(0.4), part(0.6)))
    truth = truth_of(chunked, 24, 83.64, schedule="interleaved-1f1b")
    last = finished(truth, seed=4)
    assert found_errors(truth, last.result).energy_percent <= 3
    first, second = last.profile.chunks
    for key, points in last.profile.points.items():
        mhz = points[-1].frequency_mhz
        parts = (first.at(*key, mhz), second.at(*key, mhz))
        assert points[-1].energy_j == pytest.approx(sum(part.energy_j for part in parts))
        assert [part.jitter for part in parts] == pytest.approx([truth.noise] * 2, rel=0.2)
        assert all(0 < part.time_error_s < 0.02 * part.time_s for part in parts)
