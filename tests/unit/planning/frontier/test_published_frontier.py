"""Against Perseus's published savings, from the measurements published with them.

The stage profiles are those of Perseus (Chung et al., SOSP 2024), shared beside the checkout and
not shipped with it.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
from tests.shared_data import needs_shared_data, published_profile
from tests.unit.planning.tiny_pipelines import request_of

from flyball_profiles.stage_profile import StageProfile
from flyball_profiles.stage_profile_csv import read_stage_profile
from flyball_server.planning.plan import FrequencyPlan
from flyball_server.planning.planner import make_plan

A100, A100_BLOCKING_POWER_W = "gpt3-175b+a100_sxm_bf16.csv", 83.64
A40, A40_BLOCKING_POWER_W = "gpt3-175b+a40_bf16.csv", 70.38

pytestmark = [needs_shared_data, pytest.mark.slow]


@cache
def profile_of(file: str) -> StageProfile:
    return read_stage_profile(published_profile(file))


@cache
def plan_of(file: str, blocking_power_w: float, num_microbatches: int) -> FrequencyPlan:
    request = request_of(profile_of(file), num_microbatches, blocking_power_w=(blocking_power_w,))
    return make_plan(request).plan


@pytest.mark.parametrize(
    ("gpu", "num_microbatches", "perseus_percent", "bound_percent", "gap_percent"),
    [
        ("A100", 12, 15.20, 16.06, 0.3),
        ("A100", 96, 13.32, 13.82, 0.3),
        ("A40", 12, 11.81, 12.65, 0.6),
        ("A40", 96, 8.88, 10.14, 0.9),
    ],
)
def test_gpt3_saves_more_than_perseus_and_is_near_the_bound(
    gpu: str,
    num_microbatches: int,
    perseus_percent: float,
    bound_percent: float,
    gap_percent: float,
) -> None:
    power_w = {"A100": A100_BLOCKING_POWER_W, "A40": A40_BLOCKING_POWER_W}[gpu]
    plan = plan_of({"A100": A100, "A40": A40}[gpu], power_w, num_microbatches)
    assert plan.lower_bound_j is not None
    assert plan.gap_percent is not None
    bound_saving_percent = 100 * (1 - plan.lower_bound_j / plan.baseline_energy_j)
    assert bound_saving_percent == pytest.approx(bound_percent, abs=0.01)
    assert perseus_percent < plan.saving_percent <= bound_saving_percent
    assert 0 <= plan.gap_percent <= gap_percent
    assert plan.iteration_time_s <= plan.baseline_iteration_time_s


@pytest.mark.parametrize(
    ("file", "blocking_power_w", "mip_percent"),
    [(A100, A100_BLOCKING_POWER_W, 15.965), (A40, A40_BLOCKING_POWER_W, 12.356)],
)
def test_at_12_microbatches_it_is_within_005_points_of_what_a_mip_found_in_two_minutes(
    file: str, blocking_power_w: float, mip_percent: float
) -> None:
    assert plan_of(file, blocking_power_w, 12).saving_percent >= mip_percent - 0.05


def mixed_profile() -> StageProfile:
    """Stages 0 to 3 on A100s, 4 to 7 on A40s."""
    a100 = profile_of(A100)
    points = {key: profile_of(A100 if key[0] < 4 else A40).points[key] for key in a100.points}
    return replace(a100, points=points)


def test_stages_may_have_different_gpus() -> None:
    """The A100s wait for the A40s, so the A100s have float to save with."""
    profile = mixed_profile()
    power_w = (A100_BLOCKING_POWER_W,) * 4 + (A40_BLOCKING_POWER_W,) * 4
    plan = make_plan(request_of(profile, 12, blocking_power_w=power_w)).plan
    assert plan.iteration_time_s <= plan.baseline_iteration_time_s
    assert plan.gap_percent is not None
    assert 0 <= plan.gap_percent <= 0.6
    assert plan.saving_percent > 12
    for stage, instructions in enumerate(plan.stages):
        for instruction in instructions:
            profile.at(stage, instruction.kind, instruction.frequency_mhz)
    last_a100_mhz = [instruction.frequency_mhz for instruction in plan.stages[3]]
    assert max(last_a100_mhz[6:-6]) < 1410  # in the steady state there is always float
