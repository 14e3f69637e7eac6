"""Published savings, from the measurements published with them.

The stage profiles are those of Perseus (Chung et al., SOSP 2024), shared beside the checkout and
not shipped with it.
"""

from __future__ import annotations

import pytest
from tests.shared_data import needs_shared_data, published_profile

from flyball_profiles.stage_profile_csv import read_stage_profile
from flyball_server.planning.planner import make_plan
from flyball_wire.plan_options import Policy

from .tiny_pipelines import request_of

pytestmark = needs_shared_data


@pytest.mark.parametrize(
    ("gpu", "blocking_power_w", "savings_percent", "within"),
    [
        ("a100_sxm", 83.64, (14.22, 13.54, 13.17, 12.98), 0.005),
        ("a40", 70.38, (11.13, 9.88, 9.19, 8.82), 1),
    ],
)
def test_gpt3_saves_what_was_published_on_a100_to_the_second_decimal_on_a40_within_a_point(
    gpu: str, blocking_power_w: float, savings_percent: tuple[float, ...], within: float
) -> None:
    profile = read_stage_profile(published_profile(f"gpt3-175b+{gpu}_bf16.csv"))
    for num_microbatches, saving_percent in zip((12, 24, 48, 96), savings_percent, strict=True):
        plan = make_plan(
            request_of(
                profile,
                num_microbatches,
                blocking_power_w=(blocking_power_w,),
                policy=Policy.ENVELOPE,
            )
        ).plan
        assert plan.saving_percent == pytest.approx(saving_percent, abs=within)
        assert plan.iteration_time_s <= plan.baseline_iteration_time_s
