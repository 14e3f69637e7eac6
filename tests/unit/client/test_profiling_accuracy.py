"""The whole profiler on an emulated GPU whose counter moves every 100 ms, nothing waited for."""

from __future__ import annotations

from pathlib import Path

import pytest

from flyball_client.profiling.held_clock import HeldClock
from flyball_client.profiling.points_file import MeasuredPoint
from flyball_client.profiling.repetition import MeasuringRule, StageProfiler, Sweep
from flyball_client.profiling.workload import emulated_stage
from flyball_profiles.examples import load_example_profile
from flyball_profiles.stage_profile import InstructionKind, OperatingPoint, StageProfile


def scaled(profile: StageProfile, factor: float) -> StageProfile:
    """The same at shorter or longer times, and the same power."""
    return StageProfile(
        points={
            key: tuple(
                OperatingPoint(
                    frequency_mhz=point.frequency_mhz,
                    time_s=factor * point.time_s,
                    energy_j=factor * point.energy_j,
                )
                for point in points
            )
            for key, points in profile.points.items()
        },
        num_ranks_per_stage=profile.num_ranks_per_stage,
    )


def measured(
    profile: StageProfile, *, stage: int, chunk: int | None = None
) -> dict[tuple[InstructionKind, int], MeasuredPoint]:
    gpu, workload = emulated_stage(
        profile,
        stage=stage,
        chunk=chunk,
        blocking_power_w=80.0,
        time_scale=0,
        source=Path("x.csv"),
    )
    sweep = Sweep(workload.kinds, gpu.supported_sm_clocks_mhz()[::4], num_rises=0)
    profiler = StageProfiler(gpu=gpu, workload=workload, rule=MeasuringRule())
    with HeldClock(gpu) as clock:
        points = {(each.kind, each.frequency_mhz): each for each in profiler.measure(sweep, clock)}
    assert gpu.sm_clock_mhz() == gpu.supported_sm_clocks_mhz()[0]
    return points


@pytest.mark.parametrize("factor", [0.02, 0.3, 1.0, 4.0])
def test_each_point_is_within_2_percent_of_the_time_and_3_of_the_energy(factor: float) -> None:
    profile = scaled(load_example_profile(), factor)
    points = measured(profile, stage=3)
    assert len(points) == 20
    for (kind, frequency_mhz), point in points.items():
        true = profile.at(3, kind, frequency_mhz)
        assert point.time_s == pytest.approx(true.time_s, rel=0.02)
        assert point.energy_j == pytest.approx(true.energy_j, rel=0.03)
        assert point.is_settled
        assert point.held_by is None


def test_a_chunk_is_measured_by_itself() -> None:
    whole = load_example_profile().select_stages((0, 1))
    chunks = (scaled(whole, 0.25), scaled(whole, 0.75))
    profile = StageProfile(
        points=whole.points, num_ranks_per_stage=whole.num_ranks_per_stage, chunks=chunks
    )
    points = measured(profile, stage=1, chunk=1)
    for (kind, frequency_mhz), point in points.items():
        assert point.time_s == pytest.approx(chunks[1].at(1, kind, frequency_mhz).time_s, rel=0.02)
