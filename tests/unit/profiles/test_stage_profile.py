"""A stage profile that exists is valid."""

from __future__ import annotations

import math

import pytest

from flyball_profiles.stage_profile import (
    InstructionKind,
    OperatingPoint,
    ProfileError,
    StageProfile,
)

FORWARD = InstructionKind.FORWARD
BACKWARD = InstructionKind.BACKWARD


def two_points(scale: float = 1.0) -> tuple[OperatingPoint, ...]:
    return (
        OperatingPoint(frequency_mhz=900, time_s=2 * scale, energy_j=3 * scale),
        OperatingPoint(frequency_mhz=1400, time_s=1 * scale, energy_j=5 * scale),
    )


def two_stages() -> StageProfile:
    return StageProfile(
        points={
            (stage, kind): two_points(1 + stage) for stage in (0, 1) for kind in (BACKWARD, FORWARD)
        },
        num_ranks_per_stage=(1, 4),
    )


@pytest.mark.parametrize("field", ["frequency_mhz", "time_s", "energy_j"])
@pytest.mark.parametrize("value", [0, -1, 1e-10, math.nan, math.inf, 1e300])
def test_an_operating_point_refuses_what_no_gpu_does(field: str, value: float) -> None:
    values: dict[str, float] = {"frequency_mhz": 1400, "time_s": 0.1, "energy_j": 10.0}
    values[field] = value
    with pytest.raises(ProfileError, match=f"^{field} must be .*, not "):
        OperatingPoint(**values)  # type: ignore[arg-type]  # a float clock is one of the faults


@pytest.mark.parametrize(
    ("stage", "kind", "frequency_mhz"),
    [(2, FORWARD, 900), (0, InstructionKind.RECOMPUTE, 900), (0, FORWARD, 901)],
)
def test_a_point_that_was_not_measured_is_an_error(
    stage: int, kind: InstructionKind, frequency_mhz: int
) -> None:
    with pytest.raises(ProfileError, match=f"no {kind} of stage {stage} at {frequency_mhz} MHz"):
        two_stages().at(stage, kind, frequency_mhz)


def test_selected_stages_are_renumbered_and_keep_their_ranks() -> None:
    whole = two_stages()
    shorter = whole.select_stages((1,))
    assert shorter.num_stages == 1
    assert shorter.num_ranks_per_stage == (4,)
    assert shorter.points[0, BACKWARD] == whole.points[1, BACKWARD]


@pytest.mark.parametrize("stages", [(2,), (-1,), ()])
def test_selecting_no_stage_or_an_unknown_one_is_an_error(stages: tuple[int, ...]) -> None:
    with pytest.raises(ProfileError):
        two_stages().select_stages(stages)


@pytest.mark.parametrize("num_ranks_per_stage", [(1,), (1, 1, 1), (1, 0)])
def test_every_stage_needs_at_least_one_rank(num_ranks_per_stage: tuple[int, ...]) -> None:
    with pytest.raises(ProfileError, match="num_ranks_per_stage"):
        StageProfile(points=two_stages().points, num_ranks_per_stage=num_ranks_per_stage)


def test_the_same_frequency_twice_is_refused() -> None:
    twice = two_points() + two_points()
    with pytest.raises(ProfileError, match="stage 0 forward has the same frequency twice"):
        StageProfile(
            points={(0, FORWARD): twice, (0, BACKWARD): two_points()}, num_ranks_per_stage=(1,)
        )
