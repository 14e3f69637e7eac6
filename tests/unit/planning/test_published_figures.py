"""Published savings, from the measurements published with them.

The stage profiles are those of Perseus (Chung et al., SOSP 2024), shared beside the checkout and
not shipped with it.
"""

from __future__ import annotations

import pytest
from tests.shared_data import needs_shared_data, published_profile

from flyball_profiles.stage_profile_csv import read_stage_profile
from flyball_server.planning.plan import FrequencyPlan
from flyball_server.planning.planner import PlanRequest, make_plan
from flyball_wire.plan_options import PlanOptions, Policy, Reconfigure

A100_BLOCKING_POWER_W = 83.64
A40_BLOCKING_POWER_W = 70.38

pytestmark = needs_shared_data


def plan_of(file: str, blocking_power_w: float, num_microbatches: int) -> FrequencyPlan:
    return make_plan(
        PlanRequest(
            profile=read_stage_profile(published_profile(file)),
            num_microbatches=num_microbatches,
            options=PlanOptions(
                blocking_power_w=(blocking_power_w,),
                schedule="1f1b",
                policy=Policy.ENVELOPE,
                reconfigure=Reconfigure.BALANCED,
            ),
        )
    ).plan


@pytest.mark.parametrize(
    ("num_microbatches", "saving_percent"), [(12, 14.22), (24, 13.54), (48, 13.17), (96, 12.98)]
)
def test_gpt3_on_a100_saves_what_was_published_to_the_second_decimal(
    num_microbatches: int, saving_percent: float
) -> None:
    plan = plan_of("gpt3-175b+a100_sxm_bf16.csv", A100_BLOCKING_POWER_W, num_microbatches)
    assert round(plan.saving_percent, 2) == saving_percent
    assert plan.iteration_time_s <= plan.baseline_iteration_time_s


@pytest.mark.parametrize(
    ("num_microbatches", "saving_percent"), [(12, 11.13), (24, 9.88), (48, 9.19), (96, 8.82)]
)
def test_gpt3_on_a40_saves_what_was_published_within_a_point(
    num_microbatches: int, saving_percent: float
) -> None:
    plan = plan_of("gpt3-175b+a40_bf16.csv", A40_BLOCKING_POWER_W, num_microbatches)
    assert plan.saving_percent == pytest.approx(saving_percent, abs=1)
    assert plan.iteration_time_s <= plan.baseline_iteration_time_s
